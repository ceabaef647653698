// How a (N, C, H, W) tensor is walked channel by channel, whatever its layout: as runs, each a
// stretch of pixels for one lane or sixteen neighbouring channels. Batch norm, bias and their
// gradients are written once over runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"

namespace heddle {

// Pixel i of channel (channel + lane) lies at offset + i * stride + lane.
struct Run {
  int64_t offset, pixels, stride, channel;
};

class Runs {
 public:
  explicit Runs(const Tensor& x) : layout_(x.layout()) {
    auto [n, c, h, w] = dims<4>(x, "activations");
    channels_ = c;
    lanes_ = layout_ != Layout::plain && c % 16 == 0 ? 16 : 1;
    groups_ = c / lanes_;
    // A piece stays in the cache between two passes over it.
    if (layout_ == Layout::nhwc) {
      outer_ = 1;
      pixels_ = n * h * w;
      piece_ = std::max<int64_t>(16, 16384 / std::max<int64_t>(c, 1));
    } else {
      outer_ = n * groups_;
      pixels_ = h * w;
      piece_ = 4096;
    }
    pieces_ = (pixels_ + piece_ - 1) / piece_;
  }

  int lanes() const { return lanes_; }
  int64_t channels() const { return channels_; }
  int64_t count() const { return layout_ == Layout::nhwc ? pieces_ * groups_ : outer_ * pieces_; }
  // Number of values per channel.
  int64_t per_channel() const {
    return layout_ == Layout::nhwc ? pixels_ : outer_ / std::max<int64_t>(groups_, 1) * pixels_;
  }
  Run operator[](int64_t i) const {
    if (layout_ == Layout::nhwc) {
      const int64_t piece = i / groups_, group = i % groups_, begin = piece * piece_;
      return {begin * channels_ + group * lanes_, std::min(piece_, pixels_ - begin), channels_,
              group * lanes_};
    }
    const int64_t outer = i / pieces_, begin = i % pieces_ * piece_;
    return {(outer * pixels_ + begin) * lanes_, std::min(piece_, pixels_ - begin), lanes_,
            outer % groups_ * lanes_};
  }

 private:
  Layout layout_;
  int lanes_;
  int64_t channels_, groups_, outer_, pixels_, piece_, pieces_;
};

// x[n, c, ...] += bias[c], in place.
void add_channel_bias(const Tensor& x, const Tensor& bias);
// out[c] = beta * out[c] + sum of x over all but the channel axis; f32 output.
void sum_channels(const Tensor& x, const Tensor& out, float beta);

}  // namespace heddle
