// oneDNN's direct and Winograd convolutions and our own Winograd kernels, per shape and direction
// of the three networks. The rule in layers/conv2d_cpu.cpp is drawn from this table.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "apps/benchmarks/bench.h"
#include "core/context.h"
#include "core/onednn.h"
#include "core/trace.h"
#include "layers/winograd.h"

namespace heddle::bench {
namespace {

using dnnl::memory;
using tag = memory::format_tag;

struct ConvShape {
  const char* network;
  int64_t batch, in, out, kernel, stride, size;  // size: pixels a side of the input
};

// Every different convolution of the three cases, in the order of forward.
constexpr ConvShape kShapes[] = {
    {"resnet20", 128, 3, 16, 3, 1, 32},    {"resnet20", 128, 16, 16, 3, 1, 32},
    {"resnet20", 128, 16, 32, 3, 2, 32},   {"resnet20", 128, 32, 32, 3, 1, 16},
    {"resnet20", 128, 32, 64, 3, 2, 16},   {"resnet20", 128, 64, 64, 3, 1, 8},
    {"resnet18", 128, 3, 64, 3, 1, 32},    {"resnet18", 128, 64, 64, 3, 1, 32},
    {"resnet18", 128, 64, 128, 3, 2, 32},  {"resnet18", 128, 64, 128, 1, 2, 32},
    {"resnet18", 128, 128, 128, 3, 1, 16}, {"resnet18", 128, 128, 256, 3, 2, 16},
    {"resnet18", 128, 128, 256, 1, 2, 16}, {"resnet18", 128, 256, 256, 3, 1, 8},
    {"resnet18", 128, 256, 512, 3, 2, 8},  {"resnet18", 128, 256, 512, 1, 2, 8},
    {"resnet18", 128, 512, 512, 3, 1, 4},  {"resnet50", 16, 3, 64, 7, 2, 224},
    {"resnet50", 16, 64, 64, 1, 1, 56},    {"resnet50", 16, 64, 64, 3, 1, 56},
    {"resnet50", 16, 64, 256, 1, 1, 56},   {"resnet50", 16, 256, 64, 1, 1, 56},
    {"resnet50", 16, 256, 128, 1, 1, 56},  {"resnet50", 16, 128, 128, 3, 2, 56},
    {"resnet50", 16, 128, 512, 1, 1, 28},  {"resnet50", 16, 256, 512, 1, 2, 56},
    {"resnet50", 16, 512, 128, 1, 1, 28},  {"resnet50", 16, 128, 128, 3, 1, 28},
    {"resnet50", 16, 512, 256, 1, 1, 28},  {"resnet50", 16, 256, 256, 3, 2, 28},
    {"resnet50", 16, 256, 1024, 1, 1, 14}, {"resnet50", 16, 512, 1024, 1, 2, 28},
    {"resnet50", 16, 1024, 256, 1, 1, 14}, {"resnet50", 16, 256, 256, 3, 1, 14},
    {"resnet50", 16, 1024, 512, 1, 1, 14}, {"resnet50", 16, 512, 512, 3, 2, 14},
    {"resnet50", 16, 512, 2048, 1, 1, 7},  {"resnet50", 16, 1024, 2048, 1, 2, 14},
    {"resnet50", 16, 2048, 512, 1, 1, 7},  {"resnet50", 16, 512, 512, 3, 1, 7},
};

enum class Direction { forward, weight, input };

// The median of a few calls, in ms.
template <class Call>
double time_calls(Call&& call) {
  call();
  std::vector<double> ms;
  const double stop = steady_seconds() + 0.1;
  while (ms.size() < 5 || (steady_seconds() < stop && ms.size() < 50)) {
    const double begin = steady_seconds();
    call();
    ms.push_back(1000 * (steady_seconds() - begin));
  }
  return median(ms);
}

// By our own Winograd kernels, where they take the shape.
std::optional<double> time_own(const ConvShape& s, Direction direction, DType dtype) {
  if (s.kernel != 3 || s.stride != 1 || s.in % 16 != 0) return std::nullopt;
  const Tensor x = Tensor::zeros({s.batch, s.in, s.size, s.size}, dtype, Layout::c16);
  const Tensor y = Tensor::zeros({s.batch, s.out, s.size, s.size}, dtype, Layout::c16);
  const Tensor w = Tensor::zeros({s.out, s.in, s.kernel, s.kernel});
  if (!cpu::winograd_fits(x, w.shape())) return std::nullopt;
  return time_calls([&] {
    if (direction == Direction::forward) cpu::winograd_forward(x, w, y);
    if (direction == Direction::input) cpu::winograd_backward_input(y, w, x);
    if (direction == Direction::weight) cpu::winograd_backward_weight(x, y, w, 0.0f);
  });
}

// By a oneDNN primitive; nothing when there is none.
std::optional<double> time_conv(const ConvShape& s, Direction direction, dnnl::algorithm algorithm,
                                tag format, DType dtype) {
  const dnnl::engine& engine = cpu::onednn().engine;
  const auto type = cpu::onednn_type(dtype);
  const int64_t pad = s.kernel / 2, size = (s.size + 2 * pad - s.kernel) / s.stride + 1;
  const memory::dims strides = {s.stride, s.stride}, padding = {pad, pad};
  const memory::desc x({s.batch, s.in, s.size, s.size}, type, s.in % 16 == 0 ? format : tag::abcd);
  const memory::desc y({s.batch, s.out, size, size}, type, format);
  const bool weight_gradient = direction == Direction::weight;
  const memory::desc w({s.out, s.in, s.kernel, s.kernel},
                       weight_gradient ? memory::data_type::f32 : type, tag::any);
  const memory::desc w_forward({s.out, s.in, s.kernel, s.kernel}, type, tag::any);
  cpu::Plan plan;
  int inputs[2], output;
  memory::desc x_used, w_used, y_used;
  auto take = [&](const auto& pd, const auto& primitive) {
    plan = {primitive, pd.scratchpad_desc()};
  };
  try {
    const auto attributes = cpu::user_scratchpad();
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, algorithm, x, w_forward, y, strides, padding, padding},
        attributes, engine);
    if (direction == Direction::forward) {
      take(forward, dnnl::convolution_forward(forward));
      x_used = forward.src_desc(), w_used = forward.weights_desc(), y_used = forward.dst_desc();
      inputs[0] = DNNL_ARG_SRC, inputs[1] = DNNL_ARG_WEIGHTS, output = DNNL_ARG_DST;
    } else if (direction == Direction::input) {
      const dnnl::convolution_backward_data::primitive_desc pd(
          {algorithm, x, w, y, strides, padding, padding}, attributes, engine, forward);
      take(pd, dnnl::convolution_backward_data(pd));
      x_used = pd.diff_src_desc(), w_used = pd.weights_desc(), y_used = pd.diff_dst_desc();
      inputs[0] = DNNL_ARG_DIFF_DST, inputs[1] = DNNL_ARG_WEIGHTS, output = DNNL_ARG_DIFF_SRC;
    } else {
      const dnnl::convolution_backward_weights::primitive_desc pd(
          {algorithm, x, w, y, strides, padding, padding}, attributes, engine, forward);
      take(pd, dnnl::convolution_backward_weights(pd));
      x_used = pd.src_desc(), w_used = pd.diff_weights_desc(), y_used = pd.diff_dst_desc();
      inputs[0] = DNNL_ARG_SRC, inputs[1] = DNNL_ARG_DIFF_DST, output = DNNL_ARG_DIFF_WEIGHTS;
    }
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
  std::vector<Tensor> kept;
  cpu::Arguments arguments;
  for (const int name : {inputs[0], inputs[1], output}) {
    const bool is_x = name == DNNL_ARG_SRC || name == DNNL_ARG_DIFF_SRC;
    const bool is_w = name == DNNL_ARG_WEIGHTS || name == DNNL_ARG_DIFF_WEIGHTS;
    const memory::desc& desc = is_x ? x_used : is_w ? w_used : y_used;
    kept.push_back(Tensor::empty_on(Device{}, {static_cast<int64_t>(desc.get_size())}, DType::u8));
    kept.back().fill_zero();
    arguments.emplace(name, memory(desc, engine, kept.back().raw()));
  }
  return time_calls([&] { cpu::execute(plan, arguments); });
}

}  // namespace

void print_tune_table(const Options& o) {
  Context context({.threads = static_cast<int>(o.threads)});
  const bool half = o.precision == "bf16";
  const DType dtype = half ? DType::bf16 : DType::f32;
  constexpr const char* kDirections[] = {"forward", "weight", "input"};
  std::printf(
      "# %s, %lld threads, %s, ms; -: there is none\n"
      "# c16, nhwc: direct by oneDNN; winograd: oneDNN's; own: layers/winograd_cpu.cpp\n",
      cpu_name().c_str(), static_cast<long long>(o.threads), dtype_name(dtype));
  std::printf("%-9s %5s %5s %5s %2s %2s %5s %-8s %9s %9s %9s %9s  %-8s %8s\n", "network", "batch",
              "in", "out", "k", "s", "size", "pass", "c16", "nhwc", "winograd", "own", "fastest",
              "GFLOP/s");
  for (const ConvShape& s : kShapes) {
    for (const Direction d : {Direction::forward, Direction::weight, Direction::input}) {
      if (d == Direction::input && s.in == 3) continue;  // nobody asks for the images' gradient
      using dnnl::algorithm;
      const std::optional<double> times[] = {
          time_conv(s, d, algorithm::convolution_direct, tag::aBcd16b, dtype),
          time_conv(s, d, algorithm::convolution_direct, tag::acdb, dtype),
          s.kernel == 3 && s.stride == 1 && !half
              ? time_conv(s, d, algorithm::convolution_winograd, tag::aBcd16b, dtype)
              : std::nullopt,
          time_own(s, d, dtype)};
      constexpr const char* kNames[] = {"c16", "nhwc", "winograd", "own"};
      int best = -1;
      std::string columns;
      for (int i = 0; i < 4; ++i) {
        char text[16] = "        -";
        if (times[i]) std::snprintf(text, sizeof text, "%9.3f", *times[i]);
        columns += concat(" ", text);
        if (times[i] && (best < 0 || *times[i] < *times[best])) best = i;
      }
      const double side = static_cast<double>((s.size - 1) / s.stride + 1);
      const double gflop =
          2e-9 * static_cast<double>(s.batch * s.in * s.out * s.kernel * s.kernel) * side * side;
      std::printf("%-9s %5lld %5lld %5lld %2lld %2lld %5lld %-8s%s  %-8s %8.1f\n", s.network,
                  static_cast<long long>(s.batch), static_cast<long long>(s.in),
                  static_cast<long long>(s.out), static_cast<long long>(s.kernel),
                  static_cast<long long>(s.stride), static_cast<long long>(s.size),
                  kDirections[static_cast<int>(d)], columns.c_str(), best < 0 ? "-" : kNames[best],
                  best < 0 ? 0.0 : 1000 * gflop / *times[best]);
      std::fflush(stdout);
    }
  }
}

}  // namespace heddle::bench
