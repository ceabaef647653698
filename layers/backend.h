// The kernels of the layers, one function per backend: HEDDLE_DISPATCH (core/shared_kernel.h) calls
// the one for a device. Shapes and types have been checked by the layer; tensors are f32 or bf16
// unless said otherwise, parameters and their gradients f32. Internal to layers.
//
//   HEDDLE_DISPATCH(device, activation_forward(a, x, y));
#pragma once

#include <cstdint>

#include "core/parameters.h"
#include "core/sparse_matrix.h"
#include "core/tensor.h"
#include "layers/conv2d.h"

namespace heddle {

// The arguments that determine a dropout mask.
struct DropoutKey {
  float p;
  uint64_t seed, step;
  int operation;  // number of the dropout within the step
  int64_t first;  // index of the first sample in the global batch
  int batch_axis;
  Tensor counters = {};  // where defined, step and first are read from here (TapeOptions::counters)
};

enum class ConvPass : uint8_t { forward, backward_weight, backward_input };

// The layouts of a convolution's input and output on a backend.
struct ConvLayouts {
  Layout input, output;
};

enum class PoolKind { max, average };  // average: padding counts as zeros

struct PoolWindow {
  int64_t kernel_h, kernel_w, stride, padding;
};

// All (C), f32.
struct BatchNormAffine {
  const Tensor &mean, &variance, &weight, &bias;
  float eps;
  // out: 1 / sqrt(variance + eps), weight * invstd, bias - mean * scale
  const Tensor &invstd, &scale, &shift;
};

// running = (1 - momentum) * running + momentum * new, unless any new value is non-finite. All (C),
// f32, except the counter `batches`, an i64 scalar.
struct BatchNormRunning {
  const Tensor &mean, &variance;
  float momentum, unbiased;  // unbiased: factor of the variance
  const Tensor &running_mean, &running_var, &batches;
};

struct BatchNormBackward {
  const Tensor& x;                              // input of forward (N, C, H, W)
  const Tensor& kept;                           // what batchnorm_apply returned; or undefined, if
                                                // there was no residual or no ReLU
  const Tensor &mean, &invstd, &scale, &shift;  // (C)
  const Tensor &dy, &dy2;                       // both are added; dy2 may be undefined
  const Tensor& dz;               // out: gradient before ReLU; may be dy; undefined: not needed
  const Tensor& dx;               // out: may be dy when dz is undefined or dy2 is
  const Tensor &dweight, &dbias;  // out (C)
  float beta_weight, beta_bias;   // how much of dweight and dbias is kept
  bool relu;
};

struct Activation {
  enum Kind : uint8_t { relu, leaky_relu, sigmoid, tanh, gelu } kind;
  float slope = 0;  // of leaky_relu
};

// Elementwise losses of two tensors, a and b: (a - b)^2, or the binary cross-entropy of sigmoid(a)
// against b.
enum class PairLoss : uint8_t { squared_error, binary_cross_entropy };

struct LstmCellBackward {
  const Tensor &gates, &c_before, &c;  // of forward: activated (B, 4H); (B, H)
  const Tensor& dy;                    // gradient of h from above (B, H), f32 or bf16
  const Tensor& dh;                    // from the next time step (B, H)
  const Tensor& dc;                    // in and out: from the next, for the previous step (B, H)
  const Tensor& dgates;                // out (B, 4H), in the type of dy; may alias gates
};

struct GruCellBackward {
  const Tensor &gates, &recurrent, &before;  // as forward leaves them (B, 3H); (B, H)
  const Tensor& dy;                          // gradient of h from above (B, H), f32 or bf16
  const Tensor& dh;  // in and out: from the next, for the previous step, without its product (B, H)
  const Tensor &dgates, &drecurrent;  // out (B, 3H), in the type of dy
};

// The axes of queries, keys and values: (steps, batch, parts, heads, width).
struct Heads {
  int64_t steps, batch, parts, heads, width;
};

namespace cpu {
// Backward reads `kept`: the input of GELU, the output of the others. dx may be dy. dropout_apply
// is its own backward: the mask is a function of the key (y may be x).
void activation_forward(const Activation& a, const Tensor& x, const Tensor& y);
void activation_backward(const Activation& a, const Tensor& kept, const Tensor& dy,
                         const Tensor& dx);
void dropout_apply(const Tensor& x, const Tensor& y, const DropoutKey& key);

// batchnorm_statistics computes mean and variance of x too. batchnorm_apply computes
// y = [relu](x * scale + shift + residual), residual may be undefined, and moves running statistics
// where they are given. With a residual and ReLU it returns what the backward pass needs of y:
// itself or, on CUDA, a bit for each value above 0, u8 with as many values in a byte as a thread
// loads.
void batchnorm_statistics(const Tensor& x, const BatchNormAffine& a);
void batchnorm_affine(const BatchNormAffine& a);
Tensor batchnorm_apply(const Tensor& x, const Tensor& scale, const Tensor& shift,
                       const Tensor& residual, bool relu, const Tensor& y,
                       const BatchNormRunning* running = nullptr);
void batchnorm_backward(const BatchNormBackward& a);

// The weight's backward computes dw = gradient + beta * dw.
ConvLayouts conv2d_layouts(const Tensor& x, int64_t out_channels, const Conv2dOptions& o);
void conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& y, const Conv2dOptions& o);
void conv2d_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, float beta,
                            const Conv2dOptions& o);
void conv2d_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx,
                           const Conv2dOptions& o);

// The backward pass adds to weight.grad and updates weight.written and weight.touched_rows.
void embedding_forward(const Tensor& tokens, const Tensor& weight, const Tensor& y);
void embedding_backward(const Tensor& dy, const Tensor& tokens, Parameter& weight);

// logits (N, C), labels (N), mean and dmean scalars. log_sums (N, 2): the largest logit m of a row
// and log sum_c exp(logits[n, c] - m); in one float, large logits would cost the second its
// digits. dlogits may alias logits.
void softmax_cross_entropy_forward(const Tensor& logits, const Tensor& labels, float smoothing,
                                   const Tensor& log_sums, const Tensor& mean);
void softmax_cross_entropy_backward(const Tensor& logits, const Tensor& labels,
                                    const Tensor& log_sums, float smoothing, const Tensor& dmean,
                                    const Tensor& dlogits);

// a, b, losses and da (n) f32; mean and dmean scalars. da is dmean / n times the derivative of
// the loss with respect to a.
void pair_losses(PairLoss loss, const Tensor& a, const Tensor& b, const Tensor& losses);
void mean_of(const Tensor& losses, const Tensor& mean);
void pair_loss_backward(PairLoss loss, const Tensor& a, const Tensor& b, const Tensor& dmean,
                        const Tensor& da);

// Copies `rows` pieces of `columns` elements, which lie from_stride and to_stride apart.
void copy_pieces(int64_t rows, int64_t columns, const Tensor& from, int64_t from_stride,
                 const Tensor& to, int64_t to_stride);

// Compute one time step. gates (B, 4H): the sum of both products as input, the activated i, f, g, o
// as output. bias (4H), c_before and c (B, H), h (B, H) f32 or bf16.
void lstm_cell_forward(const Tensor& gates, const Tensor& bias, const Tensor& c_before,
                       const Tensor& c, const Tensor& h);
void lstm_cell_backward(const LstmCellBackward& a);

// Compute one time step. gates (B, 3H): the input products before, the activated r, z, n after;
// recurrent (B, 3H): the recurrent products, of which the third part gets its bias. bias (3H),
// before and after (B, H), all f32.
void gru_cell_forward(const Tensor& gates, const Tensor& recurrent, const Tensor& bias_ih,
                      const Tensor& bias_hh, const Tensor& before, const Tensor& after);
void gru_cell_backward(const GruCellBackward& a);

// y = softmax of scale x in each row. With `causal` above 0, x is square matrices of so many rows
// one below the other, and a row ends at the diagonal. x and dy (R, C) f32, y and dx f32 or bf16.
void softmax_forward(const Tensor& x, float scale, int64_t causal, const Tensor& y);
void softmax_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dx);
// Rows x, y, dy, dx (R, C); statistics f32 (R, 2): mean and 1 / sqrt(variance + eps). products
// f32 (R, C): dy times the normalised x; dx may be undefined.
void layernorm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                       const Tensor& statistics, const Tensor& y);
void layernorm_backward(const Tensor& x, const Tensor& statistics, const Tensor& weight,
                        const Tensor& dy, const Tensor& products, const Tensor& dx);
// (steps, batch, parts, heads, width) -> (parts, batch, heads, steps, width), or back with `merge`.
void permute_heads(const Tensor& from, const Heads& heads, bool merge, const Tensor& to);

// pool_forward returns what the backward pass of max pooling needs (undefined for averages).
Tensor pool_forward(PoolKind kind, const Tensor& x, const Tensor& y, const PoolWindow& window);
void pool_backward(PoolKind kind, const Tensor& dy, const Tensor& workspace, const Tensor& dx,
                   const PoolWindow& window);

// Compute y = x[:, :, ::2, ::2] between channels of zeros, and dx, its adjoint.
void subsample_forward(const Tensor& x, const Tensor& y);
void subsample_backward(const Tensor& dy, const Tensor& dx);

// y = a x, with a's entries added in their order; y = x transposed + beta y, f32.
void add_transposed(const Tensor& x, float beta, const Tensor& y);
void sparse_matmul(const SparseMatrix& a, const Tensor& x, const Tensor& y);
}  // namespace cpu

namespace cuda {
void activation_forward(const Activation& a, const Tensor& x, const Tensor& y);
void activation_backward(const Activation& a, const Tensor& kept, const Tensor& dy,
                         const Tensor& dx);
void dropout_apply(const Tensor& x, const Tensor& y, const DropoutKey& key);

void batchnorm_statistics(const Tensor& x, const BatchNormAffine& a);
void batchnorm_affine(const BatchNormAffine& a);
Tensor batchnorm_apply(const Tensor& x, const Tensor& scale, const Tensor& shift,
                       const Tensor& residual, bool relu, const Tensor& y,
                       const BatchNormRunning* running = nullptr);
void batchnorm_backward(const BatchNormBackward& a);

// A first convolution over squares of pixels (layers/stem_cuda.cu): x (N, C, H, W) and w (O, C, K,
// L) as bf16 of folded_map_shape() and folded_weight_shape(), channels last.
bool folds(const Tensor& x, const Conv2dOptions& o);
Shape folded_map_shape(const Shape& y, const Shape& w);
Shape folded_weight_shape(const Shape& w);
Tensor fold_map(const Tensor& x, const Shape& shape, int64_t padding);
Tensor fold_weight(const Tensor& w);
void unfold_gradient(const Tensor& folded, const Tensor& dw, float beta);  // + beta * dw

ConvLayouts conv2d_layouts(const Tensor& x, int64_t out_channels, const Conv2dOptions& o);
void conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& y, const Conv2dOptions& o);
void conv2d_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dw, float beta,
                            const Conv2dOptions& o);
void conv2d_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx,
                           const Conv2dOptions& o);

void embedding_forward(const Tensor& tokens, const Tensor& weight, const Tensor& y);
void embedding_backward(const Tensor& dy, const Tensor& tokens, Parameter& weight);

void softmax_cross_entropy_forward(const Tensor& logits, const Tensor& labels, float smoothing,
                                   const Tensor& log_sums, const Tensor& mean);
void softmax_cross_entropy_backward(const Tensor& logits, const Tensor& labels,
                                    const Tensor& log_sums, float smoothing, const Tensor& dmean,
                                    const Tensor& dlogits);

void pair_losses(PairLoss loss, const Tensor& a, const Tensor& b, const Tensor& losses);
void mean_of(const Tensor& losses, const Tensor& mean);
void pair_loss_backward(PairLoss loss, const Tensor& a, const Tensor& b, const Tensor& dmean,
                        const Tensor& da);

void copy_pieces(int64_t rows, int64_t columns, const Tensor& from, int64_t from_stride,
                 const Tensor& to, int64_t to_stride);

void lstm_cell_forward(const Tensor& gates, const Tensor& bias, const Tensor& c_before,
                       const Tensor& c, const Tensor& h);
void lstm_cell_backward(const LstmCellBackward& a);

void gru_cell_forward(const Tensor& gates, const Tensor& recurrent, const Tensor& bias_ih,
                      const Tensor& bias_hh, const Tensor& before, const Tensor& after);
void gru_cell_backward(const GruCellBackward& a);

void softmax_forward(const Tensor& x, float scale, int64_t causal, const Tensor& y);
void softmax_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dx);
void layernorm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                       const Tensor& statistics, const Tensor& y);
void layernorm_backward(const Tensor& x, const Tensor& statistics, const Tensor& weight,
                        const Tensor& dy, const Tensor& products, const Tensor& dx);
void permute_heads(const Tensor& from, const Heads& heads, bool merge, const Tensor& to);

Tensor pool_forward(PoolKind kind, const Tensor& x, const Tensor& y, const PoolWindow& window);
void pool_backward(PoolKind kind, const Tensor& dy, const Tensor& workspace, const Tensor& dx,
                   const PoolWindow& window);

void subsample_forward(const Tensor& x, const Tensor& y);
void subsample_backward(const Tensor& dy, const Tensor& dx);

void add_transposed(const Tensor& x, float beta, const Tensor& y);
void sparse_matmul(const SparseMatrix& a, const Tensor& x, const Tensor& y);
}  // namespace cuda

}  // namespace heddle
