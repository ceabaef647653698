// Convolution on the CPU. 3x3 convolutions of few channels run on the kernels of layers/winograd.h,
// all others on oneDNN: one primitive per shape and direction, direct or Winograd, by a rule drawn
// from measurements (docs/benchmarks.md). oneDNN's weights are reordered from OIHW at each use; its
// weight gradients are reordered back on the way into the flat buffer, and add up there.
#include "layers/conv2d_plan.h"

#include <optional>
#include <string_view>
#include <utility>

#include "core/plan_cache.h"
#include "core/simd.h"
#include "layers/backend.h"
#include "layers/winograd.h"

namespace heddle::cpu {
namespace {

using dnnl::memory;

// Returns whether oneDNN's Winograd F(4x4, 3x3) pays: it needs a quarter of the multiplications and
// was faster for every 3x3 stride-1 layer of at least 32 channels, with 16 channels for the weight
// gradient only, if its tiles fill the products that it turns into. It needs fp32.
bool prefer_winograd(const ConvProblem& p) {
  const memory::dims w = dims_of(p.w), y = dims_of(p.y);
  if (w.size() != 4 || w[2] != 3 || w[3] != 3 || p.stride[0] != 1 || p.padding[0] != 1)
    return false;
  if (type_of(p.x) != memory::data_type::f32) return false;
  const int64_t channels = std::min(w[0], w[1]);
  if (y[2] < 4 || y[3] < 4) return false;
  const int64_t tiles = y[0] * ceil_div(y[2], 4) * ceil_div(y[3], 4);
  return p.pass == ConvPass::backward_weight ? channels >= 16 && tiles >= 24
                                             : channels >= 32 && tiles >= 40;
}

// Returns the extents of OIHW weights for oneDNN, with a fifth axis in front if there are groups.
memory::dims weight_dims(const Shape& w, int64_t groups) {
  if (groups == 1) return {w[0], w[1], w[2], w[3]};
  return {groups, w[0] / groups, w[1], w[2], w[3]};
}

memory::desc plain_weight(const Shape& w, int64_t groups) {
  return {weight_dims(w, groups), memory::data_type::f32,
          groups == 1 ? memory::format_tag::oihw : memory::format_tag::goihw};
}

const ConvPlan& conv_plan(ConvPass pass, const Tensor& x, const Shape& w, const Tensor& y,
                          const Conv2dOptions& o) {
  const PlanKey key = plan_key(pass, x.shape(), w, o.stride, o.padding, o.groups, x.dtype(),
                               x.layout(), y.layout());
  return cached_plan<ConvPlan>(key, [&] { return choose_conv_plan(pass, x, w, y, o); });
}

// Returns x in the format of a plan; itself where that is its own.
Tensor packed(const Tensor& x, const memory::desc& own, const memory::desc& wanted) {
  if (own == wanted) return x;
  Tensor out = memory_for(wanted);
  reorder_memory(own, x.raw(), wanted, out.raw());
  return out;
}

// Runs a plan whose argument `result` goes to x, which may have another format, plus beta * x.
void execute_into(const ConvPlan& plan, Arguments arguments, int result, const memory::desc& made,
                  const Tensor& x, const memory::desc& own, float beta = 0) {
  const bool direct = made == own && beta == 0;
  const Tensor out = direct ? x : memory_for(made);
  arguments.emplace(result, memory_at(made, out.raw()));
  execute(plan.plan, std::move(arguments));
  if (!direct) reorder_memory(made, out.raw(), own, x.raw(), beta);
}

// Returns whether layers/winograd.h is used: up to 64 channels its kernels were faster than
// oneDNN's in every direction.
bool own_winograd(const Tensor& x, const Shape& w, const Conv2dOptions& o) {
  constexpr int64_t kMaxChannels = 64;
  return kWideRegisters && x.size() > 0 && o.stride == 1 && o.padding == 1 && o.groups == 1 &&
         w[0] <= kMaxChannels && w[1] <= kMaxChannels && x.shape()[2] >= 4 && x.shape()[3] >= 4 &&
         winograd_fits(x, w);
}

}  // namespace

ConvPlan choose_conv_plan(ConvPass pass, const Tensor& x, const Shape& w, const Tensor& y,
                          const Conv2dOptions& o) {
  ConvProblem problem = {
      pass,
      describe(x),
      {weight_dims(w, o.groups), onednn_type(x.dtype()), memory::format_tag::any},
      describe(y),
      {o.stride, o.stride},
      {o.padding, o.padding}};
  if (prefer_winograd(problem)) {
    try {
      return make_conv_plan(problem, dnnl::algorithm::convolution_winograd);
    } catch (const dnnl::error&) {
      // Not offered for this shape, processor or release of oneDNN: direct below.
    }
  }
  const auto make_direct = [&] {
    return make_conv_plan(problem, dnnl::algorithm::convolution_direct);
  };
  std::optional<ConvPlan> slow;
  try {
    ConvPlan plan = make_direct();
    if (!plan.reference || x.size() == 0) return plan;
    slow = plan;
    for (memory::desc* map : {&problem.x, &problem.y})
      *map = {dims_of(*map), type_of(*map), memory::format_tag::nhwc};
    const ConvPlan copied = make_direct();
    return copied.reference ? *slow : copied;
  } catch (const dnnl::error& e) {
    if (slow) return *slow;
    throw InputError(concat("convolution of ", dtype_name(x.dtype()), " ", to_string(x.shape()),
                            " with ", to_string(w), ": not supported by this processor or oneDNN (",
                            e.what(), ")"));
  }
}

ConvPlan make_conv_plan(const ConvProblem& p, dnnl::algorithm algorithm) {
  // oneDNN's reference kernels, a hundred times slower, are called "ref:any".
  const auto plan = [](const auto& primitive, const auto& pd, const memory::desc& x,
                       const memory::desc& w, const memory::desc& y) {
    const bool reference = std::string_view(pd.impl_info_str()).starts_with("ref");
    return ConvPlan{{primitive, pd.scratchpad_desc()}, x, w, y, reference};
  };
  const auto forward_pd = make_descriptor<dnnl::convolution_forward::primitive_desc>(
      user_scratchpad(), dnnl::prop_kind::forward_training, algorithm, p.x, p.w, p.y, p.stride,
      p.padding, p.padding);
  if (p.pass == ConvPass::forward)
    return plan(dnnl::convolution_forward(forward_pd), forward_pd, forward_pd.src_desc(),
                forward_pd.weights_desc(), forward_pd.dst_desc());
  if (p.pass == ConvPass::backward_input) {
    const auto pd = make_backward_descriptor<dnnl::convolution_backward_data::primitive_desc>(
        forward_pd, algorithm, p.x, p.w, p.y, p.stride, p.padding, p.padding);
    return plan(dnnl::convolution_backward_data(pd), pd, pd.diff_src_desc(), pd.weights_desc(),
                pd.diff_dst_desc());
  }
  const memory::desc w(dims_of(p.w), memory::data_type::f32, memory::format_tag::any);
  const auto pd = make_backward_descriptor<dnnl::convolution_backward_weights::primitive_desc>(
      forward_pd, algorithm, p.x, w, p.y, p.stride, p.padding, p.padding);
  return plan(dnnl::convolution_backward_weights(pd), pd, pd.src_desc(), pd.diff_weights_desc(),
              pd.diff_dst_desc());
}

ConvLayouts conv2d_layouts(const Tensor& x, int64_t out_channels, const Conv2dOptions& o) {
  const int64_t in = x.shape()[1];
  if (x.layout() == Layout::plain) {
    if (in > 4 || o.groups > 1 || out_channels % 16 != 0) return {Layout::plain, Layout::plain};
    // The first convolution, from images, sets the layout of the whole network.
    // Without AVX-512 oneDNN has blocks of 16 channels in its reference implementation only.
    if (x.dtype() == DType::bf16 || !has_avx512()) return {Layout::nhwc, Layout::nhwc};
    return {Layout::plain, Layout::c16};
  }
  // A group must fill whole blocks, or be a single channel.
  const bool depthwise = o.groups == in && o.groups == out_channels;
  const bool blocks = in / o.groups % 16 == 0 && out_channels / o.groups % 16 == 0;
  const bool c16 = x.layout() == Layout::c16 && out_channels % 16 == 0 && (blocks || depthwise);
  const Layout layout = c16 ? Layout::c16 : Layout::nhwc;
  return {layout, layout};
}

void conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& y, const Conv2dOptions& o) {
  if (own_winograd(x, w.shape(), o)) return winograd_forward(x, w, y);
  const ConvPlan& plan = conv_plan(ConvPass::forward, x, w.shape(), y, o);
  const Tensor weight = packed(w, plain_weight(w.shape(), o.groups), plan.w);
  const Tensor input = packed(x, describe(x), plan.x);
  execute_into(plan,
               {{DNNL_ARG_SRC, memory_at(plan.x, input.raw())},
                {DNNL_ARG_WEIGHTS, memory_at(plan.w, weight.raw())}},
               DNNL_ARG_DST, plan.y, y, describe(y));
}

void conv2d_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, float beta,
                            const Conv2dOptions& o) {
  if (x.size() == 0) {  // oneDNN leaves the result of an empty batch unwritten
    if (beta == 0.0f) dw.fill_zero();
    return;
  }
  if (own_winograd(x, dw.shape(), o)) return winograd_backward_weight(x, dy, dw, beta);
  const ConvPlan& plan = conv_plan(ConvPass::backward_weight, x, dw.shape(), dy, o);
  const Tensor input = packed(x, describe(x), plan.x), output = packed(dy, describe(dy), plan.y);
  execute_into(plan,
               {{DNNL_ARG_SRC, memory_at(plan.x, input.raw())},
                {DNNL_ARG_DIFF_DST, memory_at(plan.y, output.raw())}},
               DNNL_ARG_DIFF_WEIGHTS, plan.w, dw, plain_weight(dw.shape(), o.groups), beta);
}

void conv2d_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx,
                           const Conv2dOptions& o) {
  if (own_winograd(dx, w.shape(), o)) return winograd_backward_input(dy, w, dx);
  const ConvPlan& plan = conv_plan(ConvPass::backward_input, dx, w.shape(), dy, o);
  const Tensor weight = packed(w, plain_weight(w.shape(), o.groups), plan.w);
  const Tensor output = packed(dy, describe(dy), plan.y);
  execute_into(plan,
               {{DNNL_ARG_WEIGHTS, memory_at(plan.w, weight.raw())},
                {DNNL_ARG_DIFF_DST, memory_at(plan.y, output.raw())}},
               DNNL_ARG_DIFF_SRC, plan.x, dx, describe(dx));
}

}  // namespace heddle::cpu
