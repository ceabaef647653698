#include "layers/loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels.h"
#include "core/math.h"
#include "core/parallel.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {

namespace cpu {

void softmax_cross_entropy_forward(const Tensor& logits, const Tensor& labels, float smoothing,
                                   const Tensor& log_sums, const Tensor& mean) {
  const int64_t n = logits.shape()[0], classes = logits.shape()[1];
  std::vector<double> losses(n);
  parallel_for(n, std::max<int64_t>(1, 4096 / classes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* z = logits.data<float>() + i * classes;
      float top = z[0];
#pragma omp simd reduction(max : top)
      for (int64_t c = 0; c < classes; ++c) top = z[c] > top ? z[c] : top;
      float total = 0;
#pragma omp simd reduction(+ : total)
      for (int64_t c = 0; c < classes; ++c) total += exp_of(z[c] - top);
      const double log_total = std::log(to_double(total)), log_sum = top + log_total;
      log_sums.data<float>()[2 * i] = top;
      log_sums.data<float>()[2 * i + 1] = to_float(log_total);
      losses[i] = log_sum - to_double(z[labels.data<int32_t>()[i]]);
      // A class masked by -inf costs nothing unless smoothing gives it a share.
      if (smoothing == 0.0f) continue;
      double even = 0;
      for (int64_t c = 0; c < classes; ++c) even += z[c];
      even /= to_double(classes);
      losses[i] = (1.0 - smoothing) * losses[i] + smoothing * (log_sum - even);
    }
  });
  double sum = 0;
  for (double loss : losses) sum += loss;
  *mean.data<float>() = to_float(sum / to_double(n));
}

void softmax_cross_entropy_backward(const Tensor& logits, const Tensor& labels,
                                    const Tensor& log_sums, float smoothing, const Tensor& dmean,
                                    const Tensor& dlogits) {
  const int64_t n = dlogits.shape()[0], classes = dlogits.shape()[1];
  const float factor = dmean.item() / to_float(n);
  const float rest = smoothing / to_float(classes);
  parallel_for(n, std::max<int64_t>(1, 16384 / classes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* z = logits.data<float>() + i * classes;
      float* d = dlogits.data<float>() + i * classes;
      const float top = log_sums.data<float>()[2 * i],
                  log_total = log_sums.data<float>()[2 * i + 1];
#pragma omp simd
      for (int64_t c = 0; c < classes; ++c) d[c] = factor * (exp_of(z[c] - top - log_total) - rest);
      d[labels.data<int32_t>()[i]] -= factor * (1.0f - smoothing);
    }
  });
}

void mean_of(const Tensor& losses, const Tensor& mean) {
  *mean.data<float>() = to_float(sum(losses) / to_double(losses.size()));
}

}  // namespace cpu

Var softmax_cross_entropy(Tape& tape, const Var& logits, const Tensor& labels,
                          const CrossEntropyOptions& options) {
  TraceRange range("forward", "softmax cross-entropy");
  const int axes = logits.shape().rank();
  check(axes >= 1, "softmax cross-entropy: expected logits (..., C), found ",
        to_string(logits.shape()));
  check_shape(labels, Shape(std::vector<int64_t>(logits.shape().begin(), logits.shape().end() - 1)),
              "softmax cross-entropy labels");
  // The kernels run inside parallel regions, which no exception may leave.
  check(logits.value().dtype() == DType::f32 && labels.dtype() == DType::i32,
        "softmax cross-entropy: expected f32 logits and i32 labels, found ",
        dtype_name(logits.value().dtype()), " and ", dtype_name(labels.dtype()));
  const int64_t n = labels.size(), classes = logits.shape()[axes - 1];
  check(n > 0 && classes > 0, "softmax cross-entropy: empty logits ", to_string(logits.shape()));
  const float smoothing = options.label_smoothing;
  check(smoothing >= 0.0f && smoothing < 1.0f, "label smoothing: expected [0, 1), found ",
        smoothing);
  check_indices(labels, classes, "labels");
  const Device device = logits.value().device();
  const Tensor z = logits.value().reshape({n, classes});
  const Tensor log_sums = Tensor::empty_on(device, {n, 2});
  const Tensor targets = labels.to(device), mean = Tensor::empty_on(device, {});
  HEDDLE_DISPATCH(device, softmax_cross_entropy_forward(z, targets, smoothing, log_sums, mean));
  Var loss(mean, true);
  const bool overwrite = options.overwrite_logits;
  tape.record("softmax cross-entropy", loss, {},
              [logits, z, targets, log_sums, smoothing, overwrite, device](BackwardPass& pass) {
                const Tensor dmean = std::move(pass.dy).sum();
                const Tensor dlogits = overwrite ? z : Tensor::empty_like(z);
                HEDDLE_DISPATCH(device, softmax_cross_entropy_backward(z, targets, log_sums,
                                                                       smoothing, dmean, dlogits));
                logits.add_grad(dlogits.reshape(logits.shape()));
              });
  return loss;
}

namespace {

// Returns the mean loss of a against b, both f32 of one shape, on one device. The gradient of b, if
// it is needed, is that of a with the opposite sign.
Var pair_loss(Tape& tape, const char* name, PairLoss loss, const Var& a, const Var& b) {
  TraceRange range("forward", name);
  const Tensor &x = a.value(), target = converted(b.value(), b.value().dtype(), x.layout());
  check_shape(target, x.shape(), concat(name, ": target"));
  check(target.device() == x.device(), name, ": input on ", to_string(x.device()), ", target on ",
        to_string(target.device()));
  check(x.dtype() == DType::f32 && target.dtype() == DType::f32, name, ": expected f32, found ",
        dtype_name(x.dtype()), " and ", dtype_name(target.dtype()));
  check(x.size() > 0, name, ": empty input ", to_string(x.shape()));
  const Device device = x.device();
  const Tensor losses = Tensor::empty_like(x), mean = Tensor::empty_on(device, {});
  HEDDLE_DISPATCH(device, pair_losses(loss, x, target, losses));
  HEDDLE_DISPATCH(device, mean_of(losses, mean));
  Var y(mean, true);
  tape.record(name, y, {}, [a, b, target, loss, device](BackwardPass& pass) {
    const Tensor dmean = std::move(pass.dy).sum();
    const Tensor da = Tensor::empty_like(a.value());
    HEDDLE_DISPATCH(device, pair_loss_backward(loss, a.value(), target, dmean, da));
    if (b.needs_grad()) {
      const Tensor db = da.clone();
      scale(db, -1);
      b.add_grad(converted(db, DType::f32, b.value().layout()));
    }
    a.add_grad(da);
  });
  return y;
}

}  // namespace

Var mse_loss(Tape& tape, const Var& a, const Var& b) {
  return pair_loss(tape, "squared error", PairLoss::squared_error, a, b);
}

Var bce_with_logits(Tape& tape, const Var& logits, const Tensor& targets) {
  return pair_loss(tape, "binary cross-entropy", PairLoss::binary_cross_entropy, logits,
                   Var(targets.to(logits.value().device())));
}

int64_t count_top_k(const Tensor& logits, const Tensor& labels, int64_t k) {
  auto [n, classes] = dims<2>(logits, "logits");
  check_shape(labels, {n}, "labels");
  check_indices(labels, classes, "labels");
  const Tensor host = logits.to(Device{});
  int64_t hits = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* z = host.data<float>() + i * classes;
    const int32_t label = labels.data<int32_t>()[i];
    int64_t above = 0;  // NaN is never a hit
    for (int64_t c = 0; c < classes; ++c) above += c != label && !(z[c] < z[label]);
    hits += above < k;
  }
  return hits;
}

}  // namespace heddle
