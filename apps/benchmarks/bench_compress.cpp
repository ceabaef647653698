// The offline lab: random gradients, or those of a file, through every compression algorithm. A row
// has the compression ratio, the error, the codec's speed relative to plain copying (on a CPU), and
// the time of an exchange without a network relative to a training step.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "apps/benchmarks/bench.h"
#include "apps/cli/common_options.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "apps/log/summary.h"
#include "comm/threads.h"
#include "compress/codecs/blocks.h"
#include "compress/codecs/delta_code.h"
#include "compress/codecs/low_rank.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/quantize.h"
#include "compress/codecs/select.h"
#include "compress/families.h"
#include "compress/plan/l_greco.h"
#include "core/context.h"
#include "core/gemm.h"
#include "core/kernels.h"
#include "core/parallel.h"
#include "core/safetensors.h"
#include "optim/data_parallel.h"

namespace heddle::bench {
namespace {

constexpr size_t kWarmUp = 5;  // calls, during which PowerSGD's factors converge
const std::vector<std::string> kSpecs = {"bf16",           "fp16",
                                         "topk",           "randomk",
                                         "scalecom",       "scalecom:select=exact",
                                         "adacomp",        "adacomp:scale=bin",
                                         "qsgd:bits=2",    "qsgd:bits=4",
                                         "qsgd:bits=8",    "powersgd:rank=2",
                                         "powersgd:rank=4"};

// Returns the case that trains this network, if there is one.
std::optional<Case> case_of(const std::string& arch) {
  for (const Case& c : all_cases())
    if (c.arch == arch) return c;
  return std::nullopt;
}

// Draws normal numbers with heavy tails: each is multiplied by the exponential of another one, and
// by the scale of its layer, from 1e-5 to 1e-2.
void make_gradients(const Options& o, ParameterStore& store) {
  Case like{.name = o.arch, .classes = 10};
  if (const auto trained = case_of(o.arch)) like = *trained;
  const ResNet model(store, {.arch = o.arch, .classes = like.classes, .stem = like.stem});
  store.finalize(1);
  uint64_t layer = 0;
  for (Parameter& p : store.parameters()) {
    const Philox rng(static_cast<uint64_t>(o.seed), stream_id(Stream::sample, layer++));
    const auto scale = to_float(std::pow(10, -5 + 3 * rng.uniform(0)));
    const Tensor host = Tensor::empty_on(Device{}, p.shape());
    float* g = host.data<float>();
    parallel_for(p.size(), 4096, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<uint64_t>(2 * i + 4);  // after the scale's number
        g[i] = scale * rng.normal(at) * std::exp(rng.normal(at + 1));
      }
    });
    p.grad.copy_from(host);
  }
}

// Loads every fp32 tensor of the file.
void load_gradients(const std::string& path, ParameterStore& store) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const std::string& name : file.names())
    if (file.info(name).dtype == DType::f32 && file.info(name).shape.elements() > 0)
      store.add(name, file.info(name).shape, constant_init(0));
  check(!store.parameters().empty(), path, ": expected gradients as fp32, found none");
  store.finalize(1);
  for (Parameter& p : store.parameters()) {
    const Tensor values = file.load(p.name);
    check(largest_magnitude(values.data<float>(), p.size()) < kInfinite, path, ": ", p.name,
          ": expected finite numbers");
    p.grad.copy_from(values);
  }
  check(squared_norm(store.grads()) > 0, path, ": expected a gradient, found zeros only");
}

// One layer's codec, without residual and ranks: encode() fills a message, which decode() writes to
// another tensor.
struct Codec {
  std::function<void()> encode, decode;
};

template <class Type>
Codec cast_codec(const Tensor& x, const Tensor& out) {
  const auto message = std::make_shared<std::vector<Type>>(to_size(x.size()));
  return {[=] {
            parallel_for(x.size(), 4096, [&](int64_t begin, int64_t end) {
              cast_elements(x.data<float>() + begin, message->data() + begin, end - begin);
            });
          },
          [=] {
            parallel_for(x.size(), 4096, [&](int64_t begin, int64_t end) {
              cast_elements(message->data() + begin, out.data<float>() + begin, end - begin);
            });
          }};
}

struct SparseMessage {
  Indices indices;
  std::vector<float> values;
  std::vector<uint8_t> code;  // of the indices; empty where the receiver knows them (random-k)
};

// select(message) finds and encodes the indices, decode(code) returns them; null without a code.
Codec sparse_codec(const Tensor& x, const Tensor& out,
                   const std::function<void(SparseMessage&)>& select,
                   const std::function<Indices(std::span<const uint8_t>)>& decode) {
  const auto message = std::make_shared<SparseMessage>();
  return {[=] {
            select(*message);
            message->values.clear();
            for (const uint32_t i : message->indices) message->values.push_back(x.data<float>()[i]);
          },
          [=] {
            if (decode) message->indices = decode(message->code);
            out.fill_zero();
            const float* value = message->values.data();
            for (const uint32_t i : message->indices) out.data<float>()[i] = *value++;
          }};
}

Codec level_codec(const CompressSpec& spec, const Philox& rng, const Tensor& x, const Tensor& out) {
  const int bits = to_int(spec.values.at("bits"));
  const auto block = to_int64(spec.values.at("bucket"));
  std::optional<Philox> noise;
  if (spec.values.at("rounding") == 0) noise = rng;
  const int64_t blocks = (x.size() + block - 1) / block, bytes = quantized_bytes(block, bits);
  const auto message = std::make_shared<std::vector<uint8_t>>(to_size(blocks * bytes));
  const auto for_blocks = [=](const auto& each) {
    parallel_for(blocks, std::max<int64_t>(1, 16384 / block), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        each(b * block, std::min(block, x.size() - b * block), message->data() + b * bytes);
    });
  };
  return {[=] {
            for_blocks([&](int64_t at, int64_t n, uint8_t* to) {
              quantize(x.data<float>() + at, n, bits, noise, at, to);
            });
          },
          [=] {
            for_blocks([&](int64_t at, int64_t n, const uint8_t* from) {
              dequantize(from, n, bits, out.data<float>() + at);
            });
          }};
}

// Each call continues from the factor of the previous one, as from step to step.
Codec factor_codec(int64_t rank, const Philox& rng, const Tensor& x, const Tensor& out) {
  const int64_t rows = x.shape()[0], columns = x.size() / rows;
  const Tensor m = x.reshape({rows, columns});
  const Tensor p = Tensor::empty({rank, rows}), q = Tensor::empty({rank, columns});
  normal_init(1)(q.data<float>(), q.size(), rng);
  return {[=] {
            gemm(q, m, p, {.transpose_b = true});
            cpu::orthogonalize({p});
            gemm(p, m, q);
          },
          [=] { cpu::multiply_factors(p, q, out); }};
}

// Returns the codec of one layer: x in the layer's shape, out of the same size. None for a family
// that is unknown here; its exchanges are measured nevertheless.
std::optional<Codec> make_codec(const CompressSpec& spec, const Philox& rng, const Tensor& x,
                                const Tensor& out) {
  const auto value = [&](const char* key) { return spec.values.at(key); };
  const int64_t n = x.size();
  const auto top = [x](int64_t k) { return [=] { return select_top(elements(x), k); }; };
  const auto fixed_length = [&](const IndexCode& code, const std::function<Indices()>& select) {
    return sparse_codec(
        x, out,
        [=](SparseMessage& message) {
          message.indices = select();
          message.code.resize(to_size(code.bytes()));
          code.encode(message.indices, message.code.data());
        },
        [=](std::span<const uint8_t> bytes) { return code.decode(bytes.data()); });
  };
  if (spec.family == "bf16") return cast_codec<bfloat16>(x, out);
  if (spec.family == "fp16") return cast_codec<Half>(x, out);
  if (spec.family == "qsgd") return level_codec(spec, rng, x, out);
  if (spec.family == "powersgd") return factor_codec(to_int64(value("rank")), rng, x, out);
  if (spec.family == "scalecom") {
    const auto chunk = to_int64(value("rate"));
    const IndexCode code{n, (n + chunk - 1) / chunk, value("select") == 0 ? chunk : 0};
    if (code.chunk == 0) return fixed_length(code, top(code.k));
    return fixed_length(code, [=] { return select_chunks(elements(x), chunk); });
  }
  if (spec.family != "randomk" && spec.family != "topk") return std::nullopt;
  const int64_t k = kept_elements(value("density"), n);
  if (spec.family == "randomk")
    return sparse_codec(
        x, out, [=](SparseMessage& message) { message.indices = select_random(n, k, rng); }, {});
  if (value("indices") != 0) return fixed_length({n, k}, top(k));
  const DeltaCode gaps{n, k};
  return sparse_codec(
      x, out,
      [=, select = top(k)](SparseMessage& message) {
        message.indices = select();
        message.code = gaps.encode(message.indices);
      },
      [=](std::span<const uint8_t> bytes) { return gaps.decode(bytes); });
}

struct Row {
  double values = 1, wire = 1;  // 4 n over the bytes of values; over those of all but flags
  double error = 0;
  double bytes = 0;                   // of the gradients that the codec encodes; 0: unknown codec
  double encode_s = 0, decode_s = 0;  // of all layers
  double reduce_s = 0;
};

struct Lab {
  const Options& o;
  ParameterStore& store;
  Tensor gradient;
  size_t calls;  // timed ones

  Clock clock() const { return clock_of(o); }
  // Returns |x - gradient| / |gradient|; changes x.
  double relative_error(const Tensor& x) const {
    axpy(-1, gradient, x);
    return std::sqrt(squared_norm(x) / squared_norm(gradient));
  }
};

// Times whole exchanges of a single learner, on the thread that exchanges, with a residual if the
// algorithm keeps one. The error is that of the first exchange. Returns the layers that the
// algorithm has compressed.
std::vector<Parameter*> time_reduce(const Lab& lab, const CompressSpec& spec, Row& row) {
  ParameterStore& store = lab.store;
  const auto comm = make_solo();
  double exchanges = 0;  // seconds of all in this step, without the updates between them
  const auto on_event = [&](const char* what, int) {
    if (what == std::string("exchange")) exchanges -= lab.clock()();
    if (what == std::string("reduced")) exchanges += lab.clock()();
  };
  DataParallelOptimizer optimizer(
      store, make_sgd({}), *comm, {},
      {.bucket_bytes = default_bucket_mb(lab.o.parsed_device) << 20,
       .overlap = false,
       .check_every = 0,
       .on_event = on_event},
      make_reducer(spec, {.seed = static_cast<uint64_t>(lab.o.seed)}, store));
  row.reduce_s = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < kWarmUp + lab.calls; ++i) {
    exchanges = 0;
    optimizer.begin_step(0);
    store.grads().copy_from(lab.gradient);
    for (Parameter& p : store.parameters()) {
      p.next_beta();
      optimizer.ready(p);
      optimizer.weights_free(p);
    }
    optimizer.finish_step();
    if (i == 0) row.error = lab.relative_error(store.grads());
    if (i >= kWarmUp) row.reduce_s = std::min(row.reduce_s, exchanges);
  }
  row.values = ratios(optimizer, store).values;
  const Ledger& ledger = optimizer.ledger();
  const auto steps = to_double(kWarmUp + lab.calls);
  double encoded = 0;
  for (const PayloadKind kind : {PayloadKind::values, PayloadKind::indices, PayloadKind::scales})
    encoded += to_double(ledger.total(kind).payload) / steps;
  row.wire = to_double(store.count()) * 4 / encoded;
  std::vector<Parameter*> compressed;
  for (Parameter& p : store.parameters()) {
    const auto sent = ledger.entries().at({p.name, PayloadKind::values}).payload;
    if (to_double(sent) < steps * 4 * to_double(p.size())) compressed.push_back(&p);
  }
  return compressed;
}

// Times the codecs of these layers; their error replaces that of the exchange. Leaves the row as it
// is for a family whose codec is unknown here.
void time_codec(const Lab& lab, const CompressSpec& spec, const std::vector<Parameter*>& layers,
                Row& row) {
  const Tensor decoded = lab.gradient.clone();
  double bytes = 0;
  std::vector<Codec> codecs;
  for (const Parameter* p : layers) {
    const Philox rng(static_cast<uint64_t>(lab.o.seed), stream_id(Stream::codec, codecs.size()));
    const auto of_layer = [&](const Tensor& flat) {
      return flat.slice(p->offset, p->offset + p->size());
    };
    const auto codec =
        make_codec(spec, rng, of_layer(lab.gradient).reshape(p->shape()), of_layer(decoded));
    if (!codec) return;
    codecs.push_back(*codec);
    bytes += to_double(p->size()) * 4;
  }
  const auto encode = [&] {
    for (const Codec& codec : codecs) codec.encode();
  };
  const auto decode = [&] {
    for (const Codec& codec : codecs) codec.decode();
  };
  for (size_t i = 0; i < kWarmUp; ++i) encode();
  decode();
  row.bytes = bytes;
  row.error = lab.relative_error(decoded);
  row.encode_s = shortest(time_calls(lab.clock(), {.least = lab.calls}, encode));
  row.decode_s = shortest(time_calls(lab.clock(), {.least = lab.calls}, decode));
}

// Returns the ms of a training step of --arch, if it is the network of a case; 0: not known.
double measure_step_ms(const Options& o) {
  if (o.step_ms > 0) return o.step_ms;
  std::optional<Case> trained = case_of(o.arch);
  if (!o.gradients.empty() || !trained) return 0;
  if (o.batch > 0) trained->batch = o.batch;
  const std::string precision = o.precision == "bf16" ? "bf16" : "fp32";
  return shortest(run_for_json(step_command(o, *trained, precision)).at(o.ms_key()));
}

const TextTable kTable(
    "compress -57|values 7.2|wire 7.2|error 8.4|energy 8.2|encode 8|% 6.1|decode 8|"
    "% 6.1|reduce ms 10.2|% 6.2");

void print_heading(const Lab& lab, double copy, double step_ms) {
  const Options& o = lab.o;
  print(concat(
      "# ", cpu_name(), ", ", o.threads, " threads; gradients: ",
      o.gradients.empty() ? concat(o.arch, ", seed ", o.seed) : o.gradients, ", ",
      lab.store.count(), " elements in ", lab.store.parameters().size(), " tensors\n",
      "# values, wire: 4 n / bytes of values, 4 n / bytes of values, indices and scales\n"
      "# error: |x - C(x)| / |x|; energy, %: 1 - error^2, the part of |x|^2 a selection keeps\n"
      "# encode, decode: GB/s of gradients, %: of copying, ",
      decimals(copy, 2),
      " GB/s; -: not known here\n"
      "# reduce: the exchange of a single learner, on one thread; %: of a training step, ",
      step_ms > 0 ? concat(step_ms, " ms") : "not known", "\n# times: the shortest of ", lab.calls,
      " calls by the ", o.clock, " clock\n", kTable.heading()));
}

void print_row(const CompressSpec& spec, const Row& row, double copy, double step_ms) {
  std::vector<TextTable::Cell> cells = {to_string(spec), row.values, row.wire, row.error,
                                        100 * (1 - row.error * row.error)};
  for (const double seconds : {row.encode_s, row.decode_s}) {
    const double rate = row.bytes / seconds * 1e-9;
    if (row.bytes > 0)
      cells.insert(cells.end(), {decimals(rate, rate < 0.1 ? 4 : 2), 100 * rate / copy});
    else
      cells.insert(cells.end(), {"-", "-"});
  }
  cells.emplace_back(1e3 * row.reduce_s);
  step_ms > 0 ? cells.emplace_back(1e5 * row.reduce_s / step_ms) : cells.emplace_back("-");
  print(kTable.row(cells));
}

// Times L-GreCo's knapsack, for layers whose errors fall and whose bytes grow from setting to
// setting. A planner solves it twice if it finds a better plan than the last one.
void print_plan_time(const Lab& lab) {
  constexpr size_t kLayers = 60, kSettings = 12;
  const Philox rng(static_cast<uint64_t>(lab.o.seed), stream_id(Stream::selection, 0));
  uint64_t drawn = 0;
  std::vector<LayerChoices> layers(kLayers);
  for (LayerChoices& layer : layers) {
    layer.uniform = kSettings / 2;
    double error = std::pow(10.0, rng.uniform(drawn++)), bytes = 1000;
    for (size_t c = 0; c < kSettings; ++c) {
      layer.settings.push_back(to_double(c + 1));
      layer.errors.push_back(error);
      layer.bytes.push_back(to_int64(bytes));
      error *= 0.5 + 0.4 * rng.uniform(drawn++);
      bytes *= 1.2 + rng.uniform(drawn++);
    }
  }
  const double seconds =
      shortest(time_calls(lab.clock(), {.least = lab.calls}, [&] { (void)plan_layers(layers); }));
  print(concat("# a layer plan of ", kLayers, " layers with ", kSettings,
               " settings: ", decimals(1e3 * seconds, 2), " ms\n"));
}

}  // namespace

void measure_compression(const Options& o) {
  std::vector<CompressSpec> specs;
  for (const std::string& text : o.compress.empty() ? kSpecs : std::vector{o.compress}) {
    specs.push_back(parse_compress(text));
    check(to_string(specs.back()).find("rate=auto") == std::string::npos,
          "--compress: rate=auto follows from a forward pass: expected a number here");
  }
  Context context({.device = o.parsed_device, .threads = to_int(o.threads)});
  ParameterStore store;
  o.gradients.empty() ? make_gradients(o, store) : load_gradients(o.gradients, store);
  const Lab lab{o, store, store.grads().clone(), o.steps > 0 ? to_size(o.steps) : 10};
  const double step_ms = measure_step_ms(o), copy = copy_rate(o.threads, lab.clock());
  print_heading(lab, copy, step_ms);
  for (const CompressSpec& spec : specs) {
    Row row;
    const std::vector<Parameter*> compressed = time_reduce(lab, spec, row);
    if (!context.device().is_cuda()) time_codec(lab, spec, compressed, row);
    print_row(spec, row, copy, step_ms);
  }
  if (o.compress.empty()) print_plan_time(lab);
}

}  // namespace heddle::bench
