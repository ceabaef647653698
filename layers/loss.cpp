#include "layers/loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels.h"
#include "core/parallel.h"
#include "core/shared_kernel.h"
#include "core/trace.h"

namespace heddle {

namespace cpu {

// Returns the sum of the samples' losses.
double softmax_cross_entropy_forward(const Tensor& logits, const Tensor& labels, float smoothing,
                                     const Tensor& probabilities) {
  const int64_t n = logits.shape()[0], classes = logits.shape()[1];
  std::vector<double> losses(n);
  parallel_for(n, std::max<int64_t>(1, 4096 / classes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* z = logits.data<float>() + i * classes;
      float* p = probabilities.data<float>() + i * classes;
      float top = z[0];
      for (int64_t c = 1; c < classes; ++c) top = std::max(top, z[c]);
      double total = 0, shifted = 0;
      for (int64_t c = 0; c < classes; ++c) {
        p[c] = std::exp(z[c] - top);
        total += p[c];
        shifted += z[c] - top;
      }
      const float inverse = static_cast<float>(1.0 / total);
      for (int64_t c = 0; c < classes; ++c) p[c] *= inverse;
      const double log_total = std::log(total);
      const double nll = log_total - (z[labels.data<int32_t>()[i]] - top);
      const double uniform = log_total - shifted / static_cast<double>(classes);
      // A class masked by -inf costs nothing unless smoothing gives it a share.
      losses[i] = smoothing == 0.0f ? nll : (1.0 - smoothing) * nll + smoothing * uniform;
    }
  });
  double sum = 0;
  for (double loss : losses) sum += loss;
  return sum;
}

void softmax_cross_entropy_backward(const Tensor& probabilities, const Tensor& labels,
                                    float smoothing, float factor, const Tensor& dlogits) {
  const int64_t n = dlogits.shape()[0], classes = dlogits.shape()[1];
  const float rest = smoothing / static_cast<float>(classes);
  parallel_for(n, std::max<int64_t>(1, 16384 / classes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* p = probabilities.data<float>() + i * classes;
      float* d = dlogits.data<float>() + i * classes;
      for (int64_t c = 0; c < classes; ++c) d[c] = factor * (p[c] - rest);
      d[labels.data<int32_t>()[i]] -= factor * (1.0f - smoothing);
    }
  });
}

}  // namespace cpu

Var softmax_cross_entropy(Tape& tape, const Var& logits, const Tensor& labels,
                          const CrossEntropyOptions& options) {
  TraceRange range("forward", "softmax cross-entropy");
  auto [n, classes] = dims<2>(logits.value(), "softmax cross-entropy logits");
  check_shape(labels, {n}, "softmax cross-entropy labels");
  // The kernels run inside parallel regions, which no exception may leave.
  check(logits.value().dtype() == DType::f32 && labels.dtype() == DType::i32,
        "softmax cross-entropy: expected f32 logits and i32 labels, found ",
        dtype_name(logits.value().dtype()), " and ", dtype_name(labels.dtype()));
  check(n > 0 && classes > 0, "softmax cross-entropy: empty logits ", to_string(logits.shape()));
  const float smoothing = options.label_smoothing;
  check(smoothing >= 0.0f && smoothing < 1.0f, "label smoothing: expected [0, 1), found ",
        smoothing);
  for (int64_t i = 0; i < n; ++i) {
    const int32_t label = labels.data<int32_t>()[i];
    check(label >= 0 && label < classes, "label of sample ", i, ": expected below ", classes,
          ", found ", label);
  }
  const Device device = logits.value().device();
  const Tensor probabilities = Tensor::empty_like(logits.value());
  const double total = HEDDLE_DISPATCH(
      device, softmax_cross_entropy_forward(logits.value(), labels, smoothing, probabilities));
  const Tensor mean = Tensor::empty_on(device, {});
  fill(mean, static_cast<float>(total / static_cast<double>(n)));
  Var loss(mean, true);
  tape.record("softmax cross-entropy", loss, {},
              [logits, labels, probabilities, smoothing, n = n, device](BackwardPass& pass) {
                const float factor = std::move(pass.dy).sum().item() / static_cast<float>(n);
                HEDDLE_DISPATCH(
                    device, softmax_cross_entropy_backward(probabilities, labels, smoothing, factor,
                                                           probabilities));
                logits.add_grad(probabilities);
              });
  return loss;
}

int64_t count_top_k(const Tensor& logits, const Tensor& labels, int64_t k) {
  auto [n, classes] = dims<2>(logits, "logits");
  check_shape(labels, {n}, "labels");
  const Tensor host = logits.to(Device{});
  int64_t hits = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* z = host.data<float>() + i * classes;
    const int32_t label = labels.data<int32_t>()[i];
    check(label >= 0 && label < classes, "label of sample ", i, ": expected below ", classes,
          ", found ", label);
    int64_t above = 0;  // NaN is never a hit
    for (int64_t c = 0; c < classes; ++c) above += c != label && !(z[c] < z[label]);
    hits += above < k;
  }
  return hits;
}

}  // namespace heddle
