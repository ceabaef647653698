#include "layers/small_cnn.h"

#include "layers/activation.h"
#include "layers/pooling.h"

namespace heddle {
namespace {

constexpr int64_t kChannels = 16;

Conv2d convolution(ParameterStore& store, const char* name, int64_t in, int64_t out) {
  return {store, name, {.in = in, .out = out, .kernel = 3, .padding = 1, .bias = true}};
}

// Returns the number of values after both poolings.
int64_t features(const SmallCnn::Options& options) {
  check(options.classes > 0, "classes: expected a positive number, found ", options.classes);
  check(options.image_size >= 4, "cnn: expected images of at least 4 pixels, found ",
        options.image_size);
  const int64_t side = options.image_size / 2 / 2;
  return 2 * kChannels * side * side;
}

}  // namespace

SmallCnn::SmallCnn(ParameterStore& store, const Options& options)
    : first_(convolution(store, "conv1", 3, kChannels)),
      second_(convolution(store, "conv2", kChannels, 2 * kChannels)),
      head_(store, "fc", features(options), options.classes) {}

Var SmallCnn::forward(Tape& tape, const Var& images) const {
  Var x = images;
  for (const Conv2d* layer : {&first_, &second_})
    x = max_pool2d(tape, relu(tape, layer->forward(tape, x)), {.kernel = 2, .stride = 2});
  return head_.forward(tape, flatten(tape, x));
}

}  // namespace heddle
