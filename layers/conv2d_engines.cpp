#include "layers/conv2d_engines.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/context.h"
#include "core/cuda.h"

namespace heddle::cuda {
namespace {

using Descriptor = std::unique_ptr<void, Destroy<cudnnBackendDestroyDescriptor>>;

constexpr int64_t kAlignment = 16;  // bytes, of a vector load

Descriptor create(cudnnBackendDescriptorType_t type) {
  return make_descriptor<Descriptor>(
      [&](cudnnBackendDescriptor_t* made) { return cudnnBackendCreateDescriptor(type, made); });
}

void set(const Descriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t count, const void* values) {
  check_cudnn(cudnnBackendSetAttribute(d.get(), name, type, count, values),
              "cudnnBackendSetAttribute");
}

void set(const Descriptor& d, cudnnBackendAttributeName_t name,
         const std::vector<int64_t>& values) {
  set(d, name, CUDNN_TYPE_INT64, to_int64(values.size()), values.data());
}

void set(const Descriptor& d, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
  set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void finalize(const Descriptor& d) {
  check_cudnn(cudnnBackendFinalize(d.get()), "cudnnBackendFinalize");
}

// Reads at most `most` values into `values`. Returns their number; how many there are for most = 0.
int64_t get(const Descriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
            int64_t most, void* values) {
  int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(d.get(), name, type, most, &count, values),
              "cudnnBackendGetAttribute");
  return most == 0 ? count : std::min(count, most);
}

Descriptor describe(int64_t id, const Shape& s, DType dtype, Layout layout) {
  Descriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
  set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, {id});
  set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {kAlignment});
  set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, {s[0], s[1], s[2], s[3]});
  const int64_t sample = s[1] * s[2] * s[3];
  if (layout == Layout::nhwc)
    set(d, CUDNN_ATTR_TENSOR_STRIDES, {sample, 1, s[3] * s[1], s[1]});
  else
    set(d, CUDNN_ATTR_TENSOR_STRIDES, {sample, s[2] * s[3], s[3], 1});
  finalize(d);
  return d;
}

// Names of an operation's attributes, whose order is the same for each: alpha, beta, the
// convolution, w, x and y or their gradients; and which of (left, right, out) each tensor is.
struct Operation {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha;
  int64_t w, x, y;
};

Operation operation_of(ConvPass pass) {
  switch (pass) {
    case ConvPass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 1, 0, 2};
    case ConvPass::backward_input:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 0, 2, 1};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 2, 0, 1};
  }
}

// The graph of one operation.
Descriptor describe_graph(ConvPass pass, const ConvProblem& p, Layout layout,
                          cudnnBackendDescriptor_t gpu) {
  const Descriptor conv = create(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  set(conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
  set(conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  set(conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2});
  set(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 1});
  set(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {p.options.stride, p.options.stride});
  set(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {p.options.padding, p.options.padding});
  set(conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {p.options.padding, p.options.padding});
  finalize(conv);

  const Operation names = operation_of(pass);
  const Descriptor w = describe(names.w, p.w, p.dtype, layout);
  const Descriptor x = describe(names.x, p.x, p.dtype, layout);
  const Descriptor y = describe(names.y, p.y, p.dtype, layout);
  const Descriptor operation = create(names.type);
  const auto attribute = [&](int i) {
    return static_cast<cudnnBackendAttributeName_t>(names.alpha + i);
  };
  const float one = 1, zero = 0;
  set(operation, attribute(0), CUDNN_TYPE_FLOAT, 1, &one);
  set(operation, attribute(1), CUDNN_TYPE_FLOAT, 1, &zero);
  set(operation, attribute(2), conv.get());
  set(operation, attribute(3), w.get());
  set(operation, attribute(4), x.get());
  set(operation, attribute(5), y.get());
  finalize(operation);

  Descriptor graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation.get());
  if (gpu == nullptr) {
    const cudnnHandle_t handle = cudnn_handle();
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  }
  finalize(graph);
  return graph;
}

// Returns whether an engine computes as the Context asks: fp32 as fp32, unless TF32 was requested,
// with sums in fp32 whose order is always the same, and without waiting for a compiler.
bool suits(const Descriptor& engine, DType dtype) {
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const int64_t count = get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                            to_int64(notes.size()), notes.data());
  const bool tensor_cores = dtype == DType::bf16 || Context::current().options().tf32;
  for (int64_t i = 0; i < count; ++i) {
    const auto note = notes.at(to_size(i));
    if (note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
        note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
        note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
        (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && !tensor_cores))
      return false;
  }
  std::array<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT> behaviour{};
  const int64_t known = get(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                            to_int64(behaviour.size()), behaviour.data());
  return std::find(behaviour.begin(), behaviour.begin() + known,
                   CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) == behaviour.begin() + known;
}

}  // namespace

std::vector<ConvEngine> find_conv_engines(ConvPass pass, const ConvProblem& problem, Layout layout,
                                          size_t most, size_t max_workspace,
                                          cudnnBackendDescriptor_t gpu) {
  const Descriptor graph = describe_graph(pass, problem, layout, gpu);
  const Descriptor heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.get());
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
  if (gpu != nullptr) set(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, gpu);
#endif
  finalize(heuristics);
  const auto results = CUDNN_ATTR_ENGINEHEUR_RESULTS;
  std::vector<Descriptor> settings(
      to_size(get(heuristics, results, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr)));
  std::vector<cudnnBackendDescriptor_t> filled;
  for (Descriptor& d : settings) {
    d = create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    filled.push_back(d.get());
  }
  const int64_t count = get(heuristics, results, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                            to_int64(filled.size()), filled.data());
  std::vector<ConvEngine> out;
  for (int64_t i = 0; i < count && out.size() < most; ++i) {
    const Descriptor engine = create(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t into = engine.get();
    get(settings[to_size(i)], CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &into);
    if (!suits(engine, problem.dtype)) continue;
    Descriptor plan = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, filled[to_size(i)]);
#if CUDNN_VERSION >= 90800
    if (gpu != nullptr) set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, gpu);
#endif
    if (gpu == nullptr) {
      const cudnnHandle_t handle = cudnn_handle();
      set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    }
    if (cudnnBackendFinalize(plan.get()) != CUDNN_STATUS_SUCCESS) continue;  // not supported
    int64_t workspace = 0;
    get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
    if (to_size(workspace) <= max_workspace) out.push_back({std::move(plan), to_size(workspace)});
  }
  return out;
}

cudnnStatus_t run_conv_engine(const std::shared_ptr<void>& plan, const Tensor& left,
                              const Tensor& right, const Tensor& out, const Tensor& workspace) {
  std::array<void*, 3> pointers = {left.raw(), right.raw(), out.raw()};
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % kAlignment != 0) return CUDNN_STATUS_BAD_PARAM;
  try {
    const Descriptor pack = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    void* space = workspace.raw();
    set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, {0, 1, 2});
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers.data());
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &space);
    finalize(pack);
    return cudnnBackendExecute(cudnn_handle(), plan.get(), pack.get());
  } catch (const Error&) {
    return CUDNN_STATUS_BAD_PARAM;
  }
}

}  // namespace heddle::cuda
