// Four learners with ScaleCom and a model of one's own: points in a plane, labelled by quadrant.
#include <heddle.h>

#include <cstdio>
using namespace heddle;

int main() {
  double last = 1;
  run_threads(4, [&](Communicator& comm) {
    Context context({.threads = 1});
    ParameterStore store;
    const Linear first(store, "first", 2, 64), second(store, "second", 64, 64),
        out(store, "out", 64, 4);
    store.finalize(/*seed=*/1);
    DataParallelOptimizer optimizer(store, make_sgd({.momentum = 0.9}), comm, {}, {},
                                    make_reducer(parse_compress("scalecom:rate=20"), {}, store));
    const Philox random(/*key=*/5,
                        static_cast<uint64_t>(comm.rank()));  // each has points of its own
    for (uint64_t step = 0; step < 300; ++step) {
      std::vector<float> points;
      std::vector<int32_t> quadrants;
      for (uint64_t i = 0; i < 16; ++i) {
        const float x = random.normal(step * 32 + 2 * i), y = random.normal(step * 32 + 2 * i + 1);
        points.insert(points.end(), {x, y});
        quadrants.push_back((x < 0 ? 1 : 0) + (y < 0 ? 2 : 0));
      }
      Tape tape;
      Var x = relu(tape, first.forward(tape, Var(Tensor::from(points, {16, 2}))));
      x = relu(tape, second.forward(tape, x));
      const Var loss =
          softmax_cross_entropy(tape, out.forward(tape, x), Tensor::from_integers(quadrants));
      optimizer.begin_step(/*lr=*/0.05);
      optimizer.backward(tape, loss);
      optimizer.finish_step();
      if (comm.rank() == 0 && step == 299) last = loss.value().item();
    }
  });
  std::printf("loss %.4f\n", last);
  return last < 0.3 ? 0 : 1;
}
