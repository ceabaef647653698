// oneDNN for the CPU backend: engine and stream of a Context, descriptors of tensors, primitives.
// Scratchpads are user-managed and come from the memory pool, so that primitives share them.
// Internal to backend files.
#pragma once

#include <dnnl.hpp>
#include <unordered_map>

#include "core/tensor.h"

namespace heddle::cpu {

struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

OneDnn& onednn();  // of the calling thread's Context

dnnl::memory::data_type onednn_type(DType dtype);
// Returns a descriptor of a tensor's shape, type and layout.
dnnl::memory::desc describe(const Tensor& x);
// Wraps the memory at `data`, which a descriptor describes; does not own it.
dnnl::memory memory_at(const dnnl::memory::desc& desc, void* data);
// Returns uninitialised memory of the size that a descriptor needs, u8 (bytes); undefined if 0.
Tensor memory_for(const dnnl::memory::desc& desc);

// Returns the attributes with which every primitive is made.
dnnl::primitive_attr user_scratchpad();
// Returns the same for a primitive that computes dst = result + beta * dst.
dnnl::primitive_attr attributes_adding(float beta);

// Makes the descriptor of a primitive from the parts of its operation's, which oneDNN 2 wants as
// one object and oneDNN 3 one by one. A backward pass takes the forward pass's descriptor as a
// hint.
template <class Descriptor, class... Parts>
Descriptor make_descriptor(const dnnl::primitive_attr& attributes, const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return Descriptor(onednn().engine, parts..., attributes);
#else
  return Descriptor({parts...}, attributes, onednn().engine);
#endif
}
template <class Descriptor, class Forward, class... Parts>
Descriptor make_backward_descriptor(const Forward& forward, const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return Descriptor(onednn().engine, parts..., forward, user_scratchpad());
#else
  return Descriptor({parts...}, user_scratchpad(), onednn().engine, forward);
#endif
}

// The extents and the type of a tensor, by their names in either version.
template <class Desc>
dnnl::memory::dims dims_of(const Desc& desc) {
  if constexpr (requires { desc.get_dims(); })
    return desc.get_dims();
  else
    return desc.dims();
}
template <class Desc>
dnnl::memory::data_type type_of(const Desc& desc) {
  if constexpr (requires { desc.get_data_type(); })
    return desc.get_data_type();
  else
    return desc.data_type();
}

// A primitive and the memory that it needs in addition to its arguments.
struct Plan {
  dnnl::primitive primitive;
  dnnl::memory::desc scratchpad;
};

using Arguments = std::unordered_map<int, dnnl::memory>;
// Runs a primitive and waits for it.
void execute(const Plan& plan, Arguments arguments);

// Computes dst = src + beta * dst for equal logical shapes, any type and layout.
void reorder_memory(const dnnl::memory::desc& src_desc, void* src,
                    const dnnl::memory::desc& dst_desc, void* dst, float beta = 0.0f);
void reorder(const Tensor& src, const Tensor& dst);

}  // namespace heddle::cpu
