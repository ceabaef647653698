#include "apps/session/run_plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/flags.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/session/exchange.h"
#include "apps/session/layer_plan.h"
#include "apps/session/privacy.h"
#include "compress/innovation.h"
#include "core/error.h"
#include "optim/topology.h"

namespace heddle {
namespace {

// Returns why steps cannot be recorded; empty if they can.
std::string graph_hindrance(const CommonOptions& o, Device device, int learners) {
  if (!device.is_cuda()) return "needs a GPU";
  if (learners > 1) return "is for one learner: exchanges begin while backward runs";
  if (o.compress != "none") return "not with --compress";
  if (o.accumulate > 1) return "not with --accumulate";
  if (!o.trace.empty()) return "not with --trace, which would see no layers";
  if (o.explain_step > 0) return "not with --explain-step, which measures every layer";
  if (o.dump_gradients > 0) return "not with --dump-gradients, which copies those of every layer";
  return "";
}

}  // namespace

void check_options(const CommonOptions& o) {
  const CompressChoice& compress = o.parsed.compress;
  if (compress.automatic) {
    check(compress.spec.family != "none", "--compress ", o.compress,
          ": expected a compression to compare with dense exchange");
    check(o.layerwise == "uniform" && o.plan.empty(),
          "--compress auto decides by bucket; it cannot be combined with --layerwise or --plan");
    check(!o.deterministic,
          "--compress auto decides by measured times, which --deterministic excludes");
  }
  check_layerwise(o);
  check_privacy(o);
  if (!o.hosts.empty() && o.parsed.learners.size > 1) {  // else a file or the environment has it
    check(o.parsed.hosts <= o.parsed.learners.size, "--hosts ", o.hosts, ": expected at most ",
          o.parsed.learners.size, ", one for each learner");
    check(o.comm != "nccl", "--hosts: expected threads or MPI, not --comm nccl");
    check(!is_voting(o),
          "--hosts: topagg protects what each learner sends; sums within a host "
          "would be sent unprotected");
    check(!compress.automatic && o.layerwise == "uniform" && o.plan.empty() && o.shadow == 0,
          "--hosts: expected no --compress auto, --layerwise lgreco, --plan or --shadow, which are "
          "for an exchange between all learners");
  }
  if (!o.peers.empty()) {
    (void)Topology::parse(o.peers, o.parsed.learners.size);
    (void)parse_innovation(o.innovation);
    check(o.headroom == 0, "--headroom measures sums over all learners; it knows no --peers");
  }
  check(
      o.local_steps == 1 || (!is_voting(o) && !compress.automatic && o.layerwise == "uniform" &&
                             o.plan.empty() && o.shadow == 0 && o.hosts.empty() && o.headroom == 0),
      "--local-steps: expected no --compress topagg or auto, --layerwise lgreco, --plan, "
      "--shadow, --hosts or --headroom, which need an exchange in each step");
  check(o.outer_delay == 0 || o.outer_delay < o.local_steps,
        "--outer-delay: expected fewer steps than the ", o.local_steps, " of a round, found ",
        o.outer_delay);
  check(o.headroom == 0 || o.parsed.learners.size > 1,
        "--headroom needs several learners: give --learners N or start with mpirun");
}

int check_machine(const CommonOptions& o) {
  const int learners = o.parsed.learners.size;
  const Device device = o.parsed.device;
  check(o.training || learners == 1, "several learners are for training only");
  check(device.is_cuda() || o.precision != "bf16" || has_avx512(),
        "--precision bf16: this processor has no AVX-512, without which oneDNN has no bf16; "
        "expected fp32");
  if (o.training && o.graph == "on") {
    const std::string hindrance = graph_hindrance(o, device, learners);
    check(hindrance.empty(), "--graph on: ", hindrance);
  }
  return learners;
}

std::unique_ptr<StepGraph> make_step_graph(const CommonOptions& o, ParameterStore& store,
                                           int learners, const Logger& log) {
  if (o.graph == "off" || !graph_hindrance(o, store.values().device(), learners).empty())
    return nullptr;
  return std::make_unique<StepGraph>(
      store, [required = o.graph == "on", log](const std::string& why) {
        if (required) throw Error("--graph on: " + why);
        if (log) log("no CUDA graph, kernels are launched one by one: " + why);
      });
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

ScheduleOptions schedule_options(const CommonOptions& o, const StepPlan& plan) {
  const double epochs = to_double(plan.total_steps) / to_double(plan.steps_per_epoch);
  ScheduleOptions options{
      .kind = parse_schedule_kind(o.lr_scheduler),
      .lr = o.lr,
      .total_steps = plan.total_steps,
      .steps_per_epoch = plan.steps_per_epoch,
      .warmup_epochs = o.lr_warmup_epochs,
      .gamma = o.lr_gamma,
      .step_epochs = o.lr_step_size > 0 ? to_double(o.lr_step_size) : epochs / 3,
      .milestones = {epochs / 2, epochs * 3 / 4}};
  if (!o.lr_milestones.empty())
    options.milestones.assign(o.lr_milestones.begin(), o.lr_milestones.end());
  return options;
}

std::string describe_size(const ParameterStore& store) {
  const auto millions = [](int64_t n) {
    return decimals(to_double(n) / 1e6, n > 0 && n < 10000 ? 4 : 2) + " M";
  };
  const int64_t frozen = store.frozen_count();
  return concat(millions(store.count() + frozen), " parameters",
                frozen == 0 ? "" : concat(", ", millions(frozen), " of them frozen"));
}

std::string describe_machine_use(const CommonOptions& o, const ParameterStore& store,
                                 const Communicator& comm) {
  const Device device = store.values().device();
  const bool slow = o.precision == "bf16" && !device.is_cuda() && !has_matrix_tiles();
  return concat(" | ",
                comm.size() == 1 ? ""
                                 : concat(comm.size(), " learners (", comm.name(),
                                          o.net.empty() ? "" : " over " + o.net, "), "),
                to_string(device), ", ", o.threads, o.threads == 1 ? " thread, " : " threads, ",
                o.precision,
                o.tf32 && device.is_cuda() ? " (fp32 products in TF32)"
                : slow ? " (saves memory but little time: this processor has no AMX)"
                       : "",
                ", seed ", o.seed);
}

int64_t measure_step_bytes(Context& context, ParameterStore& store,
                           const std::function<Var(Tape&)>& forward) {
  const auto pool = context.pool(context.device());
  store.begin_step();
  pool->reset_peak();
  Tape tape({.step = 0});
  tape.backward(forward(tape));
  return to_int64(pool->peak_bytes_in_use());
}

std::string format_plan(const CommonOptions& o, const ParameterStore& store, const RunPlan& plan) {
  constexpr int64_t kMoreRows = 2;
  const StepPlan& steps = plan.steps;
  const int64_t measured = plan.step_bytes(plan.rows);
  const int64_t row = (plan.step_bytes(plan.rows + kMoreRows) - measured) / kMoreRows;
  const int64_t rows = std::min(o.batch_size, std::max<int64_t>(plan.most_rows, 1));
  const int64_t activations = row * rows, units = plan.units_per_row * rows;
  const int64_t gradient = store.count() * 4;
  const int64_t copies = o.optimizer == "sgd" ? (o.momentum > 0 ? 1 : 0) : 2;
  const int64_t state = store.values().bytes() * copies;
  const ExchangePlan exchange = plan_exchange(o, store, steps);
  const bool on_gpu = store.values().device().is_cuda();
  const int64_t here = o.parsed.learners.on_machine;
  const int64_t left = available_memory();
  // The anchor, its gradient and momentum, with a delay the weights at a round's end.
  const int64_t anchors = 2 + (o.outer_momentum > 0 ? 1 : 0) + (o.outer_delay > 0 ? 1 : 0);
  const int64_t anchor = o.local_steps == 1 ? 0 : gradient * anchors;
  const int64_t peak = measured + row * (rows - plan.rows) + state + anchor + exchange.state;
  if (o.json) {
    const int64_t epochs = (steps.total_steps + steps.steps_per_epoch - 1) / steps.steps_per_epoch;
    nlohmann::ordered_json json = {{plan.model, plan.model_name},
                                   {"parameters", store.count() + store.frozen_count()},
                                   {"frozen", store.frozen_count()},
                                   {"epochs", epochs},
                                   {"steps_per_epoch", steps.steps_per_epoch},
                                   {"steps", steps.total_steps},
                                   {"optimizer_state_bytes", state},
                                   {"activation_bytes", activations},
                                   {"peak_pool_bytes", peak},
                                   {"gradient_bytes_per_step", gradient},
                                   {"compressed_tensors", exchange.compressed_tensors},
                                   {"exchange_bytes_per_step", exchange.payload / o.local_steps},
                                   {"compressor_state_bytes", exchange.state}};
    if (is_voting(o)) json["epsilon"] = exchange.epsilon;
    return json_line(json);
  }
  std::string compressed, by = o.compress;
  const std::string each =
      o.local_steps > 1 ? concat(" every ", o.local_steps, " steps") : " a step";
  if (o.parsed.compress.automatic)
    by = to_string(o.parsed.compress.spec) + ", where --compress auto finds it faster";
  if (!o.peers.empty())
    compressed = concat("exchange          ", format_bytes(exchange.payload),
                        " a step to each neighbour, by --innovation ", o.innovation,
                        "\nstate of peers    ", format_bytes(exchange.state), " a learner\n");
  if (o.compress != "none")
    compressed = concat(
        "exchange          ", format_bytes(exchange.payload), each, " and learner, ",
        format_number(std::round(10.0 * to_double(gradient) / to_double(exchange.payload)) / 10),
        " times less than dense: ", exchange.compressed_tensors, " tensors by ", by,
        "\nresiduals         ", format_bytes(exchange.state),
        " a learner, with other state of the compressor\n");
  if (o.local_steps > 1)
    compressed +=
        concat("local steps       ", o.local_steps, " in a round; the weights that all share take ",
               format_bytes(anchor), " a learner, with what their update needs\n");
  if (is_voting(o)) compressed += "privacy           " + exchange.privacy + '\n';
  const std::string article = plan.unit == "image" ? "an " : "a ";
  return concat(
      "parameters        ", store.count() + store.frozen_count(), " in ",
      store.parameters().size() + store.frozen().size(), " tensors",
      store.frozen().empty() ? "" : concat(", ", store.frozen_count(), " of them frozen"), "\n",
      "steps             ", steps.total_steps, ", ", steps.steps_per_epoch, " an epoch, ",
      std::llround(to_double(units * o.accumulate) * steps.voters), " ", plan.unit,
      o.parsed.learners.size > 1 ? "s each of a learner\n" : "s each\n", "weights           ",
      format_bytes(gradient + 4 * store.frozen_count()), "\n", "gradients         ",
      format_bytes(gradient),
      "; a dense exchange between P learners sends 2 (P - 1) / P times that", each, "\n",
      compressed, "optimizer state   ", format_bytes(state), "\n", "activations       ",
      format_bytes(activations), ", ", format_bytes(activations / units), " ", article, plan.unit,
      " (estimate)\n", "peak of the pool  ", format_bytes(peak), " (estimate)",
      here == 1 ? "" : concat(", ", format_bytes(peak * here), " for ", here, " learners"), "\n",
      on_gpu || peak * here <= left
          ? ""
          : concat("too much: this machine has ", format_bytes(left), " of memory left\n"));
}

std::string format_config(const std::string& program, const std::string& rule,
                          const FlagTable& flags) {
  return concat("# ", program, " of heddle ", HEDDLE_VERSION,
                "; run it again with --config and this file\n", flags.dump(rule));
}

}  // namespace heddle
