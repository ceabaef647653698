#include "core/onednn.h"

#include <cstring>
#include <list>

#include "core/context.h"

namespace heddle::cpu {
namespace {

// The plans of reorders: few, so that a list searched by descriptor is enough.
struct ReorderCache {
  struct Entry {
    dnnl::memory::desc src, dst;
    float beta;
    Plan plan;
  };
  std::list<Entry> entries;
};

const Plan& reorder_plan(const dnnl::memory::desc& src, const dnnl::memory::desc& dst, float beta) {
  auto& entries = Context::current().state<ReorderCache>().entries;
  for (auto e = entries.begin(); e != entries.end(); ++e)
    if (e->beta == beta && e->src == src && e->dst == dst) return e->plan;
  const dnnl::engine& engine = onednn().engine;
  const dnnl::reorder::primitive_desc pd(engine, src, engine, dst, attributes_adding(beta));
  entries.push_back({src, dst, beta, {dnnl::reorder(pd), pd.scratchpad_desc()}});
  return entries.back().plan;
}

}  // namespace

OneDnn& onednn() { return Context::current().state<OneDnn>(); }

dnnl::memory::data_type onednn_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return dnnl::memory::data_type::f32;
    case DType::bf16:
      return dnnl::memory::data_type::bf16;
    case DType::i32:
      return dnnl::memory::data_type::s32;
    case DType::u8:
      return dnnl::memory::data_type::u8;
    case DType::i64:
      break;
  }
  throw Error(concat("oneDNN has no type ", dtype_name(dtype)));
}

dnnl::memory::desc describe(const Tensor& x) {
  using tag = dnnl::memory::format_tag;
  static constexpr tag plain[] = {tag::a, tag::a, tag::ab, tag::abc, tag::abcd, tag::abcde};
  const Shape& s = x.shape();
  const dnnl::memory::dims extents =
      s.rank() == 0 ? dnnl::memory::dims{1} : dnnl::memory::dims(s.begin(), s.end());
  tag format = plain[s.rank()];
  if (x.layout() == Layout::nhwc) format = tag::acdb;
  if (x.layout() == Layout::c16) format = tag::aBcd16b;
  return {extents, onednn_type(x.dtype()), format};
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

dnnl::primitive_attr attributes_adding(float beta) {
  dnnl::primitive_attr attributes = user_scratchpad();
  if (beta == 0.0f) return attributes;
  dnnl::post_ops accumulate;
  accumulate.append_sum(beta);
  attributes.set_post_ops(accumulate);
  return attributes;
}

dnnl::memory memory_at(const dnnl::memory::desc& desc, void* data) {
  return {desc, onednn().engine, data};
}

Tensor memory_for(const dnnl::memory::desc& desc) {
  const auto bytes = to_int64(desc.get_size());
  return bytes == 0 ? Tensor() : Tensor::empty_on(Device{}, {bytes}, DType::u8);
}

void execute(const Plan& plan, Arguments arguments) {
  const Tensor scratch = memory_for(plan.scratchpad);
  if (scratch.defined())
    arguments.emplace(DNNL_ARG_SCRATCHPAD, memory_at(plan.scratchpad, scratch.raw()));
  plan.primitive.execute(onednn().stream, arguments);
  onednn().stream.wait();
}

void reorder_memory(const dnnl::memory::desc& src_desc, void* src,
                    const dnnl::memory::desc& dst_desc, void* dst, float beta) {
  execute(reorder_plan(src_desc, dst_desc, beta),
          {{DNNL_ARG_FROM, memory_at(src_desc, src)}, {DNNL_ARG_TO, memory_at(dst_desc, dst)}});
}

void reorder(const Tensor& src, const Tensor& dst) {
  reorder_memory(describe(src), src.raw(), describe(dst), dst.raw());
}

}  // namespace heddle::cpu
