// cuDNN's graph API of the simulated GPU: graphs of one convolution. Its heuristics name engines
// with every difficulty once: one converts its inputs, one uses tensor cores, one rounds sums, one
// adds in no fixed order, one is compiled at run time, all five faster than the others and with
// wrong results (tensor cores only in fp32); one is not supported, one needs too much workspace,
// one fails when it is run, one is slow, and the last is faster than any algorithm of the older
// API.
#include <cudnn.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/simulated_gpu/cudnn_types.h"
#include "tests/simulated_gpu/device.h"

std::atomic<int64_t> simulated::fast_engines_run = 0;

namespace {

enum : int64_t {
  kConverting,
  kTensorCores,
  kRounding,
  kUnordered,
  kCompiled,
  kUnsupported,
  kHungry,
  kBroken,
  kSlow,
  kFast,
  kEngines
};

struct Backend;
struct Attribute {
  cudnnBackendAttributeType_t type{};
  std::vector<char> bytes = {};
  std::vector<std::shared_ptr<const Backend>> descriptors = {};
};

// A descriptor; those that it was given are copied, since their owner may destroy them.
struct Backend {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  int64_t engine = -1;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes = {};

  bool has(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, size_t bytes) const {
    const auto found = attributes.find(name);
    return found != attributes.end() && found->second.type == type &&
           found->second.bytes.size() == bytes;
  }
  bool has(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    return found != attributes.end() && found->second.descriptors.size() == 1;
  }
  const Backend& child(cudnnBackendAttributeName_t name) const {
    return *attributes.at(name).descriptors.at(0);
  }
  template <class T>
  T value(cudnnBackendAttributeName_t name, size_t i = 0) const {
    T out;
    std::memcpy(&out, attributes.at(name).bytes.data() + i * sizeof(T), sizeof(T));
    return out;
  }
};

Backend& at(cudnnBackendDescriptor_t d) { return *static_cast<Backend*>(d); }

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;
  }
}

// The first of an operation's attributes, which are alpha, beta, the convolution, w, x and y; 0 if
// it is not one.
int first_attribute(cudnnBackendDescriptorType_t type) {
  switch (type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
    default:
      return 0;
  }
}

cudnnBackendAttributeName_t plus(int first, int i) {
  return static_cast<cudnnBackendAttributeName_t>(first + i);
}

bool read_block(const Backend& tensor, Block& block) {
  const auto type = tensor.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  const auto dim = [&](size_t i) {
    return static_cast<int>(tensor.value<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, i));
  };
  for (const auto format : {CUDNN_TENSOR_NHWC, CUDNN_TENSOR_NCHW}) {
    if (!block.set(format, type, dim(0), dim(1), dim(2), dim(3))) return false;
    bool same = true;
    for (size_t i = 0; i < 4; ++i)
      same &= block.step.at(i) == tensor.value<int64_t>(CUDNN_ATTR_TENSOR_STRIDES, i);
    if (same) return true;
  }
  return false;
}

bool complete(const Backend& d) {
  const auto pair = [&](cudnnBackendAttributeName_t name) {
    return d.has(name, CUDNN_TYPE_INT64, 16) &&
           d.value<int64_t>(name, 0) == d.value<int64_t>(name, 1);
  };
  Block block;
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return d.has(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 4) &&
             d.has(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 32) &&
             d.has(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 32) &&
             d.has(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 8) &&
             d.has(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 8) && read_block(d, block);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return d.has(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 4) &&
             d.value<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
             d.has(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 4) &&
             d.has(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 8) &&
             d.value<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2 &&
             pair(CUDNN_ATTR_CONVOLUTION_DILATIONS) &&
             pair(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES) &&
             pair(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS) &&
             pair(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return d.has(CUDNN_ATTR_OPERATIONGRAPH_OPS) &&
             d.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 8);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return d.has(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) &&
             d.has(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 4);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return d.has(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) &&
             d.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 8);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return d.has(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 24) &&
             d.has(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 24) &&
             d.has(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 8);
    default:
      break;
  }
  const int first = first_attribute(d.type);
  if (first == 0) return false;
  for (int i = 0; i < 2; ++i)
    if (!d.has(plus(first, i), CUDNN_TYPE_FLOAT, 4) ||
        d.value<float>(plus(first, i)) != (i == 0 ? 1.0f : 0.0f))
      return false;
  for (int i = 2; i < 6; ++i)
    if (!d.has(plus(first, i))) return false;
  return true;
}

// Copies one value out, if there is room.
template <class T>
cudnnStatus_t tell(T value, int64_t most, int64_t* count, void* to) {
  *count = 1;
  if (most >= 1) std::memcpy(to, &value, sizeof value);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  *made = new Backend{.type = type};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete &at(d);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  if (at(d).finalized || count < 1) return CUDNN_STATUS_BAD_PARAM;
  Attribute& to = at(d).attributes[name];
  to = {.type = type};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      const Backend& child = at(static_cast<const cudnnBackendDescriptor_t*>(values)[i]);
      if (!child.finalized) return CUDNN_STATUS_BAD_PARAM;
      to.descriptors.push_back(std::make_shared<Backend>(child));
    }
    return CUDNN_STATUS_SUCCESS;
  }
  to.bytes.resize(static_cast<size_t>(count) * size_of(type));
  std::memcpy(to.bytes.data(), values, to.bytes.size());
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  if (at(d).finalized || !complete(at(d))) return CUDNN_STATUS_BAD_PARAM;
  if (at(d).type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
      at(d).child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine == kUnsupported)
    return CUDNN_STATUS_NOT_SUPPORTED;
  at(d).finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t d,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t* count, void* values) {
  const Backend& from = at(d);
  auto* const out = static_cast<cudnnBackendDescriptor_t*>(values);
  *count = 0;
  if (!from.finalized) return CUDNN_STATUS_BAD_PARAM;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      *count = kEngines;
      for (int64_t i = 0; i < std::min<int64_t>(most, kEngines); ++i) {
        if (at(out[i]).type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return CUDNN_STATUS_BAD_PARAM;
        at(out[i]) = {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, true, i, from.attributes};
      }
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      if (most != 1 || at(*out).type != CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM;
      at(*out) = {CUDNN_BACKEND_ENGINE_DESCRIPTOR, true, from.engine, {}};
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      if (from.engine == kConverting)
        return tell(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, most, count, values);
      if (from.engine == kTensorCores)
        return tell(CUDNN_NUMERICAL_NOTE_TENSOR_CORE, most, count, values);
      if (from.engine == kRounding)
        return tell(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, most, count, values);
      if (from.engine == kUnordered)
        return tell(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, most, count, values);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      if (from.engine == kCompiled)
        return tell(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION, most, count, values);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      if (type != CUDNN_TYPE_INT64) return CUDNN_STATUS_BAD_PARAM;
      return tell(from.child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine == kHungry
                      ? int64_t{1} << 40
                      : kEngineWorkspace,
                  most, count, values);
    default:
      return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (!at(plan).finalized || !at(pack).finalized) return CUDNN_STATUS_BAD_PARAM;
  const Backend& settings = at(plan).child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Backend& operation =
      settings.child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).child(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (settings.engine == kBroken) return CUDNN_STATUS_EXECUTION_FAILED;
  const int first = first_attribute(operation.type);
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;
  const auto operand = [&](int i, Block& block) -> void* {
    const Backend& tensor = operation.child(plus(first, i));
    read_block(tensor, block);
    for (size_t k = 0; k < 3; ++k)
      if (at(pack).value<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, k) ==
          tensor.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID))
        return at(pack).value<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, k);
    return nullptr;
  };
  void *const w_at = operand(3, w), *const x_at = operand(4, x), *const y_at = operand(5, y);
  const Backend& described = operation.child(plus(first, 2));
  cudnnConvolutionStruct conv;
  conv.padding = described.value<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  conv.stride = described.value<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  conv.groups = x.size[1] / w.size[1];
  auto* const workspace = at(pack).value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const auto bytes = static_cast<size_t>(kEngineWorkspace);
  // bf16 has only engines with tensor cores; in fp32 they round.
  const bool wrong = settings.engine <= kCompiled && (settings.engine != kTensorCores || !x.half);
  const int algorithm = wrong ? kWrongEngine : settings.engine == kSlow ? kSlowEngine : kFastEngine;
  const float one = 1, zero = 0;
  if (algorithm == kFastEngine) ++simulated::fast_engines_run;
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return cudnnConvolutionForward(handle, &one, &x, x_at, &w, w_at, &conv,
                                     static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), workspace,
                                     bytes, &zero, &y, y_at);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return cudnnConvolutionBackwardData(handle, &one, &w, w_at, &y, y_at, &conv,
                                          static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm),
                                          workspace, bytes, &zero, &x, x_at);
    default:
      return cudnnConvolutionBackwardFilter(handle, &one, &x, x_at, &y, y_at, &conv,
                                            static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm),
                                            workspace, bytes, &zero, &w, w_at);
  }
}
