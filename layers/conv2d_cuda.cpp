// Convolution on CUDA: activations channels last, pointwise convolutions as one GEMM (core/gemm.h),
// all others by cuDNN, a first layer's over squares of pixels (stem_cuda.cu). The fp32 weights
// (OIHW) are laid out channels last, in the activations' type, at each use: that is cheap compared
// with the product, and there is no copy that could become stale. cuDNN computes weight gradients
// in the activations' type; they are added in fp32 on the way back into OIHW. Algorithms are ranked
// once per shape: by cuDNN's heuristics, and where the Context may tune, by their times, together
// with the engines of its graph API. With a deterministic Context only deterministic ones count, in
// the heuristics' order.
#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "core/elementwise.h"
#include "core/gemm.h"
#include "core/kernels.h"
#include "core/plan_cache.h"
#include "layers/backend.h"
#include "layers/conv2d_engines.h"

namespace heddle::cuda {
namespace {

// The pool keeps the largest that was tried. A stem's three channels are padded there: 512 images
// of 224 pixels in bf16 take 392 MiB.
constexpr size_t kMaxWorkspace = size_t{1} << 30;

using MapDescriptor = std::unique_ptr<cudnnTensorStruct, Destroy<cudnnDestroyTensorDescriptor>>;
using FilterDescriptor = std::unique_ptr<cudnnFilterStruct, Destroy<cudnnDestroyFilterDescriptor>>;
using ConvDescriptor =
    std::unique_ptr<cudnnConvolutionStruct, Destroy<cudnnDestroyConvolutionDescriptor>>;

struct Candidate {
  int algorithm;
  cudnnMathType_t math;
  size_t workspace;
  std::shared_ptr<void> engine = {};  // if any, it runs instead of the algorithm
};

struct ConvPlan {
  MapDescriptor x, y;
  FilterDescriptor w;
  ConvDescriptor conv;
  std::vector<Candidate> candidates = {};  // the best first; those that fail are removed
  bool timed = false;
};

int checked_int(int64_t n) {
  check(n <= std::numeric_limits<int>::max(), "convolution: an extent of ", n, " is too large");
  return to_int(n);
}

cudnnDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

cudnnTensorFormat_t format_of(Layout layout) {
  return layout == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
}

MapDescriptor describe_map(const Shape& s, DType dtype, Layout layout) {
  auto out = make_descriptor<MapDescriptor>(cudnnCreateTensorDescriptor);
  check_cudnn(
      cudnnSetTensor4dDescriptor(out.get(), format_of(layout), type_of(dtype), checked_int(s[0]),
                                 checked_int(s[1]), checked_int(s[2]), checked_int(s[3])),
      "cudnnSetTensor4dDescriptor");
  return out;
}

FilterDescriptor describe_filter(const Shape& s, DType dtype, Layout layout) {
  auto out = make_descriptor<FilterDescriptor>(cudnnCreateFilterDescriptor);
  check_cudnn(
      cudnnSetFilter4dDescriptor(out.get(), type_of(dtype), format_of(layout), checked_int(s[0]),
                                 checked_int(s[1]), checked_int(s[2]), checked_int(s[3])),
      "cudnnSetFilter4dDescriptor");
  return out;
}

// Returns how products are computed: fp32 as fp32, unless TF32 was requested; sums are always fp32.
cudnnMathType_t math_of(DType dtype) {
  if (dtype == DType::bf16) return CUDNN_TENSOR_OP_MATH;
  return Context::current().options().tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

ConvDescriptor describe_conv(const Conv2dOptions& o, DType dtype) {
  auto out = make_descriptor<ConvDescriptor>(cudnnCreateConvolutionDescriptor);
  const int padding = checked_int(o.padding), stride = checked_int(o.stride);
  check_cudnn(cudnnSetConvolution2dDescriptor(out.get(), padding, padding, stride, stride, 1, 1,
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor");
  check_cudnn(cudnnSetConvolutionGroupCount(out.get(), checked_int(o.groups)),
              "cudnnSetConvolutionGroupCount");
  check_cudnn(cudnnSetConvolutionMathType(out.get(), math_of(dtype)),
              "cudnnSetConvolutionMathType");
  return out;
}

// cuDNN's functions for each direction, (left, right) -> out. All take the descriptors of the
// operands in the same order.
struct Forward {  // x, w -> y
  static constexpr ConvPass kPass = ConvPass::forward;
  static constexpr const char* kName = "cudnnConvolutionForward";
  static constexpr auto kRank = cudnnGetConvolutionForwardAlgorithm_v7;
  static constexpr auto kWorkspace = cudnnGetConvolutionForwardWorkspaceSize;
  static constexpr auto kRun = cudnnConvolutionForward;
  using Ranked = cudnnConvolutionFwdAlgoPerf_t;
  static auto operands(const ConvPlan& p) { return std::tuple(p.x.get(), p.w.get(), p.y.get()); }
};

struct BackwardInput {  // w, dy -> dx
  static constexpr ConvPass kPass = ConvPass::backward_input;
  static constexpr const char* kName = "cudnnConvolutionBackwardData";
  static constexpr auto kRank = cudnnGetConvolutionBackwardDataAlgorithm_v7;
  static constexpr auto kWorkspace = cudnnGetConvolutionBackwardDataWorkspaceSize;
  static constexpr auto kRun = cudnnConvolutionBackwardData;
  using Ranked = cudnnConvolutionBwdDataAlgoPerf_t;
  static auto operands(const ConvPlan& p) { return std::tuple(p.w.get(), p.y.get(), p.x.get()); }
};

struct BackwardWeight {  // x, dy -> dw
  static constexpr ConvPass kPass = ConvPass::backward_weight;
  static constexpr const char* kName = "cudnnConvolutionBackwardFilter";
  static constexpr auto kRank = cudnnGetConvolutionBackwardFilterAlgorithm_v7;
  static constexpr auto kWorkspace = cudnnGetConvolutionBackwardFilterWorkspaceSize;
  static constexpr auto kRun = cudnnConvolutionBackwardFilter;
  using Ranked = cudnnConvolutionBwdFilterAlgoPerf_t;
  static auto operands(const ConvPlan& p) { return std::tuple(p.x.get(), p.y.get(), p.w.get()); }
};

// Returns the algorithms that support the convolution, as the heuristics rank them. Only the
// workspace query tells whether a combination is supported at all.
template <class Calls>
std::vector<Candidate> find_candidates(const ConvPlan& plan, DType dtype) {
  constexpr int kMost = 16;
  typename Calls::Ranked ranked[kMost] = {};
  int count = 0;
  const auto [left, right, result] = Calls::operands(plan);
  if (Calls::kRank(cudnn_handle(), left, right, plan.conv.get(), result, kMost, &count, ranked) !=
      CUDNN_STATUS_SUCCESS)
    count = 0;
  const bool deterministic = Context::current().options().deterministic;
  std::vector<Candidate> out;
  for (int i = 0; i < count; ++i) {
    const auto& r = ranked[i];
    if (r.status != CUDNN_STATUS_SUCCESS) continue;
    if (deterministic && r.determinism != CUDNN_DETERMINISTIC) continue;
    const cudnnMathType_t wanted = math_of(dtype);
    const cudnnMathType_t math = wanted == CUDNN_FMA_MATH ? wanted : r.mathType;
    size_t bytes = 0;
    check_cudnn(cudnnSetConvolutionMathType(plan.conv.get(), math), "cudnnSetConvolutionMathType");
    if (Calls::kWorkspace(cudnn_handle(), left, right, plan.conv.get(), result, r.algo, &bytes) !=
        CUDNN_STATUS_SUCCESS)
      continue;
    if (bytes <= kMaxWorkspace) out.push_back({to_int(r.algo), math, bytes});
  }
  (void)cudaGetLastError();  // of refused queries: the next kernel would report it
  return out;
}

template <class Calls>
ConvPlan& conv_plan(const ConvProblem& p, Layout layout) {
  const PlanKey key = plan_key(Calls::kPass, p.x, p.w, p.options.stride, p.options.padding,
                               p.options.groups, p.dtype, layout);
  return cached_plan<ConvPlan>(key, [&] {
    ConvPlan plan{describe_map(p.x, p.dtype, layout), describe_map(p.y, p.dtype, layout),
                  describe_filter(p.w, p.dtype, layout), describe_conv(p.options, p.dtype)};
    plan.candidates = find_candidates<Calls>(plan, p.dtype);
    return plan;
  });
}

// Runs one algorithm. If there is no memory for its workspace, sets `shortage` and returns a
// failure.
template <class Calls>
cudnnStatus_t attempt(const ConvPlan& plan, const Candidate& c, const Tensor& a, const Tensor& b,
                      const Tensor& out, std::exception_ptr& shortage) {
  Tensor space;
  try {
    space = Tensor::empty_on(out.device(), {to_int64(c.workspace)}, DType::u8);
  } catch (const Error&) {
    shortage = std::current_exception();
    return CUDNN_STATUS_ALLOC_FAILED;
  }
  const auto run = [&] {
    if (c.engine != nullptr) return run_conv_engine(c.engine, a, b, out, space);
    check_cudnn(cudnnSetConvolutionMathType(plan.conv.get(), c.math),
                "cudnnSetConvolutionMathType");
    const auto [left, right, result] = Calls::operands(plan);
    const auto algorithm = static_cast<decltype(Calls::Ranked::algo)>(c.algorithm);
    const float one = 1, zero = 0;
    return Calls::kRun(cudnn_handle(), &one, left, a.raw(), right, b.raw(), plan.conv.get(),
                       algorithm, space.raw(), to_size(space.bytes()), &zero, result, out.raw());
  };
  const cudnnStatus_t status = run();
  // Clears the error of a failed attempt, which the next kernel would report.
  if (status != CUDNN_STATUS_SUCCESS) (void)cudaGetLastError();
  return status;
}

constexpr int kTimedRuns = 5;    // of what is timed: one alone would be too short to measure
constexpr float kHopeless = 50;  // ms of a first run, which also loads the kernel
constexpr size_t kMostEngines = 16;

// Adds engines to the candidates and orders them by the time of a few runs after a first one, which
// is enough where it takes far too long. Those that fail come last, and convolve() reports why if
// it reaches them; so do algorithms without tensor cores for bf16, untimed, where there are
// engines: on an H100 some take 0.3 s a run. The largest workspace goes first, so that the others
// find its memory in the pool.
template <class Calls>
void rank_by_time(ConvPlan& plan, const ConvProblem& p, const Tensor& a, const Tensor& b,
                  const Tensor& out) {
  try {
    for (auto& e : find_conv_engines(Calls::kPass, p, out.layout(), kMostEngines, kMaxWorkspace))
      plan.candidates.push_back({-1, CUDNN_DEFAULT_MATH, e.workspace, std::move(e.plan)});
  } catch (const Error&) {  // a version of cuDNN that does not support this: the algorithms remain
  }
  (void)cudaGetLastError();  // of engines that were refused
  const bool engines = !plan.candidates.empty() && plan.candidates.back().engine != nullptr;
  const auto is_slow = [&](const Candidate& c) {
    return engines && p.dtype == DType::bf16 && !c.engine && c.math == CUDNN_DEFAULT_MATH;
  };
  std::stable_sort(plan.candidates.begin(), plan.candidates.end(),
                   [](const auto& x, const auto& y) { return x.workspace > y.workspace; });
  std::vector<std::pair<float, Candidate>> timed;
  std::exception_ptr shortage;
  const auto time = [&](const Candidate& c, int runs) {
    bool succeeds = true;
    const float ms = stream_milliseconds([&] {
      for (int i = 0; i < runs && succeeds; ++i)
        succeeds = attempt<Calls>(plan, c, a, b, out, shortage) == CUDNN_STATUS_SUCCESS;
    });
    return succeeds ? ms / static_cast<float>(runs) : std::numeric_limits<float>::infinity();
  };
  float least = kHopeless;
  for (const Candidate& c : plan.candidates) {
    timed.emplace_back(is_slow(c) ? std::numeric_limits<float>::infinity() : time(c, 1), c);
    least = std::min(least, timed.back().first);
  }
  for (auto& [ms, c] : timed)
    if (ms <= std::max(kHopeless, 10 * least)) ms = time(c, kTimedRuns);
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  for (size_t i = 0; i < timed.size(); ++i) plan.candidates[i] = timed[i].second;
  plan.timed = true;
}

// Computes (a, b) -> out, in `to` where that has the layout used, else in new memory. Not
// everything is offered channels last (fp32, groups): then the plain layout is used.
template <class Calls>
Tensor convolve(const ConvProblem& p, const Tensor& a, const Tensor& b, const Shape& shape,
                const Tensor& to) {
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;  // of the last attempt
  std::exception_ptr shortage;
  for (Layout layout : {Layout::nhwc, Layout::plain}) {
    ConvPlan& plan = conv_plan<Calls>(p, layout);
    if (plan.candidates.empty()) continue;
    const Tensor left = converted(a, p.dtype, layout), right = converted(b, p.dtype, layout);
    Tensor out = to.defined() && to.layout() == layout
                     ? to
                     : Tensor::empty_on(a.device(), shape, p.dtype, layout);
    const ContextOptions& options = Context::current().options();
    if (options.tune && !options.deterministic && !plan.timed && !stream_is_recorded())
      rank_by_time<Calls>(plan, p, left, right, out);
    for (auto c = plan.candidates.begin(); c != plan.candidates.end();) {
      status = attempt<Calls>(plan, *c, left, right, out, shortage);
      if (status == CUDNN_STATUS_SUCCESS) return out;
      // A recorded step must use the algorithm of the previous steps, and excludes none for later
      // ones.
      if (stream_is_recorded()) check_cudnn(status, "recorded convolution");
      // A shortage of memory is temporary; an unsupported algorithm remains unsupported.
      c = status == CUDNN_STATUS_ALLOC_FAILED ? std::next(c) : plan.candidates.erase(c);
    }
  }
  if (shortage != nullptr) std::rethrow_exception(shortage);
  const std::string what = concat(Calls::kName, " of ", dtype_name(p.dtype), " ", to_string(p.x),
                                  " with ", to_string(p.w));
  check_cudnn(status, what.c_str());
  const bool deterministic = Context::current().options().deterministic;
  throw Error(concat("cuDNN: ", what, ": no ", deterministic ? "deterministic " : "",
                     "algorithm with a workspace of at most ", kMaxWorkspace >> 20, " MiB"));
}

bool is_pointwise(const Shape& w, const Conv2dOptions& o) {
  return w[2] == 1 && w[3] == 1 && o.stride == 1 && o.padding == 0 && o.groups == 1;
}

// Return a map as (pixels, channels), a pointwise weight as (O, C).
Tensor pixels_of(const Tensor& x) {
  const Shape& s = x.shape();
  return Tensor::view_as(x, {s[0] * s[2] * s[3], s[1]});
}
Tensor matrix_of(const Tensor& w) { return w.reshape({w.shape()[0], w.shape()[1]}); }

// Computes dst = src + beta * dst, src in its type and layout, dst fp32 OIHW.
void add_gradient(const Tensor& src, const Tensor& dst, float beta) {
  const bool last = src.layout() == Layout::nhwc;  // else both orders are the same: no channels
  reorder(last ? src : Tensor::view_as(src, {src.size(), 1, 1, 1}), dst, beta);
}

// Returns the problem that cuDNN solves for x, y and a weight.
ConvProblem problem_of(const Tensor& x, const Shape& w, const Shape& y, const Conv2dOptions& o) {
  if (!folds(x, o)) return {x.shape(), w, y, o, x.dtype()};
  const Conv2dOptions dense = {.stride = 1, .padding = 0, .groups = 1};
  return {folded_map_shape(y, w), folded_weight_shape(w), y, dense, x.dtype()};
}

}  // namespace

ConvLayouts conv2d_layouts(const Tensor& x, int64_t, const Conv2dOptions& o) {
  return {folds(x, o) ? x.layout() : Layout::nhwc, Layout::nhwc};
}

void conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& y, const Conv2dOptions& o) {
  if (y.size() == 0) return;  // cuDNN cannot describe empty maps
  if (is_pointwise(w.shape(), o))
    return fastest_gemm(pixels_of(x), converted(matrix_of(w), x.dtype(), Layout::plain),
                        pixels_of(y), {.transpose_b = true});
  const ConvProblem p = problem_of(x, w.shape(), y.shape(), o);
  const Tensor out =
      folds(x, o) ? convolve<Forward>(p, fold_map(x, p.x, o.padding), fold_weight(w), y.shape(), y)
                  : convolve<Forward>(p, x, w, y.shape(), y);
  if (out.raw() != y.raw()) convert(out, y);
}

void conv2d_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, float beta,
                            const Conv2dOptions& o) {
  if (dy.size() == 0) {
    if (beta == 0.0f) dw.fill_zero();
    return;
  }
  if (is_pointwise(dw.shape(), o))
    return fastest_gemm(pixels_of(dy), pixels_of(x), matrix_of(dw),
                        {.transpose_a = true, .beta = beta});
  const ConvProblem p = problem_of(x, dw.shape(), dy.shape(), o);
  if (folds(x, o)) {
    const Tensor map = fold_map(x, p.x, o.padding);
    const Tensor folded = convolve<BackwardWeight>(p, map, dy, p.w, {});
    return unfold_gradient(converted(folded, p.dtype, Layout::nhwc), dw, beta);
  }
  add_gradient(convolve<BackwardWeight>(p, x, dy, dw.shape(), {}), dw, beta);
}

void conv2d_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx,
                           const Conv2dOptions& o) {
  if (dx.size() == 0) return;
  if (is_pointwise(w.shape(), o))
    return fastest_gemm(pixels_of(dy), converted(matrix_of(w), dy.dtype(), Layout::plain),
                        pixels_of(dx));
  const Tensor out = convolve<BackwardInput>({dx.shape(), w.shape(), dy.shape(), o, dy.dtype()}, w,
                                             dy, dx.shape(), dx);
  if (out.raw() != dx.raw()) convert(out, dx);
}

}  // namespace heddle::cuda
