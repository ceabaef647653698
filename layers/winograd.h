// Winograd convolution F(4x4, 3x3) on the CPU for few channels (Lavin and Gray, 2016): 3x3 kernels,
// stride 1, padding 1, f32, layout c16. A tile of 4x4 outputs takes 36 multiplications per channel
// pair instead of 144:   Y = Aᵀ [ (G w Gᵀ) ⊙ (Bᵀ d B) ] A,   d the 6x6 inputs under the tile.
// oneDNN's Winograd is made for many channels; up to about a hundred this one is faster, because a
// group of tiles stays in the cache from the first transform to the last.
#pragma once

#include "core/tensor.h"

namespace heddle::cpu {

// Returns whether these kernels support a convolution of this input and weight (O, C, 3, 3) at
// stride 1, padding 1.
bool winograd_fits(const Tensor& x, const Shape& weight);

// x (N, C, H, W), w (O, C, 3, 3) -> y (N, O, H, W).
void winograd_forward(const Tensor& x, const Tensor& w, const Tensor& y);
// dy (N, O, H, W), w -> dx (N, C, H, W).
void winograd_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx);
// Computes dw = gradient + beta * dw. The sum over tiles is split among threads: the same bits for
// the same number of threads.
void winograd_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, float beta);

}  // namespace heddle::cpu
