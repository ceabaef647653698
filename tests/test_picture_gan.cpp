// The parts of train_dpgan: pictures, teachers, the score, and the sheet of samples.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "apps/models/picture_gan.h"
#include "core/context.h"
#include "core/error.h"
#include "core/kernels.h"
#include "data/shapes.h"

namespace heddle {
namespace {

// Two images of 16 blocks of 2 x 2 pixels a side: 0, 30, 60 and 90, plus a number of the block.
class Blocks final : public ImageDataset {
 public:
  explicit Blocks(int side) : ImageDataset({"blocks", {"a", "b"}, side, {}}), side_(side) {}
  int64_t size() const override { return 2; }
  int label(int64_t index) const override { return static_cast<int>(index); }
  void read(int64_t index, Image& out) const override {
    out.label = label(index);
    out.width = out.height = side_;
    out.pixels.resize(static_cast<size_t>(3 * side_ * side_));
    for (int i = 0; i < side_ * side_; ++i) {
      const int y = i / side_, x = i % side_, block = y / 2 * 16 + x / 2;
      const int value = (y % 2 * 2 + x % 2) * 30 + block % 50 + 10;
      for (int c = 0; c < 3; ++c)  // around their mean
        out.pixels[static_cast<size_t>(3 * i + c)] = static_cast<uint8_t>(value + 5 * (c - 1));
    }
  }

 private:
  int side_;
};

Pictures upright(Split split, int64_t count) {
  const auto set = render_shapes(
      split, {.image_size = 16, .train_images = count, .valid_images = count, .upright = true});
  return read_pictures(*set, 0, count);
}

TEST_CASE("pictures: blocks are averaged, colours too") {
  Context context;
  const Pictures p = read_pictures(Blocks(32), 0, 2);
  CHECK(p.labels.data<int32_t>()[1] == 1);
  for (int64_t i = 0; i < 2 * Pictures::kPixels; ++i)
    CHECK(static_cast<double>(p.pixels.data<float>()[i]) ==
          doctest::Approx(static_cast<double>(45 + 10 + i % 256 % 50) / 255).epsilon(1e-5));
  CHECK_THROWS_AS(read_pictures(Blocks(24), 0, 1), InputError);
}

TEST_CASE("pictures: upright shapes are easy, generated noise teaches nothing") {
  Context context;
  const Pictures real = upright(Split::valid, 300);
  CHECK(picture_score(upright(Split::train, 1000), real, 10, 1).accuracy > 95);
  ParameterStore store;
  const Generator generator(store, 10);
  store.finalize(1);
  const Pictures made = generator.generate(500, Philox(1, 1));
  CHECK(made.labels.data<int32_t>()[13] == 3);
  CHECK(generator.generate(2, Philox(1, 1), 27).labels.data<int32_t>()[1] == 8);
  CHECK(picture_score(made, real, 10, 1).accuracy < 40);
}

TEST_CASE("teachers: each learns from its own pictures only, and gradients point the right way") {
  Context context;
  const Pictures data = upright(Split::train, 60);
  const Pictures changed{data.pixels.clone(), data.labels};
  for (int64_t i = 0; i < 20 * Pictures::kPixels; ++i)  // the first teacher's
    changed.pixels.data<float>()[i] = 1 - changed.pixels.data<float>()[i];
  Teachers teachers(data, 3, 10, 5), others(changed, 3, 10, 5);
  ParameterStore store;
  const Generator generator(store, 10);
  store.finalize(1);
  const Pictures made = generator.generate(20, Philox(1, 1));
  const double first = teachers.train(made, 1e-3);
  (void)others.train(made, 1e-3);
  double last = first;
  for (int step = 0; step < 60; ++step) {
    last = teachers.train(made, 1e-3);
    (void)others.train(made, 1e-3);
  }
  CHECK(last < first / 2);
  const NamedTensors a = teachers.named_state(), b = others.named_state();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].second.dtype() != DType::f32) continue;
    CAPTURE(a[i].first);
    CHECK((a[i].second.to_vector() == b[i].second.to_vector()) ==
          !a[i].first.starts_with("teacher.0."));
  }
  // Against its gradient, pictures look more like their labels: the gradient shrinks on the way,
  // and the other way it grows.
  const auto length = [&](double by) {
    const Pictures moved{made.pixels.clone(), made.labels};
    axpy(static_cast<float>(by), teachers.gradient(1, made), moved.pixels);
    return norm(teachers.gradient(1, moved));
  };
  const double here = length(0);
  CHECK(length(-30 / here) < 0.7 * here);
  CHECK(length(3 / here) > here);
  CHECK_THROWS_AS(Teachers(upright(Split::train, 2), 3, 10, 1), InputError);
}

TEST_CASE("sample sheet: a PNG file with a column for each class") {
  Context context;
  const std::string png = sample_sheet(upright(Split::train, 30), 10);
  CHECK(png.substr(1, 3) == "PNG");
  const auto at = [&](size_t i) {
    return static_cast<uint8_t>(png[i]) * 256 + static_cast<uint8_t>(png[i + 1]);
  };
  CHECK(at(18) == 10 * 50 + 2);  // width and height in the header
  CHECK(at(22) == 3 * 50 + 2);
}

}  // namespace
}  // namespace heddle
