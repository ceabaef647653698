// Runs: how the CPU traverses an (N, C, H, W) tensor by channel, in any layout. A run is a piece
// of consecutive pixels with one or more groups of neighbouring channels (a group fits one Lanes
// value). Batch norm, bias and their gradients are written once over runs. Internal to layers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/shared_kernel.h"
#include "core/simd.h"

namespace heddle {

// Group g of pixel i begins with channel + g * lanes, at offset + i * stride + g * lanes.
struct Run {
  int64_t offset, pixels, stride, channel, groups;
};

class Runs {
 public:
  explicit Runs(const Tensor& x) : layout_(x.layout()) {
    auto [n, c, h, w] = dims<4>(x, "activations");
    channels_ = c;
    lanes_ = layout_ != Layout::plain && c % 16 == 0 ? 16 : 1;
    if (layout_ == Layout::nhwc) {  // all channels of a pixel are adjacent
      outer_ = 1;
      pixels_ = n * h * w;
      groups_ = c / lanes_;
      piece_ = std::max<int64_t>(16, 65536 / std::max<int64_t>(c, 1));
    } else {
      outer_ = n * (c / lanes_);
      pixels_ = h * w;
      groups_ = 1;
      piece_ = 4096;
    }
    pieces_ = ceil_div(pixels_, piece_);
  }

  int lanes() const { return lanes_; }
  int64_t channels() const { return channels_; }
  int64_t count() const { return outer_ * pieces_; }
  int64_t width() const { return groups_ * lanes_; }  // channels of one run
  // Returns the number of values per channel.
  int64_t per_channel() const {
    return outer_ * width() / std::max<int64_t>(channels_, 1) * pixels_;
  }
  Run operator[](int64_t i) const {
    const int64_t outer = i / pieces_, begin = i % pieces_ * piece_;
    return {(outer * pixels_ + begin) * width(), std::min(piece_, pixels_ - begin), width(),
            outer * width() % std::max<int64_t>(channels_, 1), groups_};
  }

 private:
  Layout layout_;
  int lanes_;
  int64_t channels_, groups_, outer_, pixels_, piece_, pieces_;
};

// Calls f.template operator()<lanes, T>() for the lanes of the runs and the type of x.
template <class F>
void with_runs(const Runs& runs, const Tensor& x, F&& f) {
  with_type(x, [&]<class T>() {
    runs.lanes() == 16 ? f.template operator()<16, T>() : f.template operator()<1, T>();
  });
}

// Calls f(index, run) for all runs, on several threads.
template <class F>
void for_runs(const Runs& runs, F&& f) {
  parallel_for(runs.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r, runs[r]);
  });
}

// Calls body(position, constants) for every pixel and group of a run, in memory order, with
// constants = load(channel). With a single group they stay in registers.
template <int kLanes, class Load, class Body>
void for_pixels(const Run& run, Load&& load, Body&& body) {
  if (run.groups == 1) {
    const auto constants = load(run.channel);
    for (int64_t i = 0; i < run.pixels; ++i) body(run.offset + i * run.stride, constants);
    return;
  }
  for (int64_t i = 0; i < run.pixels; ++i)
    for (int64_t g = 0; g < run.groups; ++g)
      body(run.offset + i * run.stride + g * kLanes, load(run.channel + g * kLanes));
}

// Computes two sums per channel over the pixels of a run: body(position, constants, s, t) adds to s
// and t, whose totals are written to sums[0 .. width) and sums[width .. 2 * width).
template <int kLanes, class Load, class Body>
void sum_pixels(const Run& run, Load&& load, Body&& body, float* sums) {
  using L = Lanes<kLanes>;
  const int64_t width = run.groups * kLanes;
  if (run.groups == 1) {
    // Independent sums hide the latency of addition.
    const auto constants = load(run.channel);
    typename L::Vec s[4] = {}, t[4] = {};
    int64_t i = 0;
    for (; i + 4 <= run.pixels; i += 4)
      for (int k = 0; k < 4; ++k) body(run.offset + (i + k) * run.stride, constants, s[k], t[k]);
    for (; i < run.pixels; ++i) body(run.offset + i * run.stride, constants, s[0], t[0]);
    L::store(sums, (s[0] + s[1]) + (s[2] + s[3]));
    L::store(sums + width, (t[0] + t[1]) + (t[2] + t[3]));
    return;
  }
  std::fill(sums, sums + 2 * width, 0.0f);
  for (int64_t i = 0; i < run.pixels; ++i)
    for (int64_t g = 0; g < run.groups; ++g) {
      float *sp = sums + g * kLanes, *tp = sp + width;
      auto s = L::load(sp), t = L::load(tp);
      body(run.offset + i * run.stride + g * kLanes, load(run.channel + g * kLanes), s, t);
      L::store(sp, s);
      L::store(tp, t);
    }
}

// Adds bias (C), f32, to x (N, C, H, W), in place.
void add_channel_bias(const Tensor& x, const Tensor& bias);
// Sets out[c] = beta * out[c] + the sum of x over all axes but the channel; out (C), f32.
void sum_channels(const Tensor& x, const Tensor& out, float beta);

}  // namespace heddle
