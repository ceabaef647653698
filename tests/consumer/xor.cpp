// The exclusive or, by a network with one hidden layer.
#include <heddle.h>

#include <cstdio>
using namespace heddle;

int main() {
  Context context;
  ParameterStore store;
  const Linear hidden(store, "hidden", 2, 8), out(store, "out", 8, 1);
  store.finalize(/*seed=*/1);
  Optimizer optimizer(store, make_adam({}));
  const Var x(Tensor::from({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2})),
      y(Tensor::from({0, 1, 1, 0}, {4, 1}));
  Var loss;
  for (int step = 0; step < 500; ++step) {
    Tape tape;
    loss = mse_loss(tape, out.forward(tape, tanh(tape, hidden.forward(tape, x))), y);
    optimizer.begin_step(/*lr=*/0.05);
    optimizer.backward(tape, loss);
    optimizer.finish_step();
  }
  std::printf("mean squared error %.6f\n", loss.value().item());
  return loss.value().item() < 0.001f ? 0 : 1;
}
