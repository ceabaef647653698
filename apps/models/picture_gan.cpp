#include "apps/models/picture_gan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "apps/models/png.h"
#include "core/error.h"
#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/loss.h"

namespace heddle {
namespace {

constexpr int64_t kGeneratorUnits = 128, kTeacherUnits = 64;
constexpr float kSlope = 0.2f;  // of the teachers' leaky ReLU

}  // namespace

Pictures read_pictures(const ImageDataset& set, int64_t begin, int64_t end) {
  constexpr int64_t side = Pictures::kSide;
  Pictures out{Tensor::zeros({end - begin, Pictures::kPixels}),
               Tensor::empty_on(Device{}, {end - begin}, DType::i32)};
  Image image;
  for (int64_t i = begin; i < end; ++i) {
    set.read(i, image);
    check(image.width == image.height && image.width % side == 0, set.info().name,
          ": expected square images of a multiple of ", side, " pixels, found ", image.width, " x ",
          image.height);
    const int64_t block = image.width / side, size = image.width;
    float* pixels = out.pixels.data<float>() + (i - begin) * Pictures::kPixels;
    for (int64_t at = 0; at < 3 * size * size; ++at) {
      const int64_t y = at / (3 * size), x = at / 3 % size;
      pixels[y / block * side + x / block] +=
          to_float(image.pixels[to_size(at)]) / to_float(255 * 3 * block * block);
    }
    out.labels.data<int32_t>()[i - begin] = image.label;
  }
  return out;
}

Generator::Generator(ParameterStore& store, int64_t classes)
    : classes_(classes),
      first_(store, "first", kNoise + classes, kGeneratorUnits),
      second_(store, "second", kGeneratorUnits, Pictures::kPixels) {}

Var Generator::forward(Tape& tape, const Tensor& labels, const Philox& random) const {
  const int64_t n = labels.size(), width = kNoise + classes_;
  const Tensor input = Tensor::zeros({n, width});
  for (int64_t i = 0; i < n; ++i) {
    float* row = input.data<float>() + i * width;
    for (int64_t j = 0; j < kNoise; ++j) row[j] = random.normal(to_size(i * kNoise + j));
    row[kNoise + labels.data<int32_t>()[i]] = 1;
  }
  return second_.forward(tape, relu(tape, first_.forward(tape, Var(input))));
}

Tensor labels_in_turn(int64_t n, int64_t classes, int64_t first) {
  Tensor out = Tensor::empty_on(Device{}, {n}, DType::i32);
  for (int64_t i = 0; i < n; ++i)
    out.data<int32_t>()[i] = static_cast<int32_t>((first + i) % classes);
  return out;
}

Pictures Generator::generate(int64_t count, const Philox& random, int64_t first) const {
  const Tensor labels = labels_in_turn(count, classes_, first);
  Tape tape({.training = false});
  return {forward(tape, labels, random).value(), labels};
}

Teachers::Teacher::Teacher(int64_t classes)
    : first(store, "first", Pictures::kPixels, kTeacherUnits),
      second(store, "second", kTeacherUnits, classes + 1) {}  // the last: generated

Var Teachers::Teacher::forward(Tape& tape, const Var& pixels) const {
  return second.forward(tape, leaky_relu(tape, first.forward(tape, pixels), kSlope));
}

Teachers::Teachers(Pictures data, int64_t count, int64_t classes, uint64_t seed)
    : data_(std::move(data)), classes_(classes) {
  check(count > 0 && data_.size() >= count, "teachers: expected a picture for each of ", count,
        ", found ", data_.size());
  for (int64_t i = 0; i < count; ++i) {
    Teacher& teacher = teachers_.emplace_back(classes);
    teacher.store.finalize(seed + static_cast<uint64_t>(i));
    teacher.optimizer = std::make_unique<Optimizer>(teacher.store, make_adam({.beta1 = 0.5}));
  }
}

double Teachers::train(const Pictures& generated, double lr) {
  const Tensor fake =
      Tensor::from_integers(std::vector<int32_t>(to_size(generated.size()), to_int(classes_)));
  double sum = 0;
  for (int64_t i = 0; i < count(); ++i) {
    Teacher& teacher = teachers_[to_size(i)];
    const int64_t begin = data_.size() * i / count(), end = data_.size() * (i + 1) / count();
    teacher.optimizer->begin_step(lr);
    // Two passes whose gradients add up.
    for (const bool real : {true, false}) {
      Tape tape;
      const Var loss =
          real ? softmax_cross_entropy(tape,
                                       teacher.forward(tape, Var(data_.pixels.slice(begin, end))),
                                       data_.labels.slice(begin, end))
               : softmax_cross_entropy(tape, teacher.forward(tape, Var(generated.pixels)), fake);
      sum += to_double(loss.value().item());
      tape.backward(loss);
    }
    (void)teacher.optimizer->finish_step();
  }
  return sum / to_double(count());
}

Tensor Teachers::gradient(int64_t i, const Pictures& generated) {
  const Var pixels(generated.pixels, true);
  Tape tape;
  tape.backward(
      softmax_cross_entropy(tape, teachers_[to_size(i)].forward(tape, pixels), generated.labels));
  return pixels.take_grad().sum();
}

NamedTensors Teachers::named_state() const {
  NamedTensors out;
  for (size_t i = 0; i < teachers_.size(); ++i) {
    out.emplace_back(concat("teacher.", i, ".values"), teachers_[i].store.values());
    for (const auto& [name, x] : teachers_[i].optimizer->named_state())
      out.emplace_back(concat("teacher.", i, ".", name), x);
  }
  return out;
}

PictureScore picture_score(const Pictures& generated, const Pictures& real, int64_t classes,
                           uint64_t seed) {
  constexpr int64_t kBatch = 50, kUnits = 128;
  constexpr int kEpochs = 5;
  ParameterStore store;
  const Linear first(store, "first", Pictures::kPixels, kUnits),
      second(store, "second", kUnits, classes);
  store.finalize(seed);
  Optimizer optimizer(store, make_adam({}));
  const auto forward = [&](Tape& tape, const Tensor& pixels) {
    return second.forward(tape, relu(tape, first.forward(tape, Var(pixels))));
  };
  for (int64_t at = 0; at < kEpochs * generated.size(); at += kBatch) {
    const int64_t begin = at % generated.size(), end = std::min(begin + kBatch, generated.size());
    optimizer.begin_step(1e-3);
    Tape tape;
    tape.backward(softmax_cross_entropy(tape, forward(tape, generated.pixels.slice(begin, end)),
                                        generated.labels.slice(begin, end)));
    (void)optimizer.finish_step();
  }
  Tape tape({.training = false});
  const Var logits = forward(tape, real.pixels);
  return {to_double(softmax_cross_entropy(tape, logits, real.labels).value().item()),
          100 * to_double(count_top_k(logits.value(), real.labels, 1)) / to_double(real.size())};
}

std::string sample_sheet(const Pictures& pictures, int64_t classes) {
  constexpr int64_t side = Pictures::kSide, kScale = 3, kGap = 2;
  const int64_t rows = pictures.size() / classes, cell = side * kScale + kGap;
  const int64_t width = classes * cell + kGap, height = rows * cell + kGap;
  std::vector<uint8_t> sheet(to_size(width * height), 128);
  for (int64_t y = 0; y < height - kGap; ++y)
    for (int64_t x = 0; x < width - kGap; ++x) {
      const int64_t row = y / cell, column = x / cell;
      const int64_t py = y % cell / kScale, px = x % cell / kScale;
      if (py >= side || px >= side) continue;
      const float v =
          pictures.pixels
              .data<float>()[(row * classes + column) * Pictures::kPixels + py * side + px];
      sheet[to_size((y + kGap) * width + x + kGap)] =
          static_cast<uint8_t>(255 * std::clamp(v, 0.0f, 1.0f));
    }
  return encode_png(sheet, width, height, 1);
}

}  // namespace heddle
