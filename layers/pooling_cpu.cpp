// Pooling on the CPU by oneDNN, in the layout of its input.
#include <array>
#include <map>

#include "core/context.h"
#include "core/onednn.h"
#include "layers/pooling.h"

namespace heddle::cpu {
namespace {

struct PoolPlan {
  Plan plan;
  dnnl::memory::desc workspace;
};

struct PoolPlans {
  std::map<std::array<int64_t, 12>, PoolPlan> plans;
};

const PoolPlan& pool_plan(bool backward, PoolKind kind, const Tensor& x, const Tensor& y,
                          int64_t kernel_h, int64_t kernel_w, int64_t stride, int64_t padding) {
  const std::array<int64_t, 12> key = {backward,
                                       static_cast<int64_t>(kind),
                                       x.shape()[0],
                                       x.shape()[1],
                                       x.shape()[2],
                                       x.shape()[3],
                                       kernel_h,
                                       kernel_w,
                                       stride,
                                       padding,
                                       static_cast<int64_t>(x.dtype()),
                                       static_cast<int64_t>(x.layout())};
  auto& plans = Context::current().state<PoolPlans>().plans;
  if (auto found = plans.find(key); found != plans.end()) return found->second;
  const dnnl::memory::dims kernel = {kernel_h, kernel_w}, strides = {stride, stride},
                           pad = {padding, padding};
  const dnnl::algorithm algorithm = kind == PoolKind::max
                                        ? dnnl::algorithm::pooling_max
                                        : dnnl::algorithm::pooling_avg_include_padding;
  const dnnl::engine& engine = onednn().engine;
  const dnnl::pooling_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, algorithm, describe(x), describe(y), strides, kernel, pad,
       pad},
      user_scratchpad(), engine);
  PoolPlan made;
  if (backward) {
    const dnnl::pooling_backward::primitive_desc pd(
        {algorithm, describe(x), describe(y), strides, kernel, pad, pad}, user_scratchpad(), engine,
        forward);
    made = {{dnnl::pooling_backward(pd), pd.scratchpad_desc()}, forward.workspace_desc()};
  } else {
    made = {{dnnl::pooling_forward(forward), forward.scratchpad_desc()}, forward.workspace_desc()};
  }
  return plans.emplace(key, made).first->second;
}

dnnl::memory at(const dnnl::memory::desc& desc, const Tensor& x) {
  return {desc, onednn().engine, x.raw()};
}

}  // namespace

Tensor pool_forward(PoolKind kind, const Tensor& x, const Tensor& y, int64_t kernel_h,
                    int64_t kernel_w, int64_t stride, int64_t padding) {
  const PoolPlan& p = pool_plan(false, kind, x, y, kernel_h, kernel_w, stride, padding);
  Arguments arguments = {{DNNL_ARG_SRC, at(describe(x), x)}, {DNNL_ARG_DST, at(describe(y), y)}};
  Tensor workspace;
  const auto bytes = static_cast<int64_t>(p.workspace.get_size());
  if (bytes > 0) {
    workspace = Tensor::empty_on(Device{}, {bytes}, DType::u8);
    arguments.emplace(DNNL_ARG_WORKSPACE, at(p.workspace, workspace));
  }
  execute(p.plan, arguments);
  return workspace;
}

void pool_backward(PoolKind kind, const Tensor& dy, const Tensor& workspace, const Tensor& dx,
                   int64_t kernel_h, int64_t kernel_w, int64_t stride, int64_t padding) {
  const PoolPlan& p = pool_plan(true, kind, dx, dy, kernel_h, kernel_w, stride, padding);
  Arguments arguments = {{DNNL_ARG_DIFF_SRC, at(describe(dx), dx)},
                         {DNNL_ARG_DIFF_DST, at(describe(dy), dy)}};
  if (workspace.defined()) arguments.emplace(DNNL_ARG_WORKSPACE, at(p.workspace, workspace));
  execute(p.plan, arguments);
}

}  // namespace heddle::cpu
