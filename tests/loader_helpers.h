// A set of numbered images, and what a loader makes of it.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/error.h"
#include "data/loader.h"

namespace heddle {

inline const Augmentation kTiny{.size = 8, .crop = Crop::pad, .padding = 1, .flip = true};

// Images whose label is their number; reading may be irregularly slow, and may fail at one of them.
class Numbered final : public ImageDataset {
 public:
  explicit Numbered(int64_t size, int64_t failing = -1, bool slow = false)
      : ImageDataset({"numbered", {"a"}, 8, {}}), size_(size), failing_(failing), slow_(slow) {}
  int64_t size() const override { return size_; }
  int label(int64_t index) const override { return static_cast<int>(index); }
  void read(int64_t index, Image& out) const override {
    ++reads;
    if (slow_) std::this_thread::sleep_for(std::chrono::microseconds(index * 37 % 400));
    check(index != failing_, "image ", index, " is broken");
    out.label = label(index);
    out.width = out.height = 8;
    out.pixels.assign(192, static_cast<uint8_t>(index));
  }
  mutable std::atomic<int64_t> reads{0};

 private:
  int64_t size_, failing_;
  bool slow_;
};

struct Seen {
  std::vector<std::vector<float>> images;
  std::vector<std::vector<float>> labels;
  std::vector<int64_t> first;
  bool operator==(const Seen&) const = default;
};

inline Seen take(Epoch epoch, int most = 1000000) {
  Seen seen;
  for (auto& batch : epoch) {
    CHECK(batch.images.shape()[0] == batch.count);
    seen.images.push_back(batch.images.to_vector());
    const int32_t* labels = batch.labels.data<int32_t>();
    seen.labels.emplace_back(labels, labels + batch.count);
    seen.first.push_back(batch.first_sample);
    if (static_cast<int>(seen.first.size()) == most) break;
  }
  return seen;
}

inline std::vector<float> joined(const std::vector<std::vector<float>>& parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace heddle
