#include "apps/session/run_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/cli/flags.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/log/run_folder.h"
#include "apps/session/exchange.h"
#include "apps/session/learners.h"
#include "core/error.h"

namespace heddle {

namespace {

// Returns why steps cannot be recorded; empty if they can.
std::string graph_hindrance(const CommonOptions& o, Device device, int learners) {
  if (!device.is_cuda()) return "needs a GPU";
  if (learners > 1) return "is for one learner: exchanges begin while backward runs";
  if (o.compress != "none") return "not with --compress";
  if (o.accumulate > 1) return "not with --accumulate";
  if (!o.trace.empty()) return "not with --trace, which would see no layers";
  if (o.explain_step > 0) return "not with --explain-step, which looks at every layer";
  if (o.dump_gradients > 0) return "not with --dump-gradients, which copies those of every layer";
  return "";
}

}  // namespace

void check_device(const CommonOptions& o) {
  check(o.parsed.device.is_cuda() || o.precision != "bf16" || has_avx512(),
        "--precision bf16: this processor has no AVX-512, without which oneDNN has no bf16; "
        "expected fp32");
}

void check_graph(const CommonOptions& o) {
  if (o.graph != "on") return;
  const std::string hindrance = graph_hindrance(o, o.parsed.device, o.parsed.learners.size);
  check(hindrance.empty(), "--graph on: ", hindrance);
}

std::unique_ptr<StepGraph> make_step_graph(const CommonOptions& o, ParameterStore& store,
                                           int learners, const Logger& log) {
  if (o.graph == "off" || !graph_hindrance(o, store.values().device(), learners).empty())
    return nullptr;
  return std::make_unique<StepGraph>(store,
                                     [required = o.graph == "on", log](const std::string& why) {
                                       if (required) throw Error("--graph on: " + why);
                                       if (log)
                                         log("no CUDA graph, every step is started anew: " + why);
                                     });
}

std::unique_ptr<UpdateRule> make_rule(const CommonOptions& o) {
  if (o.optimizer == "sgd") {
    return make_sgd({.momentum = o.momentum,
                     .nesterov = o.nesterov,
                     .weight_decay = o.weight_decay,
                     .decay_norm_bias = o.decay_norm_bias});
  }
  AdamOptions options;
  options.weight_decay = o.weight_decay;
  options.decoupled = o.optimizer == "adamw";
  options.decay_norm_bias = o.decay_norm_bias;
  return make_adam(options);
}

ScheduleOptions schedule_options(const CommonOptions& o, int64_t total_steps,
                                 int64_t steps_per_epoch) {
  const double epochs = static_cast<double>(total_steps) / static_cast<double>(steps_per_epoch);
  ScheduleOptions options;
  options.kind = parse_schedule_kind(o.lr_scheduler);
  options.lr = o.lr;
  options.total_steps = total_steps;
  options.steps_per_epoch = steps_per_epoch;
  options.warmup_epochs = o.lr_warmup_epochs;
  options.gamma = o.lr_gamma;
  options.step_epochs = o.lr_step_size > 0 ? static_cast<double>(o.lr_step_size) : epochs / 3;
  options.milestones = {epochs / 2, epochs * 3 / 4};
  if (!o.lr_milestones.empty()) {
    options.milestones.assign(o.lr_milestones.begin(), o.lr_milestones.end());
  }
  return options;
}

OptimizerOptions optimizer_options(const CommonOptions& o, const Logger& log) {
  OptimizerOptions options;
  options.accumulate = static_cast<int>(o.accumulate);
  options.clip_grad_norm = o.clip_grad_norm;
  options.on_nonfinite = o.on_nonfinite == "step" ? OnNonfinite::step : OnNonfinite::bucket;
  options.log = log;
  return options;
}

DType activation_type(const CommonOptions& o) {
  return o.precision == "bf16" ? DType::bf16 : DType::f32;
}

StepPlan plan_updates(const CommonOptions& o, int64_t batches_per_epoch, const std::string& what) {
  check(batches_per_epoch >= o.accumulate, "--accumulate ", o.accumulate, ": an epoch has only ",
        batches_per_epoch, " ", what);
  StepPlan plan;
  plan.steps_per_epoch = batches_per_epoch / o.accumulate;
  plan.total_steps = o.epochs > 0 ? o.epochs * plan.steps_per_epoch : o.steps;
  if (o.steps > 0) plan.total_steps = std::min(plan.total_steps, o.steps);
  return plan;
}

std::string describe_machine_use(const CommonOptions& o, const ParameterStore& store) {
  return concat(to_string(store.values().device()), ", ", o.threads,
                o.threads == 1 ? " thread, " : " threads, ", o.precision,
                o.tf32 && store.values().device().is_cuda() ? " (fp32 products in TF32)" : "",
                ", seed ", o.seed);
}

std::string format_plan(const CommonOptions& o, const ParameterStore& store, const RunPlan& plan) {
  const StepPlan& steps = plan.steps;
  const int64_t gradient = store.count() * 4;
  const int64_t copies = o.optimizer == "sgd" ? (o.momentum > 0 ? 1 : 0) : 2;
  const int64_t state = store.values().bytes() * copies;
  const ExchangePlan exchange = plan_exchange(o, store);
  const int64_t peak = plan.peak_bytes + state + exchange.state;
  if (o.json) {
    const int64_t epochs = (steps.total_steps + steps.steps_per_epoch - 1) / steps.steps_per_epoch;
    return json_line({{plan.model, plan.model_name},
                      {"parameters", store.count()},
                      {"epochs", epochs},
                      {"steps_per_epoch", steps.steps_per_epoch},
                      {"steps", steps.total_steps},
                      {"optimizer_state_bytes", state},
                      {"activation_bytes", plan.activation_bytes},
                      {"peak_pool_bytes", peak},
                      {"gradient_bytes_per_step", gradient},
                      {"compressed_tensors", exchange.compressed_tensors},
                      {"exchange_bytes_per_step", exchange.payload},
                      {"compressor_state_bytes", exchange.state}});
  }
  std::string compressed, by = o.compress;
  if (o.parsed.compress.automatic)
    by = to_string(o.parsed.compress.spec) + ", where auto finds that faster";
  if (o.compress != "none")
    compressed = concat(
        "exchange          ", format_bytes(exchange.payload), " a step and learner, ",
        format_number(std::round(10.0 * static_cast<double>(gradient) /
                                 static_cast<double>(exchange.payload)) /
                      10),
        " times less: ", exchange.compressed_tensors, " tensors by ", by, "\nresiduals         ",
        format_bytes(exchange.state), " a learner, and what else compression keeps\n");
  const std::string article = plan.unit == "image" ? "an " : "a ";
  return concat("parameters        ", store.count(), " in ", store.parameters().size(),
                " tensors\n", "steps             ", steps.total_steps, ", ", steps.steps_per_epoch,
                " an epoch, ", plan.units_per_batch * o.accumulate, " ", plan.unit, "s each\n",
                "weights           ", format_bytes(gradient), "\n", "gradients         ",
                format_bytes(gradient),
                " a step; a dense exchange between P learners sends 2 (P - 1) / P times that\n",
                compressed, "optimizer state   ", format_bytes(state), "\n", "activations       ",
                format_bytes(plan.activation_bytes), ", ",
                format_bytes(plan.activation_bytes / plan.units_per_batch), " ", article, plan.unit,
                " (estimate)\n", "peak of the pool  ", format_bytes(peak), " (estimate)\n");
}

std::string format_config(const std::string& program, const std::string& rule,
                          const FlagTable& flags) {
  return concat("# ", program, " of heddle ", HEDDLE_VERSION,
                "; run it again with --config and this file\n", flags.dump(rule));
}

}  // namespace heddle
