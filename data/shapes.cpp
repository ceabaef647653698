#include "data/shapes.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "core/scalar.h"

namespace heddle {
namespace {

constexpr float kPi = 3.14159265f;
constexpr float kNoise = 24.0f;          // largest deviation of a noisy pixel, out of 255
constexpr float kLeastContrast = 40.0f;  // of a figure with its background, out of 255

struct Point {
  float x, y;
};

float length(Point p) { return std::sqrt(p.x * p.x + p.y * p.y); }

float box(Point p, float half_width, float half_height) {
  return std::max(std::abs(p.x) - half_width, std::abs(p.y) - half_height);
}

// Returns the distance from a regular polygon of n sides around the origin.
float polygon(Point p, int n, float inner_radius) {
  const float sector = 2 * kPi / to_float(n);
  const float angle = std::atan2(p.y, p.x);
  return length(p) * std::cos(angle - sector * std::round(angle / sector)) - inner_radius;
}

// Returns the distance from a star with five points of radius 1 and notches of radius 0.42: that
// from the edge between the two, after folding the plane onto one tenth of the star.
float star(Point p) {
  constexpr float kTenth = kPi / 5;
  const float angle = std::atan2(p.y, p.x);
  const float folded = std::abs(angle - 2 * kTenth * std::round(angle / (2 * kTenth)));
  const Point q{length(p) * std::cos(folded), length(p) * std::sin(folded)};
  const Point notch{0.42f * std::cos(kTenth), 0.42f * std::sin(kTenth)};
  const Point edge{notch.x - 1.0f, notch.y};
  return (edge.y * (q.x - 1.0f) - edge.x * q.y) / length(edge);
}

// Returns the approximate signed distance from the outline, negative inside; figures fill the unit
// circle.
float distance(int label, Point p) {
  switch (label) {
    case 0:
      return length(p) - 0.9f;
    case 1:
      return std::abs(length(p) - 0.75f) - 0.2f;
    case 2:
      return box(p, 0.8f, 0.8f);
    case 3:
      return std::max(box(p, 0.85f, 0.85f), -box(p, 0.45f, 0.45f));
    case 4:
      return polygon(p, 3, 0.55f);
    case 5:
      return std::min(box(p, 0.95f, 0.3f), box(p, 0.3f, 0.95f));
    case 6:
      return star(p);
    case 7:
      return std::max(length(p) - 0.95f, 0.75f - length({p.x - 0.45f, p.y}));
    case 8:
      return std::max(length({p.x, p.y - 0.4f}) - 0.95f, p.y - 0.4f);
    default:
      return polygon(p, 6, 0.85f);
  }
}

struct Color {
  float channel[3];
};

Color draw_color(const Philox& rng, uint64_t word, float low, float high) {
  Color color{};
  for (uint64_t c = 0; c < 3; ++c) color.channel[c] = low + (high - low) * rng.uniform(word + c);
  return color;
}

float brightness(const Color& color) {
  return 0.299f * color.channel[0] + 0.587f * color.channel[1] + 0.114f * color.channel[2];
}

// A picture's parameters; lengths as fractions of the image's side.
struct Scene {
  Point center;
  float radius, angle, gradient_angle, noise;
  Color from, to, figure;  // background's two ends, figure
};

// Words [first, first + 64) of the stream belong to the scene.
Scene draw_scene(const Philox& rng, uint64_t first) {
  Scene scene{};
  scene.radius = 0.26f + 0.16f * rng.uniform(first);
  const float room = 1 - 1.7f * scene.radius;
  scene.center = {0.85f * scene.radius + room * rng.uniform(first + 1),
                  0.85f * scene.radius + room * rng.uniform(first + 2)};
  scene.angle = 2 * kPi * rng.uniform(first + 3);
  scene.gradient_angle = 2 * kPi * rng.uniform(first + 4);
  scene.noise = kNoise * rng.uniform(first + 5);
  scene.from = draw_color(rng, first + 8, 0, 150);
  scene.to = draw_color(rng, first + 12, 0, 150);
  const float background = std::max(brightness(scene.from), brightness(scene.to));
  for (uint64_t attempt = 0; attempt < 12; ++attempt) {
    scene.figure = draw_color(rng, first + 16 + 4 * attempt, 60, 255);
    if (brightness(scene.figure) > background + kLeastContrast) break;
  }
  return scene;
}

// Returns the scene of a figure that hardly varies: an easy set, like handwritten digits.
Scene upright(const Scene& scene, const Philox& rng, uint64_t first) {
  const auto within = [&](uint64_t word, float x) {
    return x * (2 * rng.uniform(first + word) - 1);
  };
  Scene out{};
  out.center = {0.5f + within(1, 0.05f), 0.5f + within(2, 0.05f)};
  out.radius = 0.4f + within(0, 0.04f);
  out.angle = within(3, 0.15f);
  out.noise = scene.noise;
  for (float& channel : out.figure.channel) channel = 220 + within(4, 30);
  return out;
}

void paint(const Scene& scene, int label, int size, std::vector<float>& pixels) {
  const float pixel = 1.0f / to_float(size);
  const float cos_angle = std::cos(scene.angle), sin_angle = std::sin(scene.angle);
  const float gx = std::cos(scene.gradient_angle), gy = std::sin(scene.gradient_angle);
  const float scale = 1 / scene.radius, sharpness = scene.radius / pixel;
  float* out = pixels.data();
  for (int row = 0; row < size; ++row)
    for (int column = 0; column < size; ++column, out += 3) {
      const float x = (to_float(column) + 0.5f) * pixel;
      const float y = (to_float(row) + 0.5f) * pixel;
      const float dx = (x - scene.center.x) * scale, dy = (y - scene.center.y) * scale;
      float cover = 0;
      if (dx * dx + dy * dy < 4) {
        const Point p{cos_angle * dx + sin_angle * dy, cos_angle * dy - sin_angle * dx};
        cover = std::clamp(0.5f - distance(label, p) * sharpness, 0.0f, 1.0f);
      }
      const float t = std::clamp(0.5f + 0.7f * ((x - 0.5f) * gx + (y - 0.5f) * gy), 0.0f, 1.0f);
      for (int c = 0; c < 3; ++c) {
        const float back =
            scene.from.channel[c] + t * (scene.to.channel[c] - scene.from.channel[c]);
        out[c] = back + cover * (scene.figure.channel[c] - back);
      }
    }
}

// Adds noise up to `amplitude`, one random byte for each value, and rounds.
void add_noise(const Philox& rng, float amplitude, const std::vector<float>& pixels, Image& out) {
  for (size_t i = 0; i < pixels.size(); i += 16) {
    const Philox::Block block = rng.block(i / 16);
    const size_t end = std::min(pixels.size(), i + 16);
    for (size_t k = i; k < end; ++k) {
      const uint32_t byte = block.word[(k - i) / 4] >> (8 * (k & 3)) & 0xff;
      const float noise = amplitude * (to_float(byte) * (2.0f / 255) - 1);
      out.pixels[k] = static_cast<uint8_t>(std::clamp(pixels[k] + noise + 0.5f, 0.0f, 255.0f));
    }
  }
}

class Shapes final : public ImageDataset {
 public:
  Shapes(Split split, const DatasetOptions& options)
      : ImageDataset({"shapes",
                      {"circle", "ring", "square", "frame", "triangle", "cross", "star", "crescent",
                       "half-disc", "hexagon"},
                      options.image_size,
                      {{0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}}}),
        split_(split),
        size_(split == Split::train ? options.train_images : options.valid_images),
        seed_(options.seed),
        upright_(options.upright) {
    check(options.image_size >= 8 && options.image_size <= 4096,
          "rendered shapes: expected an image size from 8 to 4096, found ", options.image_size);
    check(size_ > 0 && size_ <= int64_t{1} << 32, "rendered shapes: expected 1 to 2^32 ",
          split_name(split), " images, found ", size_);
  }

  int64_t size() const override { return size_; }
  int label(int64_t index) const override { return to_int(index % class_count()); }

  void read(int64_t index, Image& out) const override {
    check(index >= 0 && index < size_, "rendered shapes: expected an image from 0 to ", size_ - 1,
          ", found ", index);
    out.label = label(index);
    out.width = out.height = info().image_size;
    out.pixels.resize(to_size(3) * out.width * out.height);
    thread_local std::vector<float> pixels;
    pixels.resize(out.pixels.size());

    const auto number = static_cast<uint64_t>(index);
    const uint64_t splits = split_ == Split::train ? 0 : 2;
    const Philox scenes(seed_, stream_id(Stream::shapes, splits));
    const Philox noise(seed_, stream_id(Stream::shapes, (number + 1) << 2 | splits | 1));
    Scene scene = draw_scene(scenes, number * 64);
    if (upright_) scene = upright(scene, scenes, number * 64);
    paint(scene, out.label, out.width, pixels);
    add_noise(noise, scene.noise, pixels, out);
  }

 private:
  Split split_;
  int64_t size_;
  uint64_t seed_;
  bool upright_;
};

}  // namespace

std::unique_ptr<ImageDataset> render_shapes(Split split, const DatasetOptions& options) {
  return std::make_unique<Shapes>(split, options);
}

}  // namespace heddle
