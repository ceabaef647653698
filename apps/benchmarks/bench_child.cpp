// What runs in a process of its own: the training step, the machine's peak, the loader.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>

#include "apps/benchmarks/bench.h"
#include "apps/benchmarks/bench_trainer.h"
#include "apps/cli/json.h"
#include "apps/cli/process.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/context.h"
#include "core/gemm.h"
#include "core/kernels.h"
#include "core/onednn.h"
#include "core/parallel.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "data/loader.h"

namespace heddle::bench {
namespace {

DType dtype_of(const std::string& precision) {
  return precision == "bf16" ? DType::bf16 : DType::f32;
}

// Best GFLOP/s of a second of passes of `gflop` each.
template <class Pass>
double best_rate(Clock clock, double gflop, Pass&& pass) {
  pass();
  double best = 0;
  const double end = clock() + 1.0;
  do {
    const double begin = clock();
    pass();
    best = std::max(best, gflop / (clock() - begin));
  } while (clock() < end);
  return best;
}

// Multiply-adds in registers only: what the vector units can do at the clock of the moment.
#ifdef __AVX512F__
constexpr int kVectorBytes = 64;
#else
constexpr int kVectorBytes = 32;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));

double multiply_add_rate(Clock clock) {
  constexpr int kChains = 12, kRounds = 1 << 20;  // two units of latency four want eight chains
  const int threads = Context::current().threads();
  std::vector<float> out(static_cast<size_t>(threads));
  const double each = 2e-9 * kChains * kRounds * (kVectorBytes / 4.0);
  return best_rate(clock, each * threads, [&] {
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        Vector sums[kChains], factor = Vector{} + 0.999f, term = Vector{} + 0.001f;
        // Chains that begin alike would be one chain to the compiler.
        for (int k = 0; k < kChains; ++k) sums[k] = factor + static_cast<float>(k);
        for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
          for (Vector& s : sums) s = s * factor + term;
        }
        for (const Vector& s : sums) out[static_cast<size_t>(t)] += s[0];
      }
    });
  });
}

constexpr int64_t kGemm = 2048;
constexpr double kGemmGflop = 2e-9 * kGemm * kGemm * kGemm;

// A product of square matrices in oneDNN's own formats.
double gemm_rate(Clock clock, DType dtype) {
  using dnnl::memory;
  const dnnl::engine& engine = cpu::onednn().engine;
  const memory::desc any({kGemm, kGemm}, cpu::onednn_type(dtype), memory::format_tag::any);
  const dnnl::matmul::primitive_desc pd({any, any, any}, cpu::user_scratchpad(), engine);
  const cpu::Plan plan = {dnnl::matmul(pd), pd.scratchpad_desc()};
  auto argument = [&](const memory::desc& desc) {
    const Tensor t = Tensor::empty_on(Device{}, {static_cast<int64_t>(desc.get_size())}, DType::u8);
    t.fill_zero();
    return std::pair(t, memory(desc, engine, t.raw()));
  };
  const auto a = argument(pd.src_desc()), b = argument(pd.weights_desc()),
             c = argument(pd.dst_desc());
  return best_rate(clock, kGemmGflop, [&] {
    cpu::execute(
        plan, {{DNNL_ARG_SRC, a.second}, {DNNL_ARG_WEIGHTS, b.second}, {DNNL_ARG_DST, c.second}});
  });
}

void print_json(const nlohmann::ordered_json& value) {
  std::fputs(json_line(value).c_str(), stdout);
}

}  // namespace

void child_step(const Options& o, const Case& c) {
  Context context(
      {.device = parse_device(o.device), .threads = static_cast<int>(o.threads), .tune = true});
  Trainer trainer(c, dtype_of(o.precision), context.device());
  std::vector<double> ms, cpu_ms;
  float loss = 0;
  for (int64_t i = 0; i < o.warmup + (o.steps > 0 ? o.steps : c.steps); ++i) {
    const double begin = steady_seconds(), cpu_begin = process_cpu_seconds();
    loss = trainer.step();
    // On a GPU the update may still run.
    if (context.device().is_cuda()) (void)trainer.store().values().slice(0, 1).to_vector();
    if (i < o.warmup) continue;
    ms.push_back(1000 * (steady_seconds() - begin));
    cpu_ms.push_back(1000 * (process_cpu_seconds() - cpu_begin));
  }
  print_json(
      {{"ms", ms},
       {"cpu_ms", cpu_ms},
       {"gflop", trainer.gflop()},
       {"parameters", trainer.store().count()},
       {"loss", loss},
       {"rss_bytes", context.device().is_cuda()
                         ? static_cast<int64_t>(context.pool(context.device())->bytes_reserved() +
                                                trainer.graph_bytes())
                         : peak_rss_bytes()}});
}

namespace {

// Products and copies on a GPU, as the layers start them; the copy counts what it reads and writes.
void gpu_peak(Clock clock, Device device) {
  constexpr int64_t kSide = 8192, kTimes = 8;
  const auto wait_for = [](const Tensor& x) { (void)x.reshape({x.size()}).slice(0, 1).item(); };
  const auto product = [&](DType dtype) {
    const Philox noise(1, stream_id(Stream::sample));
    const Tensor host = Tensor::empty_on(Device{}, {kSide, kSide});
    uniform_init(1)(host.data<float>(), host.size(), noise);
    const Tensor a = converted(host.to(device), dtype, Layout::plain);
    const Tensor c = Tensor::empty_on(device, {kSide, kSide});
    return best_rate(clock, 2e-9 * kSide * kSide * kSide * kTimes, [&] {
      for (int64_t i = 0; i < kTimes; ++i) gemm(a, a, c);
      wait_for(c);
    });
  };
  const double gemm32 = product(DType::f32), gemm16 = product(DType::bf16);
  const Tensor from = Tensor::zeros({int64_t{1} << 29}), to = Tensor::zeros(from.shape());
  const double copy = best_rate(clock, 2e-9 * static_cast<double>(from.bytes()) * kTimes, [&] {
    for (int64_t i = 0; i < kTimes; ++i) to.copy_from(from);
    wait_for(to);
  });
  // Gradient and residual, each read and written.
  const int64_t n = int64_t{1} << 26, chunks = (n + 99) / 100;
  const Tensor g = Tensor::zeros({n}), m = Tensor::zeros({n});
  const Tensor indices = Tensor::empty({chunks}, DType::i32), sizes = Tensor::empty_like(indices);
  const double select = best_rate(clock, 16e-9 * static_cast<double>(n * kTimes), [&] {
    for (int64_t i = 0; i < kTimes; ++i)
      HEDDLE_DISPATCH(device, accumulate_residual(g, m, 100, indices, sizes));
    wait_for(m);
  });
  print_json({{"fma", 0.0},
              {"gemm", gemm32},
              {"gemm_bf16", gemm16},
              {"copy_gb_per_s", copy},
              {"select_gb_per_s", select}});
}

}  // namespace

void child_peak(const Options& o) {
  const Device device = parse_device(o.device);
  Context context({.device = device, .threads = static_cast<int>(o.threads)});
  const Clock clock = clock_of(o);
  if (device.is_cuda()) return gpu_peak(clock, device);
  const double fma = multiply_add_rate(clock), gemm = gemm_rate(clock, DType::f32);
  const bool half = cpu_has("avx512_bf16") || cpu_has("amx_bf16");
  const double bf16 = half ? gemm_rate(clock, DType::bf16) : 0.0;
  print_json({{"fma", fma}, {"gemm", gemm}, {"gemm_bf16", bf16}});
}

void child_loader(const Options& o) {
  Context context({.threads = 1});
  std::shared_ptr<const ImageDataset> set = open_dataset(o.data, Split::train);
  const Augmentation augmentation = make_augmentation("standard", set->info(), Split::train, 32);
  const Loader loader(set, augmentation, {.batch_size = 128, .workers = 1, .shuffle = true});
  int64_t images = 0;
  for (auto& batch : loader.epoch(0))  // to warm up: files into memory, buffers into the pool
    if ((images += batch.count) >= 2560) break;
  images = 0;
  const double begin = steady_seconds(), cpu_begin = process_cpu_seconds();
  double end = begin;
  for (int64_t e = 1; end < begin + 1.5; ++e)
    for (auto& batch : loader.epoch(e)) {
      images += batch.count;
      if ((end = steady_seconds()) >= begin + 1.5) break;
    }
  print_json({{"set", set->info().name},
              {"images", images},
              {"seconds", end - begin},
              {"cpu_seconds", process_cpu_seconds() - cpu_begin}});
}

namespace {

struct Range {
  std::string name, track;
  double begin, ms;
};

// The ranges of a trace, in the order of their beginnings.
std::vector<Range> read_trace(const Trace& trace) {
  const nlohmann::json events =
      nlohmann::json::parse(Trace::json(trace.events())).at("traceEvents");
  std::map<int, std::string> tracks;
  for (const auto& e : events)
    if (e.at("ph") == "M" && e.at("name") == "thread_name")
      tracks[e.at("tid")] = e.at("args").at("name");
  std::vector<Range> out;
  for (const auto& e : events)
    if (e.at("ph") == "X")
      out.push_back(
          {e.at("name"), tracks[e.at("tid")], e.at("ts"), e.at("dur").get<double>() / 1000});
  std::sort(out.begin(), out.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return out;
}

// One layer's times in ms: the shortest of all steps, since whatever disturbs makes them longer.
struct Layer {
  std::string name, kind = "other";
  Shape shape;
  double gflop = 0;  // of one of the three products
  double forward = 0, weight = 0, input = 0;
};

Layer describe_layer(const std::string& name, Trainer& trainer) {
  Layer out;
  out.name = name;
  const Parameter* p = trainer.store().find(name);
  if (p == nullptr) return out;
  out.shape = p->shape();
  int64_t weights = p->size();
  if (p->shape().rank() == 4) out.kind = "conv";
  if (p->shape().rank() == 2) out.kind = p->uses_per_sample > 0 ? "linear" : "embedding";
  if (const size_t at = name.find(".weight_ih_"); at != std::string::npos) {
    out.kind = "lstm";  // its range bears one name and covers both matrices
    weights += trainer.store().find(std::string(name).replace(at, 11, ".weight_hh_"))->size();
  }
  out.gflop = 2e-9 * p->uses_per_sample * static_cast<double>(weights * trainer.batch());
  if (p->shape().rank() == 1) out.kind = "norm";
  return out;
}

// The layers of the step whose ranges these are. `finals`: when a parameter's gradient was
// complete; for a convolution that is between its two products.
std::vector<Layer> sum_by_layer(const std::vector<Range>& ranges,
                                const std::map<std::string, double>& finals, Trainer& trainer) {
  std::vector<Layer> out;
  for (const Range& r : ranges) {
    if (r.track != "forward" && r.track != "backward") continue;
    auto layer =
        std::find_if(out.begin(), out.end(), [&](const Layer& l) { return l.name == r.name; });
    if (layer == out.end()) layer = out.insert(layer, describe_layer(r.name, trainer));
    if (r.track == "forward") {
      layer->forward += r.ms;
      continue;
    }
    const double weight = layer->kind == "conv" ? (finals.at(r.name) - r.begin) / 1000 : 0;
    layer->weight += weight;
    layer->input += r.ms - weight;
  }
  return out;
}

void print_layer(const Layer& l, double whole, double products) {
  const double ms = l.forward + l.weight + l.input;
  const std::string shape = l.shape.rank() > 0 ? to_string(l.shape) : "";
  std::printf("%-30s %-20s %9.3f %9.3f %9.3f %7.2f", l.name.c_str(), shape.c_str(), l.forward,
              l.weight, l.input, 100 * ms / whole);
  if (l.gflop > 0) std::printf(" %9.1f", products * l.gflop / ms * 1000);
  std::printf("\n");
}

}  // namespace

void break_down_step(const Options& o, const Case& c) {
  Context context(
      {.device = parse_device(o.device), .threads = static_cast<int>(o.threads), .tune = true});
  const std::string precision = o.precision == "bf16" ? "bf16" : "fp32";
  Trainer trainer(c, dtype_of(precision), context.device());
  const int64_t count = o.steps > 0 ? o.steps : c.steps;
  std::vector<std::map<std::string, double>> finals(static_cast<size_t>(count));
  std::vector<double> begins, step_ms;
  for (int64_t i = 0; i < o.warmup; ++i) trainer.step();
  context.trace().start();
  for (auto& final_times : finals) {
    begins.push_back(Trace::now());
    trainer.step([&](Parameter& p) { final_times[p.name] = Trace::now(); });
    step_ms.push_back((Trace::now() - begins.back()) / 1000);
  }
  begins.push_back(Trace::now());

  const std::vector<Range> ranges = read_trace(context.trace());
  std::vector<Layer> layers;
  double outside = INFINITY;  // of all ranges: the update, and whatever is between the layers
  for (size_t i = 0; i < finals.size(); ++i) {
    std::vector<Range> of_step;
    for (const Range& r : ranges)
      if (r.begin >= begins[i] && r.begin < begins[i + 1]) of_step.push_back(r);
    const std::vector<Layer> now = sum_by_layer(of_step, finals[i], trainer);
    double inside = 0;
    for (const Layer& l : now) inside += l.forward + l.weight + l.input;
    outside = std::min(outside, step_ms[i] - inside);
    if (layers.empty()) layers = now;
    for (size_t k = 0; k < now.size(); ++k) {
      layers[k].forward = std::min(layers[k].forward, now[k].forward);
      layers[k].weight = std::min(layers[k].weight, now[k].weight);
      layers[k].input = std::min(layers[k].input, now[k].input);
    }
  }

  double whole = outside;
  for (const Layer& l : layers) whole += l.forward + l.weight + l.input;
  std::printf("# %s %s, batch %lld, %lld threads: each layer's shortest time of %lld steps, ms\n",
              c.name.c_str(), precision.c_str(), static_cast<long long>(c.batch),
              static_cast<long long>(o.threads), static_cast<long long>(count));
  std::printf("# together %.1f, a whole step %.1f (median)\n", whole, median(step_ms));
  std::printf("# weight: a convolution's weight gradient; input: all the rest of backward\n");
  std::printf("%-30s %-20s %9s %9s %9s %7s %9s\n", "layer", "weight shape", "forward", "weight",
              "input", "% step", "GFLOP/s");
  std::map<std::string, Layer> sums;
  for (const Layer& l : layers) {
    // No gradient of the images.
    const double products = &l == &layers.front() && !c.is_text() ? 2 : 3;
    print_layer(l, whole, products);
    Layer& s = sums[l.kind];
    s.name = "all " + l.kind;
    s.gflop += l.gflop * products / 3;
    s.forward += l.forward;
    s.weight += l.weight;
    s.input += l.input;
  }
  for (const auto& [kind, sum] : sums) print_layer(sum, whole, 3);
  Layer rest;
  rest.name = "update, between layers";
  rest.forward = outside;
  print_layer(rest, whole, 0);
}

}  // namespace heddle::bench
