// Times oneDNN's direct and Winograd convolutions and our own Winograd kernels, for every shape and
// pass of the three networks. The rule in layers/conv2d_cpu.cpp is derived from this table.
#include <limits>
#include <optional>
#include <utility>

#include "apps/benchmarks/bench.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "core/context.h"
#include "core/trace.h"
#include "layers/conv2d_plan.h"
#include "layers/winograd.h"

namespace heddle::bench {
namespace {

using tag = dnnl::memory::format_tag;

struct ConvShape {
  const char* network;
  int64_t batch, in, out, kernel, stride, size;  // size: pixels a side of the input
};

// Every distinct convolution of the three cases, in the order of the forward pass.
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

// Returns the median of a few calls, in ms.
template <class Call>
double median_ms(const Call& call) {
  call();
  return 1000 * median(time_calls(steady_seconds, {.least = 5, .most = 50, .seconds = 0.1}, call));
}

// Times our own Winograd kernels; nothing for a shape that they do not take.
std::optional<double> time_own(const ConvShape& s, ConvPass pass, DType dtype) {
  if (s.kernel != 3 || s.stride != 1 || s.in % 16 != 0) return std::nullopt;
  const Tensor x = Tensor::zeros({s.batch, s.in, s.size, s.size}, dtype, Layout::c16);
  const Tensor y = Tensor::zeros({s.batch, s.out, s.size, s.size}, dtype, Layout::c16);
  const Tensor w = Tensor::zeros({s.out, s.in, s.kernel, s.kernel});
  if (!cpu::winograd_fits(x, w.shape())) return std::nullopt;
  return median_ms([&] {
    if (pass == ConvPass::forward) cpu::winograd_forward(x, w, y);
    if (pass == ConvPass::backward_input) cpu::winograd_backward_input(y, w, x);
    if (pass == ConvPass::backward_weight) cpu::winograd_backward_weight(x, y, w, 0.0f);
  });
}

// Times a oneDNN primitive; nothing if there is none.
std::optional<double> time_conv(const ConvShape& s, ConvPass pass, dnnl::algorithm algorithm,
                                tag format, DType dtype) {
  const auto type = cpu::onednn_type(dtype);
  const int64_t pad = s.kernel / 2, size = (s.size + 2 * pad - s.kernel) / s.stride + 1;
  const cpu::ConvProblem problem = {
      pass,
      {{s.batch, s.in, s.size, s.size}, type, s.in % 16 == 0 ? format : tag::abcd},
      {{s.out, s.in, s.kernel, s.kernel}, type, tag::any},
      {{s.batch, s.out, size, size}, type, format},
      {s.stride, s.stride},
      {pad, pad}};
  cpu::ConvPlan plan;
  try {
    plan = cpu::make_conv_plan(problem, algorithm);
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
  std::vector<Tensor> kept;
  const auto zeros = [&](const dnnl::memory::desc& desc) {
    kept.push_back(Tensor::zeros({to_int64(desc.get_size())}, DType::u8));
    return cpu::memory_at(desc, kept.back().raw());
  };
  const bool forward = pass == ConvPass::forward;
  const int x = pass == ConvPass::backward_input ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC;
  const int w = pass == ConvPass::backward_weight ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS;
  const cpu::Arguments arguments = {{x, zeros(plan.x)},
                                    {w, zeros(plan.w)},
                                    {forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, zeros(plan.y)}};
  return median_ms([&] { cpu::execute(plan.plan, arguments); });
}

}  // namespace

void print_tune_table(const Options& o) {
  Context context({.threads = to_int(o.threads)});
  const bool half = o.dtype() == DType::bf16;
  const TextTable table(
      "network -9|batch 5|in 5|out 5|k 2|s 2|size 5|pass -8|c16 9.3|nhwc 9.3|winograd 9.3|own 9.3|"
      " 0|fastest -8|GFLOP/s 8.1");
  print(concat("# ", cpu_name(), ", ", o.threads, " threads, ", dtype_name(o.dtype()),
               ", ms; -: there is none\n# c16, nhwc: direct by oneDNN; winograd: oneDNN's; own: "
               "layers/winograd_cpu.cpp\n",
               table.heading()));
  constexpr std::pair<ConvPass, const char*> kPasses[] = {{ConvPass::forward, "forward"},
                                                          {ConvPass::backward_weight, "weight"},
                                                          {ConvPass::backward_input, "input"}};
  for (const ConvShape& s : kShapes) {
    for (const auto& [pass, name] : kPasses) {
      if (pass == ConvPass::backward_input && s.in == 3) continue;  // images need no gradient
      using dnnl::algorithm;
      const std::pair<const char*, std::optional<double>> times[] = {
          {"c16", time_conv(s, pass, algorithm::convolution_direct, tag::aBcd16b, o.dtype())},
          {"nhwc", time_conv(s, pass, algorithm::convolution_direct, tag::acdb, o.dtype())},
          {"winograd",
           s.kernel == 3 && s.stride == 1 && !half
               ? time_conv(s, pass, algorithm::convolution_winograd, tag::aBcd16b, o.dtype())
               : std::nullopt},
          {"own", time_own(s, pass, o.dtype())}};
      std::vector<TextTable::Cell> row = {s.network, s.batch,  s.in,   s.out,
                                          s.kernel,  s.stride, s.size, name};
      const char* fastest = "-";
      double best = std::numeric_limits<double>::infinity();
      for (const auto& [kernel, ms] : times) {
        ms ? row.emplace_back(*ms) : row.emplace_back("-");
        if (ms && *ms < best) best = *ms, fastest = kernel;
      }
      const double side = to_double((s.size - 1) / s.stride + 1);
      const double gflop =
          2e-9 * to_double(s.batch * s.in * s.out * s.kernel * s.kernel) * side * side;
      row.insert(row.end(), {"", fastest, 1000 * gflop / best});
      print(table.row(row));
    }
  }
}

}  // namespace heddle::bench
