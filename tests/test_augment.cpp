// Augmentation against naive references and by its properties.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "data/augment.h"
#include "data/resample.h"
#include "tests/data_files.h"

namespace heddle {
namespace {

constexpr Normalization kOdd{{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
constexpr Normalization kBytes{{0, 0, 0}, {1 / 255.0f, 1 / 255.0f, 1 / 255.0f}};

Image random_image(int width, int height, uint64_t seed = 1) {
  Image image{width, height, 0, Bytes(static_cast<size_t>(3 * width * height))};
  const Philox rng(seed, 0);
  for (size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<uint8_t>(rng.below(i, 256));
  return image;
}

Image constant_image(int width, int height, uint8_t red, uint8_t green, uint8_t blue) {
  Image image{width, height, 0, {}};
  for (int i = 0; i < width * height; ++i)
    image.pixels.insert(image.pixels.end(), {red, green, blue});
  return image;
}

Image coloured_image(int width, int height) {
  Image image{width, height, 0, {}};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      image.pixels.insert(image.pixels.end(), {static_cast<uint8_t>(x * 37 + y * 11),
                                               static_cast<uint8_t>(x * x + 5 * y),
                                               static_cast<uint8_t>(x * y * 3 + 40)});
  return image;
}

std::vector<float> run(const Augmentation& augmentation, const Image& image, uint64_t sample = 0,
                       uint64_t epoch = 0) {
  std::vector<float> out(static_cast<size_t>(3 * augmentation.size * augmentation.size), NAN);
  augment(augmentation, image, Philox(5, stream_id(Stream::augment, epoch)), sample, out.data());
  return out;
}

// The window at (left, top) of the image with black around it, mirrored or not, normalised.
std::vector<float> naive_crop(const Image& image, int left, int top, bool flip,
                              const Normalization& normalization) {
  const int size = image.width;
  std::vector<float> out;
  for (size_t c = 0; c < 3; ++c)
    for (int y = 0; y < size; ++y)
      for (int x = 0; x < size; ++x) {
        const int row = y + top, column = (flip ? size - 1 - x : x) + left;
        const bool inside = row >= 0 && row < size && column >= 0 && column < size;
        const int value =
            inside ? image.pixels[static_cast<size_t>(3 * (row * size + column)) + c] : 0;
        out.push_back(
            static_cast<float>((value / 255.0 - static_cast<double>(normalization.mean[c])) /
                               static_cast<double>(normalization.std[c])));
      }
  return out;
}

std::vector<float> mirrored(std::vector<float> planes, int size) {
  for (size_t row = 0; row < planes.size(); row += static_cast<size_t>(size))
    std::reverse(planes.begin() + static_cast<std::ptrdiff_t>(row),
                 planes.begin() + static_cast<std::ptrdiff_t>(row) + size);
  return planes;
}

TEST_CASE("augment: preset none normalises exactly") {
  const Image image = random_image(9, 9);
  const Augmentation plain{.size = 9, .normalization = kOdd};
  CHECK(run(plain, image) == naive_crop(image, 0, 0, false, kOdd));
  CHECK(run(plain, image, 7, 3) == run(plain, image));
  CHECK(contains(input_error([&] { run(plain, random_image(9, 8)); }),
                 "expected an image of 9 x 9 pixels, found 9 x 8"));
  Image large = image;
  large.pixels.resize(300);
  CHECK(contains(input_error([&] { run(plain, large); }), "9 x 9 pixels, found 300"));
}

TEST_CASE("augment: padding and cropping yield every window, exactly") {
  const Image image = random_image(12, 12);
  const Augmentation crop{
      .size = 12, .crop = Crop::pad, .padding = 2, .flip = true, .normalization = kOdd};
  std::map<std::vector<float>, int> windows;
  for (int left = -2; left <= 2; ++left)
    for (int top = -2; top <= 2; ++top)
      for (const bool flip : {false, true}) windows[naive_crop(image, left, top, flip, kOdd)] = 0;
  REQUIRE(windows.size() == 50);
  for (uint64_t sample = 0; sample < 1000; ++sample) {
    const auto found = windows.find(run(crop, image, sample));
    REQUIRE(found != windows.end());
    ++found->second;
  }
  for (const auto& [window, count] : windows) CHECK(count >= 5);  // 20 expected
}

TEST_CASE("augment: half of the images are mirrored") {
  const Image image = random_image(16, 16);
  const Augmentation plain{.size = 16, .normalization = kOdd};
  Augmentation flip = plain;
  flip.flip = true;
  const auto upright = run(plain, image);
  int flipped = 0;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    const auto out = run(flip, image, sample);
    if (out == upright) continue;
    ++flipped;
    CHECK(mirrored(out, 16) == upright);
  }
  CHECK(flipped > 70);
  CHECK(flipped < 130);
}

TEST_CASE("augment: cutout zeroes one square and nothing else") {
  const Image image = constant_image(16, 16, 10, 20, 30);
  const Augmentation cutout{.size = 16, .normalization = kOdd, .cutout = 6};
  const auto whole = run({.size = 16, .normalization = kOdd}, image);
  std::set<size_t> areas;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    const auto out = run(cutout, image, sample);
    int left = 16, right = -1, top = 16, bottom = -1, zeros = 0;
    for (int i = 0; i < 3 * 256; ++i) {
      const auto at = static_cast<size_t>(i);
      if (out[at] != 0) {
        REQUIRE(out[at] == whole[at]);
        continue;
      }
      ++zeros;
      left = std::min(left, i % 16), right = std::max(right, i % 16);
      top = std::min(top, i % 256 / 16), bottom = std::max(bottom, i % 256 / 16);
    }
    const int width = right - left + 1, height = bottom - top + 1;
    CHECK(zeros == 3 * width * height);
    CHECK((width == 6 || left == 0 || right == 15));
    CHECK((height == 6 || top == 0 || bottom == 15));
    CHECK(std::min(width, height) >= 3);
    areas.insert(static_cast<size_t>(zeros));
  }
  CHECK(areas.count(3 * 36) == 1);
  CHECK(areas.size() > 3);  // cut off at the border
}

TEST_CASE("augment: random resized crops preserve a uniform colour") {
  const Augmentation crop{
      .size = 20, .crop = Crop::random_resized, .flip = true, .normalization = kBytes};
  for (const auto& [width, height] : {std::pair{50, 37}, {3, 90}, {1, 1}, {20, 20}, {400, 300}}) {
    const Image image = constant_image(width, height, 200, 100, 50);
    for (uint64_t sample = 0; sample < 30; ++sample) {
      const auto out = run(crop, image, sample);
      float worst = 0;
      for (size_t i = 0; i < out.size(); ++i) {
        const float expected = i < 400 ? 200.0f : i < 800 ? 100.0f : 50.0f;
        worst = std::max(worst, std::abs(out[i] - expected));
      }
      CHECK(worst < 1e-3f);
    }
  }
}

TEST_CASE("augment: random resized crops vary in position and size within their limits") {
  // Colours tell where the window lies: red = x, green = y.
  Image image{200, 200, 0, {}};
  for (int y = 0; y < 200; ++y)
    for (int x = 0; x < 200; ++x)
      image.pixels.insert(image.pixels.end(),
                          {static_cast<uint8_t>(x), static_cast<uint8_t>(y), 0});
  const Augmentation crop{.size = 10, .crop = Crop::random_resized, .normalization = kBytes};
  double least = 1, most = 0;
  std::set<int> corners;
  for (uint64_t sample = 0; sample < 300; ++sample) {
    const auto out = run(crop, image, sample);
    const double width = static_cast<double>(out[9] - out[0]) * 10 / 9;
    const double height = static_cast<double>(out[190] - out[100]) * 10 / 9;
    const double area = width * height / 40000;
    least = std::min(least, area), most = std::max(most, area);
    CHECK(width / height > 0.70);
    CHECK(width / height < 1.43);
    corners.insert(static_cast<int>(out[0]));
  }
  CHECK(least > 0.06);
  CHECK(least < 0.15);
  CHECK(most < 1.01);
  CHECK(most > 0.85);
  CHECK(corners.size() > 40);
}

// The whole image as size x size pixels.
Bytes resized(const Image& image, int size) {
  Bytes out(static_cast<size_t>(3 * size * size));
  resample(image, {0, 0, image.width, image.height}, {size, size, 0, 0}, size, out.data());
  return out;
}

TEST_CASE("resample: identity, ramps") {
  const Image image = random_image(15, 15);
  CHECK(resized(image, 15) == image.pixels);

  Image ramp{80, 40, 0, {}};
  for (int y = 0; y < 40; ++y)
    for (int x = 0; x < 80; ++x)
      ramp.pixels.insert(ramp.pixels.end(),
                         {static_cast<uint8_t>(3 * x), static_cast<uint8_t>(5 * y), 7});
  for (const int size : {10, 160, 60}) {
    const Bytes out = resized(ramp, size);
    const int margin = size / 10 + 1;  // the filter is cut off at the border
    double worst = 0;
    for (int y = margin; y < size - margin; ++y)
      for (int x = margin; x < size - margin; ++x) {
        const uint8_t* pixel = out.data() + 3 * (y * size + x);
        const double red = 3 * ((x + 0.5) * 80 / size - 0.5);
        const double green = 5 * ((y + 0.5) * 40 / size - 0.5);
        worst = std::max({worst, std::abs(pixel[0] - red), std::abs(pixel[1] - green)});
        REQUIRE(pixel[2] == 7);
      }
    CHECK(worst < 1.1);  // rounded twice
  }
}

// Image.crop and Image.resize(BILINEAR) of Pillow 9.4.
TEST_CASE("resample: part of an image gives Pillow's bytes") {
  const Bytes reduced = {114, 62, 114, 134, 109, 148, 115, 180, 180, 106, 119, 177,
                         90,  72, 153, 152, 119, 182, 122, 185, 113, 128, 113, 89,
                         73,  84, 177, 163, 131, 98,  97,  180, 97,  154, 77,  154,
                         94,  94, 164, 157, 141, 84,  90,  190, 161, 176, 86,  120};
  const Bytes enlarged = {218, 40, 85,  241, 47, 91,  173, 56, 97,  36, 64, 103,
                          221, 41, 89,  204, 48, 95,  136, 57, 102, 39, 65, 108,
                          226, 44, 96,  129, 51, 104, 61,  60, 112, 44, 68, 119,
                          229, 45, 100, 92,  52, 108, 24,  61, 117, 47, 69, 124};
  const Image image = coloured_image(23, 17);
  for (const auto& [box, expected] :
       {std::pair{Box{5, 3, 13, 9}, reduced}, {Box{5, 3, 3, 2}, enlarged}}) {
    Bytes out(48);
    resample(image, box, {4, 4, 0, 0}, 4, out.data());
    CHECK(out == expected);
    Bytes inner(12);  // the same pixels as a window of them
    resample(image, box, {4, 4, 1, 2}, 2, inner.data());
    for (size_t i = 0; i < inner.size(); ++i) CHECK(inner[i] == out[12 * (2 + i / 6) + 3 + i % 6]);
  }
}

TEST_CASE("augment: downscaling averages fine patterns") {
  Image stripes{64, 64, 0, {}};  // every eighth column is bright
  for (int i = 0; i < 64 * 64; ++i) {
    const auto value = static_cast<uint8_t>(i % 8 == 0 ? 200 : 0);
    stripes.pixels.insert(stripes.pixels.end(), {value, value, value});
  }
  const auto out =
      run({.size = 8, .crop = Crop::center, .resize = 1, .normalization = kBytes}, stripes);
  for (size_t i = 0; i < 64; ++i)
    if (i % 8 != 0 && i % 8 != 7)
      CHECK(std::abs(out[i] - 25) < 0.01f);  // not cut off at the border
}

TEST_CASE("augment: center crops the middle") {
  Image image{300, 100, 0, {}};
  for (int y = 0; y < 100; ++y)
    for (int x = 0; x < 300; ++x)
      image.pixels.insert(image.pixels.end(),
                          {static_cast<uint8_t>(x / 2), static_cast<uint8_t>(y), 0});
  const auto out =
      run({.size = 50, .crop = Crop::center, .resize = 1.2f, .normalization = kBytes}, image);
  const auto mean = [&](size_t from) {
    double sum = 0;
    for (size_t i = 0; i < 2500; ++i) sum += static_cast<double>(out[from + i]);
    return sum / 2500;
  };
  CHECK(std::abs(mean(0) - 74.5) < 0.6);
  CHECK(std::abs(mean(2500) - 49.5) < 0.1);
  CHECK(std::abs(out[2500] - 8.7f) < 0.6f);  // a sixth of the rows is cut away
}

// Resize(7) and CenterCrop(6) of torchvision 0.14 on Pillow 9.4.
TEST_CASE("augment: center gives torchvision's bytes") {
  const std::vector<float> wide = {
      156, 70,  161, 120, 94,  180, 147, 93,  170, 87,  119, 169, 102, 117, 181, 85,  145, 137,
      79,  144, 156, 81,  170, 117, 82,  171, 107, 105, 178, 87,  103, 171, 79,  131, 158, 78,
      41,  77,  127, 186, 82,  99,  52,  88,  138, 197, 93,  110, 64,  100, 150, 201, 95,  122,
      76,  112, 162, 179, 65,  134, 88,  124, 174, 175, 71,  146, 100, 136, 186, 123, 70,  158,
      57,  64,  71,  78,  86,  93,  96,  120, 144, 163, 163, 134, 138, 180, 164, 115, 92,  100,
      177, 132, 79,  110, 151, 141, 167, 75,  129, 172, 104, 119, 107, 109, 175, 119, 141, 131};
  const std::vector<float> high = {
      22, 59, 96,  133, 170, 207, 33, 70,  107, 144, 181, 218, 44, 81,  118, 155, 192, 229,
      55, 92, 129, 166, 203, 240, 66, 103, 140, 177, 214, 251, 77, 114, 151, 188, 225, 6,
      10, 11, 14,  19,  26,  35,  15, 16,  19,  24,  31,  40,  20, 21,  24,  29,  36,  45,
      25, 26, 29,  34,  41,  50,  30, 31,  34,  39,  46,  55,  35, 36,  39,  44,  51,  60,
      40, 46, 52,  58,  64,  70,  40, 49,  58,  67,  76,  85,  40, 52,  64,  76,  88,  100,
      40, 55, 70,  85,  100, 115, 40, 58,  76,  94,  112, 130, 40, 61,  82,  103, 124, 145};
  for (const auto& [width, height, expected] : {std::tuple{23, 17, wide}, {7, 11, high}}) {
    const auto out =
        run({.size = 6, .crop = Crop::center, .resize = 7.0f / 6, .normalization = kBytes},
            coloured_image(width, height));
    for (size_t i = 0; i < out.size(); ++i) CHECK(std::abs(out[i] - expected[i]) < 0.001f);
  }
}

TEST_CASE("augment: random numbers depend on epoch and sample") {
  const Image image = random_image(32, 32);
  const Augmentation crop{.size = 32, .crop = Crop::pad, .flip = true, .normalization = kOdd};
  CHECK(run(crop, image, 4, 1) == run(crop, image, 4, 1));
  int same_sample = 0, same_epoch = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    same_sample += run(crop, image, i, 0) == run(crop, image, i, 1);
    same_epoch += run(crop, image, i, 0) == run(crop, image, i + 1, 0);
  }
  CHECK(same_sample < 6);
  CHECK(same_epoch < 6);
}

TEST_CASE("augment: presets") {
  const DatasetInfo small{"x", {}, 32, kOdd}, photos{"y", {}, 0, kOdd};
  const auto standard = make_augmentation("standard", small, Split::train, 32);
  CHECK(standard.crop == Crop::pad);
  CHECK(standard.padding == 4);
  CHECK(standard.flip);
  CHECK(standard.cutout == 0);
  CHECK(make_augmentation("cutout", small, Split::train, 32).cutout == 16);
  const auto valid = make_augmentation("cutout", small, Split::valid, 32);
  CHECK(valid.crop == Crop::none);
  CHECK_FALSE(valid.flip);
  CHECK(valid.cutout == 0);
  CHECK(make_augmentation("standard", photos, Split::train, 64).crop == Crop::random_resized);
  CHECK(make_augmentation("standard", photos, Split::valid, 64).crop == Crop::center);
  CHECK(make_augmentation("none", photos, Split::train, 64).crop == Crop::center);
  CHECK(make_augmentation("none", small, Split::train, 64).crop == Crop::center);
  const auto make = [&](const char* preset, int size) {
    return input_error([&] { make_augmentation(preset, small, Split::train, size); });
  };
  CHECK(contains(make("mixup", 32), "expected none, standard or cutout, found mixup"));
  CHECK(contains(make("none", 0), "found 0"));
}

}  // namespace
}  // namespace heddle
