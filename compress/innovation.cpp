#include "compress/innovation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "compress/codecs/bits.h"
#include "compress/codecs/quantize.h"
#include "compress/codecs/select.h"
#include "core/error.h"
#include "core/math.h"
#include "core/random.h"
#include "core/scalar.h"

namespace heddle {
namespace {

constexpr int64_t kLeastCoded = 16;        // elements; smaller layers are sent as fp32
constexpr double kLargestScale = 3.38e38;  // of bf16

struct Code {
  std::string name;
  std::vector<SpecKey> keys;
};

const std::vector<Code>& codes() {
  const auto bucket = [](double initial) {
    return SpecKey{.name = "bucket", .initial = initial, .low = 8, .high = 1 << 20, .whole = true};
  };
  static const std::vector<Code> kCodes = {
      {"none", {}},
      {"qsgd",
       {{.name = "bits", .initial = 4, .low = 2, .high = 8, .whole = true},
        bucket(1024),
        {.name = "rounding", .initial = 1, .words = {"stochastic", "nearest"}}}},
      {"topk", {{.name = "density", .initial = 0.1, .low = 1e-6, .high = 1}}},
      {"dyna",
       {{.name = "bits", .initial = 1, .low = 1, .high = 8, .whole = true},
        bucket(64),
        {.name = "scale", .initial = 0, .words = {"adaptive", "geometric"}},
        {.name = "first", .initial = 1, .low = 1e-30, .high = 1e30},
        {.name = "ratio", .initial = 0.99, .low = 0.01, .high = 1}}},
  };
  return kCodes;
}

// Scales of dyna are bf16.
void write_scale(float scale, uint8_t* bytes) {
  const bfloat16 rounded(scale);
  std::memcpy(bytes, &rounded, 2);
}
float read_scale(const uint8_t* bytes) {
  bfloat16 scale;
  std::memcpy(&scale, bytes, 2);
  return to_float(scale);
}

}  // namespace

CompressSpec parse_innovation(const std::string& text) {
  CompressSpec spec = parse_spec(text, codes(), "innovation");
  check(spec.family != "qsgd" || spec.values["rounding"] == 1 || spec.values["bits"] >= 4,
        "innovation ", text,
        ": stochastic rounding is no contraction below 4 bits; expected rounding=nearest");
  return spec;
}

double default_mixing(const CompressSpec& innovation) {
  const auto value = [&](const char* key) { return innovation.values.at(key); };
  if (innovation.family == "qsgd") return value("bits") < 3 ? 0.5 : 1;
  if (innovation.family == "topk") return std::min(0.5, value("density"));
  if (innovation.family == "dyna") return value("bits") < 2 ? 0.5 : 1;
  return 1;
}

InnovationCoder::InnovationCoder(CompressSpec spec, std::vector<int64_t> sizes, uint64_t seed)
    : spec_(std::move(spec)), sizes_(std::move(sizes)), seed_(seed) {
  const auto value = [&](const char* key, double otherwise) {
    const auto found = spec_.values.find(key);
    return found == spec_.values.end() ? otherwise : found->second;
  };
  bits_ = to_int(value("bits", 1));
  bucket_ = to_int64(value("bucket", 1));
  density_ = value("density", 1);
  int64_t scales = 0;
  for (size_t layer = 0; layer < sizes_.size(); ++layer) {
    first_scale_.push_back(scales);
    if (spec_.family == "dyna" && coded(layer)) scales += ceil_div(sizes_[layer], bucket_);
  }
  scales_ = Tensor::empty_on(Device{}, {scales});
  scales_.fill_zero();
}

bool InnovationCoder::coded(size_t layer) const {
  return spec_.family != "none" && sizes_[layer] >= kLeastCoded;
}

int64_t InnovationCoder::bytes(size_t layer) const {
  const int64_t n = sizes_[layer];
  if (!coded(layer)) return 4 * n;
  if (spec_.family == "topk") {
    const int64_t k = kept_elements(density_, n);
    return 4 * k + IndexCode{n, k}.bytes();
  }
  if (spec_.family == "dyna") return 2 * ceil_div(n, bucket_) + packed_bytes(n, bits_);
  const int64_t rest = n % bucket_;
  return n / bucket_ * quantized_bytes(bucket_, bits_) +
         (rest > 0 ? quantized_bytes(rest, bits_) : 0);
}

void InnovationCoder::encode(size_t layer, const float* v, int64_t step, uint8_t* bytes) {
  const int64_t n = sizes_[layer];
  if (!coded(layer)) {
    std::memcpy(bytes, v, to_size(4 * n));
  } else if (spec_.family == "topk") {
    const int64_t k = kept_elements(density_, n);
    const Indices indices = select_top({v, to_size(n)}, k);
    for (int64_t i = 0; i < k; ++i) std::memcpy(bytes + 4 * i, &v[indices[to_size(i)]], 4);
    IndexCode{n, k}.encode(indices, bytes + 4 * k);
  } else if (spec_.family == "qsgd") {
    std::optional<Philox> noise;
    if (spec_.values.at("rounding") == 0)
      noise.emplace(seed_, stream_id(Stream::codec, static_cast<uint64_t>(step) << 20 | layer));
    for (int64_t i = 0; i < n; i += bucket_) {
      const int64_t length = std::min(bucket_, n - i);
      quantize(v + i, length, bits_, noise, i / 4 + i / bucket_, bytes);
      bytes += quantized_bytes(length, bits_);
    }
  } else {
    std::vector<uint32_t> levels(to_size(n));
    for (int64_t begin = 0; begin < n; begin += bucket_, bytes += 2) {
      const std::span<const float> x{v + begin, to_size(std::min(bucket_, n - begin))};
      const float scale = dyna_scale(first_scale_[layer] + begin / bucket_, x, step);
      write_scale(scale, bytes);
      const auto parts = to_float(1 << bits_);
      for (size_t i = 0; i < x.size() && scale > 0; ++i)
        levels[to_size(begin) + i] =
            static_cast<uint32_t>(std::clamp((x[i] / scale + 1) / 2 * parts, 0.0f, parts - 1));
    }
    pack_bits(levels.data(), n, bits_, bytes);
  }
}

void InnovationCoder::encode_zero(size_t layer, uint8_t* bytes) const {
  std::fill_n(bytes, this->bytes(layer), uint8_t{0});  // also scales of zero
  if (spec_.family != "topk" || !coded(layer)) return;
  const int64_t n = sizes_[layer], k = kept_elements(density_, n);
  Indices first(to_size(k));
  std::iota(first.begin(), first.end(), 0u);
  IndexCode{n, k}.encode(first, bytes + 4 * k);
}

// Returns the scale of a bucket in this step, and keeps it for the next.
float InnovationCoder::dyna_scale(int64_t bucket, std::span<const float> x, int64_t step) {
  float& scale = scales_.data<float>()[bucket];
  const auto keep = [&](double value) {
    return scale = to_float(bfloat16(to_float(std::min(value, kLargestScale))));
  };
  if (spec_.values.at("scale") == 1)
    return keep(spec_.values.at("first") * std::pow(spec_.values.at("ratio"), to_double(step)));
  const float largest = std::bit_cast<float>(largest_magnitude(x.data(), std::ssize(x)));
  if (scale == 0) return keep(largest);
  if (bits_ == 1) {
    if (largest > 1.5f * scale) return keep(2 * scale);
    return largest < 0.9f * scale ? keep(0.9 * scale) : scale;
  }
  const auto beyond = std::ranges::count_if(x, [&](float each) { return std::abs(each) > scale; });
  if (100 * beyond > std::ssize(x)) return keep(2 * scale);
  return largest < scale / 2 ? keep(scale / 2) : scale;
}

void InnovationCoder::decode(size_t layer, const uint8_t* bytes, float* q) const {
  const int64_t n = sizes_[layer];
  if (!coded(layer)) {
    std::memcpy(q, bytes, to_size(4 * n));
  } else if (spec_.family == "topk") {
    const int64_t k = kept_elements(density_, n);
    const Indices indices = IndexCode{n, k}.decode(bytes + 4 * k);
    std::fill_n(q, n, 0.0f);
    for (int64_t i = 0; i < k; ++i) std::memcpy(&q[indices[to_size(i)]], bytes + 4 * i, 4);
  } else if (spec_.family == "qsgd") {
    for (int64_t i = 0; i < n; i += bucket_) {
      const int64_t length = std::min(bucket_, n - i);
      dequantize(bytes, length, bits_, q + i);
      bytes += quantized_bytes(length, bits_);
    }
  } else {
    std::vector<uint32_t> levels(to_size(n));
    unpack_bits(bytes + 2 * ceil_div(n, bucket_), n, bits_, levels.data());
    const float width = 2 / to_float(1 << bits_);
    for (int64_t begin = 0; begin < n; begin += bucket_, bytes += 2) {
      const float scale = read_scale(bytes);
      for (int64_t i = begin; i < std::min(begin + bucket_, n); ++i)
        q[i] = scale * (width * (to_float(levels[to_size(i)]) + 0.5f) - 1);
    }
  }
}

}  // namespace heddle
