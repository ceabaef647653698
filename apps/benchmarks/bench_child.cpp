// The parts that run in a process of their own: the training step, the machine's peak, the loader.
#include <algorithm>
#include <cstdio>
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

// Returns the highest rate over one second of calls: GFLOP/s if each does `gflop` GFLOP, and GB/s
// for copies, which pass gigabytes instead.
template <class Call>
double best_rate(Clock clock, double gflop, Call&& call) {
  call();
  return gflop / shortest(time_calls(clock, {.seconds = 1}, call));
}

// Multiply-adds in registers only: the peak of the vector units at the present clock frequency.
#ifdef __AVX512F__
constexpr int kVectorBytes = 64;
#else
constexpr int kVectorBytes = 32;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));

double multiply_add_rate(Clock clock) {
  constexpr int kChains = 12, kRounds = 1 << 20;  // two units of latency four need at least eight
  const int threads = Context::current().threads();
  std::vector<float> out(to_size(threads));
  const double each = 2e-9 * kChains * kRounds * (kVectorBytes / 4.0);
  return best_rate(clock, each * threads, [&] {
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        Vector sums[kChains], factor = Vector{} + 0.999f, term = Vector{} + 0.001f;
        // The compiler would merge chains with equal first values.
        for (int k = 0; k < kChains; ++k) sums[k] = factor + to_float(k);
        for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
          for (Vector& s : sums) s = s * factor + term;
        }
        for (const Vector& s : sums) out[to_size(t)] += s[0];
      }
    });
  });
}

// Returns the rate of products of square matrices in oneDNN's own formats.
double gemm_rate(Clock clock, DType dtype) {
  using dnnl::memory;
  constexpr int64_t kGemm = 2048;
  const memory::desc any({kGemm, kGemm}, cpu::onednn_type(dtype), memory::format_tag::any);
  const auto pd =
      cpu::make_descriptor<dnnl::matmul::primitive_desc>(cpu::user_scratchpad(), any, any, any);
  const cpu::Plan plan = {dnnl::matmul(pd), pd.scratchpad_desc()};
  const auto zeros = [](const memory::desc& desc) {
    return Tensor::zeros({to_int64(desc.get_size())}, DType::u8);
  };
  const Tensor a = zeros(pd.src_desc()), b = zeros(pd.weights_desc()), c = zeros(pd.dst_desc());
  return best_rate(clock, 2e-9 * kGemm * kGemm * kGemm, [&] {
    cpu::execute(plan, {{DNNL_ARG_SRC, cpu::memory_at(pd.src_desc(), a.raw())},
                        {DNNL_ARG_WEIGHTS, cpu::memory_at(pd.weights_desc(), b.raw())},
                        {DNNL_ARG_DST, cpu::memory_at(pd.dst_desc(), c.raw())}});
  });
}

void print_json(const nlohmann::ordered_json& value) {
  std::fputs(json_line(value).c_str(), stdout);
}

// Measures matrix products, copies and ScaleCom's selection on a GPU, launched as the layers launch
// them. Bytes read and bytes written both count.
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
  const double copy = best_rate(clock, 2e-9 * to_double(from.bytes()) * kTimes, [&] {
    for (int64_t i = 0; i < kTimes; ++i) to.copy_from(from);
    wait_for(to);
  });
  // Gradient and residual, each read and written.
  const int64_t n = int64_t{1} << 26, chunks = (n + 99) / 100;
  const Tensor g = Tensor::zeros({n}), m = Tensor::zeros({n});
  const Tensor indices = Tensor::empty({chunks}, DType::i32), sizes = Tensor::empty_like(indices);
  const double select = best_rate(clock, 16e-9 * to_double(n * kTimes), [&] {
    for (int64_t i = 0; i < kTimes; ++i)
      HEDDLE_DISPATCH(device, add_and_swap(g, m, 100, indices, sizes));
    wait_for(m);
  });
  print_json({{"fma", 0.0},
              {"gemm", gemm32},
              {"gemm_bf16", gemm16},
              {"copy_gb_per_s", copy},
              {"select_gb_per_s", select}});
}

}  // namespace

void child_step(const Options& o) {
  const Case& c = o.cases.at(0);
  Context context({.device = o.parsed_device, .threads = to_int(o.threads), .tune = true});
  Trainer trainer(c, o.dtype(), context.device());
  std::vector<double> ms, cpu_ms;
  float loss = 0;
  for (int64_t i = 0; i < o.warmup + o.steps_of(c); ++i) {
    const double begin = steady_seconds(), cpu_begin = process_cpu_seconds();
    loss = trainer.step();
    if (context.device().is_cuda())  // waits for the update
      (void)trainer.store().values().slice(0, 1).to_vector();
    if (i < o.warmup) continue;
    ms.push_back(1000 * (steady_seconds() - begin));
    cpu_ms.push_back(1000 * (process_cpu_seconds() - cpu_begin));
  }
  print_json({{"ms", ms},
              {"cpu_ms", cpu_ms},
              {"gflop", trainer.gflop()},
              {"parameters", trainer.store().count()},
              {"loss", loss},
              {"rss_bytes", context.device().is_cuda()
                                ? to_int64(context.pool(context.device())->bytes_reserved() +
                                           trainer.graph_bytes())
                                : peak_rss_bytes()}});
}

void child_peak(const Options& o) {
  const Device device = o.parsed_device;
  Context context({.device = device, .threads = to_int(o.threads)});
  const Clock clock = clock_of(o);
  if (device.is_cuda()) return gpu_peak(clock, device);
  const double fma = multiply_add_rate(clock), gemm = gemm_rate(clock, DType::f32);
  const double bf16 = cpu_has_bf16() ? gemm_rate(clock, DType::bf16) : 0.0;
  print_json({{"fma", fma}, {"gemm", gemm}, {"gemm_bf16", bf16}});
}

void child_loader(const Options& o) {
  Context context({.threads = 1});
  std::shared_ptr<const ImageDataset> set = open_dataset(o.data, Split::train);
  const Augmentation augmentation = make_augmentation("standard", set->info(), Split::train, 32);
  const Loader loader(set, augmentation, {.batch_size = 128, .workers = 1, .shuffle = true});
  int64_t images = 0;
  for (auto& batch : loader.epoch(0))  // loads files into memory and buffers into the pool
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

}  // namespace heddle::bench
