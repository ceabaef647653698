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
