#include "data/augment.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/shared_kernel.h"
#include "data/resample.h"

namespace heddle {
namespace {

// Random words per sample, by purpose.
constexpr uint64_t kWords = 64;
enum Word : uint64_t {
  kFlip,
  kCropX,
  kCropY,
  kCutoutX,
  kCutoutY,
  kWindow = 8,  // four words for each of ten attempts
};
constexpr int kAttempts = 10;

// The random numbers of one sample.
struct Draws {
  const Philox& rng;
  uint64_t first;

  float uniform(uint64_t word) const { return rng.uniform(first + word); }
  float between(uint64_t word, float low, float high) const {
    return low + (high - low) * uniform(word);
  }
  int below(uint64_t word, int bound) const {
    return to_int(rng.below(first + word, static_cast<uint32_t>(bound)));
  }
};

// Normalised values of the 256 byte values, per channel, computed in double.
struct Table {
  Normalization key{{0, 0, 0}, {0, 0, 0}};
  float value[3][256];
};

const Table& table_of(const Normalization& normalization) {
  thread_local Table table;
  if (table.key.mean == normalization.mean && table.key.std == normalization.std) return table;
  for (int c = 0; c < 3; ++c)
    for (int v = 0; v < 256; ++v)
      table.value[c][v] =
          to_float((v / 255.0 - double{normalization.mean[c]}) / double{normalization.std[c]});
  table.key = normalization;
  return table;
}

// Copies the S x S window at (left, top) of S x S pixels; black outside of them.
void place(const uint8_t* pixels, int size, const Placement& placement, const Table& table,
           float* out) {
  const int left = placement.left, top = placement.top;
  const int begin = std::max(0, -left), end = std::min(size, size - left);  // columns in the image
  for (int c = 0; c < 3; ++c) {
    const float* value = table.value[c];
    for (int row = 0; row < size; ++row) {
      float* target = out + (int64_t{c} * size + row) * size;
      if (row + top < 0 || row + top >= size) {
        std::fill(target, target + size, value[0]);
        continue;
      }
      const uint8_t* source = pixels + 3 * int64_t{row + top} * size + c;
      std::fill(target, target + begin, value[0]);
      for (int x = begin; x < end; ++x) target[x] = value[source[3 * (x + left)]];
      std::fill(target + end, target + size, value[0]);
      if (placement.flip != 0) std::reverse(target, target + size);
    }
  }
}

Box centered(const Image& image, int width, int height) {
  return {(image.width - width) / 2, (image.height - height) / 2, width, height};
}

// Draws a part of the image as torchvision's RandomResizedCrop does.
Box draw_box(const Augmentation& augmentation, const Image& image, const Draws& draws) {
  const auto width = to_float(image.width), height = to_float(image.height);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t word = kWindow + 4 * static_cast<uint64_t>(attempt);
    const float area =
        width * height * draws.between(word, augmentation.min_area, augmentation.max_area);
    const float ratio = std::exp(draws.between(word + 1, std::log(augmentation.min_ratio),
                                               std::log(augmentation.max_ratio)));
    const float w = std::round(std::sqrt(area * ratio)), h = std::round(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {draws.below(word + 2, to_int(width - w) + 1),
            draws.below(word + 3, to_int(height - h) + 1), to_int(w), to_int(h)};
  }
  const float ratio = std::clamp(width / height, augmentation.min_ratio, augmentation.max_ratio);
  const auto within = [](int limit, float length) {
    return std::clamp(to_int(std::round(length)), 1, limit);
  };
  return centered(image, within(image.width, height * ratio), within(image.height, width / ratio));
}

// Sets the part of a square that lies in the image to 0.
void cut_out(int side, int size, int left, int top, float* out) {
  const int begin = std::max(0, left), end = std::min(size, left + side);
  for (int c = 0; c < 3; ++c)
    for (int row = std::max(0, top); row < std::min(size, top + side); ++row) {
      float* line = out + (int64_t{c} * size + row) * size;
      std::fill(line + begin, line + end, 0.0f);
    }
}

// Returns the window of torchvision's Resize and CenterCrop, which round the longer side down, and
// offsets that end in .5 to even.
PixelWindow eval_window(const Augmentation& augmentation, const Image& image) {
  const int shorter = std::min(image.width, image.height), size = augmentation.size;
  const int64_t target = std::lround(to_float(size) * augmentation.resize);
  const auto begin = [&](int64_t length) { return std::lrint(to_double(length - size) / 2); };
  const int64_t width = target * image.width / shorter, height = target * image.height / shorter;
  return {width, height, begin(width), begin(height)};
}

}  // namespace

Augmentation make_augmentation(const std::string& preset, const DatasetInfo& set, Split split,
                               int size) {
  check(preset == "none" || preset == "standard" || preset == "cutout",
        "augmentation: expected none, standard or cutout, found ", preset);
  const bool fits = set.image_size == size, train = split == Split::train && preset != "none";
  Augmentation augmentation;
  augmentation.size = size;
  augmentation.normalization = set.normalization;
  augmentation.padding = size / 8;
  augmentation.flip = train;
  augmentation.cutout = train && preset == "cutout" ? size / 2 : 0;
  if (fits) {
    augmentation.crop = train ? Crop::pad : Crop::none;
  } else {
    augmentation.crop = train ? Crop::random_resized : Crop::center;
    if (set.image_size > 0)
      augmentation.resize = 1;  // small images show only the object: keep the border
  }
  check_augmentation(augmentation);
  return augmentation;
}

void check_augmentation(const Augmentation& augmentation) {
  const auto& a = augmentation;
  check(a.size > 0 && a.size <= kMaxImageSide, "augmentation: expected an image size from 1 to ",
        kMaxImageSide, ", found ", a.size);
  check(a.padding >= 0 && a.padding <= a.size, "augmentation: expected padding from 0 to ", a.size,
        ", found ", a.padding);
  check(a.resize >= 1 && a.resize <= 16, "augmentation: expected resize from 1 to 16, found ",
        a.resize);
  check(a.min_area > 0 && a.min_area <= a.max_area && a.max_area <= 1,
        "augmentation: expected 0 < min_area <= max_area <= 1, found ", a.min_area, " and ",
        a.max_area);
  check(a.min_ratio > 0 && a.min_ratio <= a.max_ratio && a.max_ratio <= 100,
        "augmentation: expected 0 < min_ratio <= max_ratio <= 100, found ", a.min_ratio, " and ",
        a.max_ratio);
  for (const float std : a.normalization.std)
    check(std > 0, "augmentation: expected a standard deviation above 0, found ", std);
  check(a.cutout >= 0, "augmentation: expected cutout of 0 or more, found ", a.cutout);
}

void augment(const Augmentation& augmentation, const Image& image, const Philox& rng,
             uint64_t sample, float* out) {
  thread_local std::vector<uint8_t> fitted;
  const int size = augmentation.size;
  fitted.resize(size_t{3} * to_size(size) * to_size(size));
  fit(augmentation, image, rng, sample, fitted.data());
  const Placement placement = draw_placement(augmentation, rng, sample);
  place(fitted.data(), size, placement, table_of(augmentation.normalization), out);
  if (augmentation.cutout > 0)
    cut_out(augmentation.cutout, size, placement.cut_left, placement.cut_top, out);
}

void fit(const Augmentation& augmentation, const Image& image, const Philox& rng, uint64_t sample,
         uint8_t* out) {
  const int size = augmentation.size;
  check(image.width > 0 && image.height > 0 &&
            to_int64(image.pixels.size()) == int64_t{3} * image.width * image.height,
        "augmentation: expected 3 bytes for each of ", image.width, " x ", image.height,
        " pixels, found ", image.pixels.size());
  if (augmentation.crop == Crop::center) {
    resample(image, {0, 0, image.width, image.height}, eval_window(augmentation, image), size, out);
  } else if (augmentation.crop == Crop::random_resized) {
    const Box box = draw_box(augmentation, image, {rng, sample * kWords});
    resample(image, box, {size, size, 0, 0}, size, out);
  } else {
    check(image.width == size && image.height == size, "augmentation: expected an image of ", size,
          " x ", size, " pixels, found ", image.width, " x ", image.height);
    std::ranges::copy(image.pixels, out);
  }
}

Placement draw_placement(const Augmentation& augmentation, const Philox& rng, uint64_t sample) {
  const Draws draws{rng, sample * kWords};
  const int padding = augmentation.crop == Crop::pad ? augmentation.padding : 0;
  const int size = augmentation.size, side = augmentation.cutout;
  Placement out;
  if (augmentation.flip) out.flip = draws.uniform(kFlip) < 0.5f ? 1 : 0;
  if (padding > 0) {
    out.left = draws.below(kCropX, 2 * padding + 1) - padding;
    out.top = draws.below(kCropY, 2 * padding + 1) - padding;
  }
  if (side > 0) {
    out.cut_left = draws.below(kCutoutX, size) - side / 2;
    out.cut_top = draws.below(kCutoutY, size) - side / 2;
  }
  return out;
}

void augment_bytes(const Augmentation& augmentation, const Tensor& bytes, const Tensor& placements,
                   const Tensor& out) {
  if (out.size() == 0) return;
  const Tensor table = Tensor::empty_on(Device{}, {3, 256});
  std::copy_n(&table_of(augmentation.normalization).value[0][0], table.size(), table.data<float>());
  const Device device = out.device();
  HEDDLE_DISPATCH(device,
                  place_bytes(bytes, placements, table.to(device), augmentation.cutout, out));
}

}  // namespace heddle
