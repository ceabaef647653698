// A data set of one's own: pictures of 8 x 8 pixels that are brighter on the left or on the right.
#include <heddle.h>

#include <cstdio>
using namespace heddle;

class Halves : public ImageDataset {
 public:
  Halves()
      : ImageDataset({"halves", {"left", "right"}, 8, {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}}}) {}
  int64_t size() const override { return 512; }
  int label(int64_t index) const override { return static_cast<int>(index % 2); }
  void read(int64_t index, Image& out) const override {
    const Philox random(/*key=*/3, static_cast<uint64_t>(index));
    out.width = out.height = 8;
    out.pixels.resize(8 * 8 * 3);
    for (size_t i = 0; i < out.pixels.size(); ++i) {
      const bool bright = static_cast<int>(i / 3 % 8 / 4) == label(index);
      out.pixels[i] = static_cast<uint8_t>((bright ? 60 : 0) + 190 * random.uniform(i));
    }
  }
};

int main() {
  Context context;
  const auto images = std::make_shared<Halves>();
  const Loader loader(images, make_augmentation("none", images->info(), Split::train, 8),
                      {.batch_size = 32, .shuffle = true});
  ParameterStore store;
  const Conv2d conv(store, "conv", {.in = 3, .out = 16, .kernel = 3, .stride = 2});
  const Linear head(store, "head", 16 * 3 * 3, 2);
  store.finalize(/*seed=*/1);
  Optimizer optimizer(store, make_sgd({.momentum = 0.9}));
  double mean = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    mean = 0;
    for (const Batch& batch : loader.epoch(epoch)) {
      Tape tape;
      const Var maps = relu(tape, conv.forward(tape, Var(batch.images)));
      const Var loss =
          softmax_cross_entropy(tape, head.forward(tape, flatten(tape, maps)), batch.labels);
      mean += loss.value().item() / 16;
      optimizer.begin_step(/*lr=*/0.05);
      optimizer.backward(tape, loss);
      optimizer.finish_step();
    }
  }
  std::printf("mean loss of the last epoch %.4f\n", mean);
  return mean < 0.1 ? 0 : 1;
}
