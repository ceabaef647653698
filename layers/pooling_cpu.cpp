// Pooling on the CPU by oneDNN, in the layout of its input.
#include "core/onednn.h"
#include "core/plan_cache.h"
#include "layers/backend.h"

namespace heddle::cpu {
namespace {

struct PoolPlan {
  Plan plan;
  dnnl::memory::desc workspace;
};

PoolPlan make_plan(bool backward, PoolKind kind, const Tensor& x, const Tensor& y,
                   const PoolWindow& o) {
  using Forward = dnnl::pooling_forward;
  using Backward = dnnl::pooling_backward;
  const dnnl::memory::dims kernel = {o.kernel_h, o.kernel_w}, strides = {o.stride, o.stride},
                           pad = {o.padding, o.padding};
  const dnnl::algorithm algorithm = kind == PoolKind::max
                                        ? dnnl::algorithm::pooling_max
                                        : dnnl::algorithm::pooling_avg_include_padding;
  // The extents of the windows: in oneDNN 3 with their dilation, of which 0 is none.
  const auto with_windows = [&](const auto& f) {
#if DNNL_VERSION_MAJOR >= 3
    return f(strides, kernel, dnnl::memory::dims{0, 0}, pad, pad);
#else
    return f(strides, kernel, pad, pad);
#endif
  };
  const auto forward = with_windows([&](const auto&... windows) {
    return make_descriptor<Forward::primitive_desc>(user_scratchpad(),
                                                    dnnl::prop_kind::forward_training, algorithm,
                                                    describe(x), describe(y), windows...);
  });
  if (!backward) return {{Forward(forward), forward.scratchpad_desc()}, forward.workspace_desc()};
  const auto pd = with_windows([&](const auto&... windows) {
    return make_backward_descriptor<Backward::primitive_desc>(forward, algorithm, describe(x),
                                                              describe(y), windows...);
  });
  return {{Backward(pd), pd.scratchpad_desc()}, forward.workspace_desc()};
}

const PoolPlan& pool_plan(bool backward, PoolKind kind, const Tensor& x, const Tensor& y,
                          const PoolWindow& o) {
  const PlanKey key = plan_key(backward, kind, x.shape(), o.kernel_h, o.kernel_w, o.stride,
                               o.padding, x.dtype(), x.layout());
  return cached_plan<PoolPlan>(key, [&] { return make_plan(backward, kind, x, y, o); });
}

dnnl::memory memory_of(const Tensor& x) { return memory_at(describe(x), x.raw()); }

}  // namespace

Tensor pool_forward(PoolKind kind, const Tensor& x, const Tensor& y, const PoolWindow& window) {
  if (x.size() == 0) return {};  // oneDNN refuses an empty workspace
  const PoolPlan& p = pool_plan(false, kind, x, y, window);
  Arguments arguments = {{DNNL_ARG_SRC, memory_of(x)}, {DNNL_ARG_DST, memory_of(y)}};
  Tensor workspace = memory_for(p.workspace);
  if (workspace.defined())
    arguments.emplace(DNNL_ARG_WORKSPACE, memory_at(p.workspace, workspace.raw()));
  execute(p.plan, arguments);
  return workspace;
}

void pool_backward(PoolKind kind, const Tensor& dy, const Tensor& workspace, const Tensor& dx,
                   const PoolWindow& window) {
  if (dx.size() == 0) return;
  const PoolPlan& p = pool_plan(true, kind, dx, dy, window);
  Arguments arguments = {{DNNL_ARG_DIFF_SRC, memory_of(dx)}, {DNNL_ARG_DIFF_DST, memory_of(dy)}};
  if (workspace.defined())
    arguments.emplace(DNNL_ARG_WORKSPACE, memory_at(p.workspace, workspace.raw()));
  execute(p.plan, arguments);
}

}  // namespace heddle::cpu
