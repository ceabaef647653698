// A line through noisy points: y = 3 x - 2.
#include <heddle.h>

#include <cmath>
#include <cstdio>
using namespace heddle;

int main() {
  Context context;
  ParameterStore store;
  const Linear line(store, "line", 1, 1);
  store.finalize(/*seed=*/1);
  Optimizer optimizer(store, make_sgd({.momentum = 0.9}));
  const Philox random(/*key=*/7, /*stream=*/0);
  std::vector<float> xs, ys;
  for (uint64_t i = 0; i < 256; ++i) {
    xs.push_back(2 * random.uniform(i) - 1);
    ys.push_back(3 * xs.back() - 2 + 0.1f * random.normal(1000 + i));
  }
  RowBatches batches({Tensor::from(xs, {256, 1}), Tensor::from(ys, {256, 1})}, {.batch_size = 32});
  for (int64_t step = 0; step < 200; ++step) {
    const auto batch = batches.batch(step / batches.per_epoch(), step % batches.per_epoch());
    Tape tape;
    const Var loss = mse_loss(tape, line.forward(tape, Var(batch[0])), Var(batch[1]));
    optimizer.begin_step(/*lr=*/0.05);
    optimizer.backward(tape, loss);
    optimizer.finish_step();
  }
  const float slope = line.weight->value.to_vector()[0], offset = line.bias->value.to_vector()[0];
  std::printf("y = %.3f x %+.3f\n", slope, offset);
  return std::abs(slope - 3) < 0.05f && std::abs(offset + 2) < 0.05f ? 0 : 1;
}
