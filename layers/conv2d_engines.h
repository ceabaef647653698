// cuDNN's engines for a convolution, by its graph API: each algorithm of the older API is one
// configuration of one engine, the heuristics of this one name 20 to 40 (tiles, split sums).
// Internal to layers/conv2d_cuda.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <cudnn.h>

#include "core/tensor.h"
#include "layers/backend.h"

namespace heddle::cuda {

// One convolution in any pass: shapes of input, weight and output, all of one type.
struct ConvProblem {
  Shape x, w, y;
  Conv2dOptions options;
  DType dtype;
};

// An engine in one configuration, ready to run.
struct ConvEngine {
  std::shared_ptr<void> plan;  // cuDNN's execution plan
  size_t workspace = 0;        // bytes
};

// Returns at most `most` configurations of engines that cuDNN supports, as its heuristics rank
// them, with workspaces of at most max_workspace bytes and the precision that the Context asks for.
// They give the same bits in every run, and none is compiled at run time. `gpu`: properties of the
// GPU that they are for, which need not be in this machine (with cuDNN 9.8 or later); null: that of
// the Context. Throws Error where cuDNN fails.
std::vector<ConvEngine> find_conv_engines(ConvPass pass, const ConvProblem& problem, Layout layout,
                                          size_t most, size_t max_workspace,
                                          cudnnBackendDescriptor_t gpu = nullptr);

// Starts (left, right) -> out on the Context's main stream: x, w -> y or w, dy -> dx or x, dy ->
// dw, of the shapes, type and layout for which find_conv_engines() returned the plan. `workspace`
// has the engine's number of bytes. Returns cuDNN's status; CUDNN_STATUS_BAD_PARAM also for an
// address of left, right or out that is not a multiple of 16.
cudnnStatus_t run_conv_engine(const std::shared_ptr<void>& plan, const Tensor& left,
                              const Tensor& right, const Tensor& out, const Tensor& workspace);

}  // namespace heddle::cuda
