// The time of a training step, layer by layer, from the trace of a few steps.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>

#include "apps/benchmarks/bench.h"
#include "apps/benchmarks/bench_trainer.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "core/context.h"
#include "core/streams.h"
#include "core/trace.h"

namespace heddle::bench {
namespace {

struct Range {
  std::string name, track;
  double begin_us, ms;
};

// Returns the ranges of a trace, in order of start time.
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
  std::ranges::sort(out, {}, &Range::begin_us);
  return out;
}

enum Pass : uint8_t { kForward, kWeight, kInput, kPasses };

// One layer, or a sum of layers, and the ms of its passes.
struct Layer {
  std::string name, kind = "other", shape = {};
  double gflop = 0;  // of one of the three products
  std::array<double, kPasses> ms = {};
  double total_ms() const { return std::accumulate(ms.begin(), ms.end(), 0.0); }
};

Layer describe_layer(const std::string& name, Trainer& trainer) {
  Layer out{.name = name};
  const Parameter* p = trainer.store().find(name);
  if (p == nullptr) return out;
  out.shape = to_string(p->shape());
  int64_t weights = p->size();
  if (p->shape().rank() == 4) out.kind = "conv";
  if (p->shape().rank() == 2) out.kind = p->uses_per_sample > 0 ? "linear" : "embedding";
  if (const size_t at = name.find(".weight_ih_"); at != std::string::npos) {
    out.kind = "lstm";  // its range has the name of one matrix and covers both
    weights += trainer.store().find(std::string(name).replace(at, 11, ".weight_hh_"))->size();
  }
  out.gflop = 2e-9 * p->uses_per_sample * to_double(weights * trainer.batch());
  if (p->shape().rank() == 1) out.kind = "norm";
  return out;
}

// A step as measured: when each parameter's gradient was complete, which for a convolution is
// between its two products.
struct Step {
  double begin_us = 0, end_us = 0;
  std::map<std::string, double> final_us = {};
};

// Returns the layers of a step, in the order of the trace.
std::vector<Layer> sum_by_layer(const std::vector<Range>& trace, const Step& step,
                                Trainer& trainer) {
  std::vector<Layer> out;
  for (const Range& r : trace) {
    if (r.begin_us < step.begin_us || r.begin_us >= step.end_us) continue;
    if (r.track != "forward" && r.track != "backward") continue;
    auto layer = std::ranges::find(out, r.name, &Layer::name);
    if (layer == out.end()) layer = out.insert(layer, describe_layer(r.name, trainer));
    if (r.track == "forward") {
      layer->ms[kForward] += r.ms;
      continue;
    }
    const double weight_ms =
        layer->kind == "conv" ? (step.final_us.at(r.name) - r.begin_us) / 1000 : 0;
    layer->ms[kWeight] += weight_ms;
    layer->ms[kInput] += r.ms - weight_ms;
  }
  return out;
}

void break_down(const Options& o, const Case& c) {
  Context context({.device = o.parsed_device, .threads = to_int(o.threads), .tune = true});
  Trainer trainer(c, o.dtype(), context.device());
  std::vector<Step> steps(to_size(o.steps_of(c)));
  for (int64_t i = 0; i < o.warmup; ++i) trainer.step();
  context.trace().start(true);
  for (Step& step : steps) {
    step.begin_us = Trace::now();
    trainer.step([&](Parameter& p) {
      wait_for_stream();
      step.final_us[p.name] = Trace::now();
    });
    wait_for_stream();
    step.end_us = Trace::now();
  }
  context.trace().stop();

  // The shortest times of all steps, because any disturbance makes them longer.
  const std::vector<Range> trace = read_trace(context.trace());
  std::vector<Layer> layers;
  std::vector<double> step_ms;
  double outside = std::numeric_limits<double>::infinity();  // the update, and time between layers
  for (const Step& step : steps) {
    const std::vector<Layer> now = sum_by_layer(trace, step, trainer);
    step_ms.push_back((step.end_us - step.begin_us) / 1000);
    double inside = 0;
    for (const Layer& l : now) inside += l.total_ms();
    outside = std::min(outside, step_ms.back() - inside);
    if (layers.empty()) layers = now;
    for (size_t k = 0; k < now.size(); ++k)
      for (size_t pass = 0; pass < kPasses; ++pass)
        layers[k].ms[pass] = std::min(layers[k].ms[pass], now[k].ms[pass]);
  }

  double whole = outside;
  for (const Layer& l : layers) whole += l.total_ms();
  const TextTable table(
      "layer -30|weight shape -20|forward 9.3|weight 9.3|input 9.3|% step 7.2|"
      "GFLOP/s 9.1");
  print(concat(
      "# ", c.name, " ", o.precision == "bf16" ? "bf16" : "fp32", ", batch ", c.batch, ", ",
      o.threads, " threads: each layer's shortest time of ", steps.size(),
      " steps, ms\n# together ", decimals(whole, 1), ", a whole step ",
      decimals(median(step_ms), 1),
      " (median)\n# weight: a convolution's weight gradient; input: all the rest of backward\n",
      table.heading()));
  const auto print_layer = [&](const Layer& l) {
    std::vector<TextTable::Cell> row = {l.name,        l.shape,      l.ms[kForward],
                                        l.ms[kWeight], l.ms[kInput], 100 * l.total_ms() / whole};
    if (l.gflop > 0) row.emplace_back(l.gflop / l.total_ms() * 1000);
    print(table.row(row));
  };
  std::map<std::string, Layer> sums;
  for (Layer& l : layers) {
    l.gflop *= &l == &layers.front() && !c.is_text() ? 2 : 3;  // images have no gradient
    print_layer(l);
    Layer& sum = sums[l.kind];
    sum.name = "all " + l.kind;
    sum.gflop += l.gflop;
    for (size_t pass = 0; pass < kPasses; ++pass) sum.ms[pass] += l.ms[pass];
  }
  for (const auto& [kind, sum] : sums) print_layer(sum);
  print_layer({.name = "update, between layers", .ms = {outside}});
}

}  // namespace

void break_down_steps(const Options& o) {
  for (const Case& c : o.cases) break_down(o, c);
}

}  // namespace heddle::bench
