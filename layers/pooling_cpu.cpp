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
  const dnnl::memory::dims kernel = {o.kernel_h, o.kernel_w}, strides = {o.stride, o.stride},
                           pad = {o.padding, o.padding};
  const dnnl::algorithm algorithm = kind == PoolKind::max
                                        ? dnnl::algorithm::pooling_max
                                        : dnnl::algorithm::pooling_avg_include_padding;
  const dnnl::engine& engine = onednn().engine;
  const dnnl::pooling_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, algorithm, describe(x), describe(y), strides, kernel, pad,
       pad},
      user_scratchpad(), engine);
  if (!backward)
    return {{dnnl::pooling_forward(forward), forward.scratchpad_desc()}, forward.workspace_desc()};
  const dnnl::pooling_backward::primitive_desc pd(
      {algorithm, describe(x), describe(y), strides, kernel, pad, pad}, user_scratchpad(), engine,
      forward);
  return {{dnnl::pooling_backward(pd), pd.scratchpad_desc()}, forward.workspace_desc()};
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
  const PoolPlan& p = pool_plan(true, kind, dx, dy, window);
  Arguments arguments = {{DNNL_ARG_DIFF_SRC, memory_of(dx)}, {DNNL_ARG_DIFF_DST, memory_of(dy)}};
  if (workspace.defined())
    arguments.emplace(DNNL_ARG_WORKSPACE, memory_at(p.workspace, workspace.raw()));
  execute(p.plan, arguments);
}

}  // namespace heddle::cpu
