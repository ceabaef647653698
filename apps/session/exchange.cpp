#include "apps/session/exchange.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/session/layer_plan.h"
#include "apps/session/privacy.h"
#include "comm/group.h"
#include "compress/compressed_reducer.h"
#include "compress/families.h"
#include "core/error.h"
#include "optim/decentralized.h"
#include "optim/local_steps.h"

namespace heddle {

int64_t first_compressed_step(const CommonOptions& o, const StepPlan& plan) {
  if (o.compress_start >= 0) return o.compress_start;
  if (plan.compress_start >= 0) return plan.compress_start;
  return std::max<int64_t>(100, std::min(plan.steps_per_epoch, plan.total_steps / 20));
}

namespace {

// Returns "step 24: 1 of 3 buckets compressed; …", for people.
std::string describe_choice(const ExchangeChoice& choice) {
  const size_t buckets = choice.compressed.size();
  const auto messages = buckets - to_size(std::ranges::count(choice.joined, true));
  const auto ms = [](double seconds) { return decimals(1e3 * seconds, 1) + " ms"; };
  return concat("step ", choice.step, ": ", std::ranges::count(choice.compressed, true), " of ",
                buckets, " buckets compressed",
                messages == buckets
                    ? ""
                    : concat(", sent as ", messages, messages == 1 ? " message" : " messages"),
                "; backward pass and exchange take ", ms(choice.used_s()), ", all dense ",
                ms(choice.dense_s), ", all compressed ", ms(choice.compressed_s),
                choice.dropped ? concat("; another choice, expected to take ", ms(choice.chosen_s),
                                        ", took ", ms(choice.found_s))
                               : "");
}

// Logs the choice, and writes it as exchange-<step>.json to the run folder.
void log_choice(const ExchangeChoice& choice, const RunOutput& output) {
  if (output.log) output.log(describe_choice(choice));
  if (output.folder == nullptr) return;
  nlohmann::ordered_json json = {{"step", choice.step},
                                 {"dense_s", choice.dense_s},
                                 {"compressed_s", choice.compressed_s},
                                 {"chosen_s", choice.chosen_s},
                                 {"found_s", nullptr},
                                 {"dropped", choice.dropped}};
  if (choice.found_s > 0) json["found_s"] = choice.found_s;
  const auto times = [](const BucketTimes& b) -> nlohmann::ordered_json {
    return {{"ready_s", b.ready_s},
            {"code_s", b.code_s},
            {"comm_s", b.comm_s},
            {"latencies", b.latencies}};
  };
  for (size_t i = 0; i < choice.compressed.size(); ++i)
    json["buckets"].push_back({{"compressed", static_cast<bool>(choice.compressed[i])},
                               {"joined", static_cast<bool>(choice.joined[i])},
                               {"dense", times(choice.dense_trial.buckets[i])},
                               {"packed", times(choice.compressed_trial.buckets[i])},
                               {"parameters", choice.parameters[i]}});
  output.folder->write_optional(concat("exchange-", choice.step, ".json"), json_line(json));
}

// Makes the reducer of a family that compresses, a CompressedReducer like all of these but topagg.
std::unique_ptr<CompressedReducer> reducer_for(const CommonOptions& o, const CompressSpec& spec,
                                               const ParameterStore& store) {
  std::unique_ptr<Reducer> reducer = make_reducer(spec,
                                                  {.seed = static_cast<uint64_t>(o.seed),
                                                   .dense_layers = o.dense_layers,
                                                   .min_compress = o.min_compress},
                                                  store);
  const std::regex dense(o.dense_layers);
  const auto is_dense = [&](const Parameter& p) { return std::regex_search(p.name, dense); };
  check(o.dense_layers.empty() || std::ranges::any_of(store.parameters(), is_dense),
        "--dense-layers ", o.dense_layers, ": matches no parameter; the first is called ",
        store.parameters().front().name);
  auto& compressed = dynamic_cast<CompressedReducer&>(*reducer);
  (void)reducer.release();
  return std::unique_ptr<CompressedReducer>(&compressed);
}

// Returns whether SGD applies what a residual held back at once, scaled by 1 / (1 - momentum).
bool residual_momentum(const CommonOptions& o, const CompressedReducer& reducer) {
  if (exchanged_momentum(o) == 0) return false;
  const std::string& mode = o.compressed_momentum;
  check(mode != "residual" || reducer.keeps_residuals(),
        "--compressed-momentum residual: ", reducer.name(), " keeps no residuals");
  // A round's change is a displacement of the weights; applied with that factor it goes too far.
  return reducer.keeps_residuals() && (mode.empty() ? o.local_steps == 1 : mode == "residual");
}

std::unique_ptr<UpdateRule> make_rule(const CommonOptions& o) {
  if (o.optimizer == "sgd")
    return make_sgd({.momentum = o.momentum,
                     .nesterov = o.nesterov,
                     .weight_decay = o.weight_decay,
                     .decay_norm_bias = o.decay_norm_bias});
  return make_adam({.weight_decay = o.weight_decay,
                    .decoupled = o.optimizer == "adamw",
                    .decay_norm_bias = o.decay_norm_bias});
}

OptimizerOptions optimizer_options(const CommonOptions& o, const Logger& log) {
  return {.accumulate = to_int(o.accumulate),
          .clip_grad_norm = o.clip_grad_norm,
          .on_nonfinite = o.on_nonfinite == "step" ? OnNonfinite::step : OnNonfinite::bucket,
          .log = log};
}

// Returns "gradients: scalecom:rate=100, dense for the first 390 of 6240 steps".
std::string describe_exchange(const CommonOptions& o, const StepPlan& plan,
                              const CompressSpec& spec, int learners,
                              const DataParallelOptions& parallel) {
  const int64_t start = parallel.compress_start;
  const CompressSpec& first = o.parsed.start_compress;
  const std::string how = first.family == "none" ? "dense" : to_string(first);
  std::string out = "gradients: " + to_string(spec);
  if (o.parsed.compress.automatic)
    out += " or dense, by bucket, whichever is faster; both are tried first, for 12 to 54 steps";
  if (start >= plan.total_steps) {
    out += concat(", but ", how, " in all ", plan.total_steps, " steps (--compress-start ", start,
                  ")");
  } else if (start > 0) {
    out += concat(", ", how, " for the first ", start, " of ", plan.total_steps, " steps");
  }
  if (!o.plan.empty()) out += ", by layer: " + o.plan;
  if (parallel.residual_momentum) out += "; no momentum for what a residual delays";
  if (learners == 1 && start < plan.total_steps)
    out += "; compressed, although a single learner sends nothing";
  return out;
}

// Returns the bytes to each neighbour, and of what a learner with peers keeps (decentralized.h).
ExchangePlan plan_innovations(const CommonOptions& o, const ParameterStore& store) {
  std::vector<int64_t> sizes;
  for (const Parameter& p : store.parameters()) sizes.push_back(p.size());
  const InnovationCoder coder(parse_innovation(o.innovation), sizes, 0);
  ExchangePlan plan{.state = store.count() * 20 + coder.scales().bytes()};
  for (size_t i = 0; i < sizes.size(); ++i) {
    plan.payload += coder.bytes(i);
    plan.compressed_tensors += coder.bytes(i) < 4 * sizes[i] ? 1 : 0;
  }
  return plan;
}

}  // namespace

ExchangePlan plan_exchange(const CommonOptions& o, const ParameterStore& store,
                           const StepPlan& steps) {
  if (!o.peers.empty()) return plan_innovations(o, store);
  if (o.compress == "none") return {.payload = store.count() * 4};
  if (is_voting(o)) {
    const auto voting = make_voting(o, store, steps, o.parsed.learners.size);
    ExchangePlan plan{.state = 2 * store.values().bytes(),
                      .compressed_tensors = std::ssize(store.parameters()),
                      .epsilon = voting->accountant()->spent_after(steps.total_steps).epsilon,
                      .privacy = describe_privacy(o, *voting->accountant(), steps,
                                                  o.parsed.learners.size, steps.total_steps)};
    for (const Parameter& p : store.parameters()) plan.payload += voting->payload(p);
    return plan;
  }
  const auto reducer = reducer_for(o, o.parsed.compress.spec, store);
  if (!o.plan.empty()) apply_layer_plan(o, store, o.parsed.learners.size, *reducer);
  ExchangePlan plan;
  for (const Parameter& p : store.parameters()) {
    plan.payload += reducer->payload(p.name);
    plan.compressed_tensors += reducer->compresses(p.name) ? 1 : 0;
  }
  for (const auto& [name, x] : reducer->named_state()) plan.state += x.bytes();
  return plan;
}

std::vector<int> learner_hosts(const CommonOptions& o, Communicator& comm, const Logger& log) {
  if (o.hosts.empty()) return {};
  const std::vector<int> found = comm.hosts();
  std::vector<int> hosts = found;
  if (o.parsed.hosts > 0)
    for (int r = 0; r < comm.size(); ++r)
      hosts[to_size(r)] = NetModel{.hosts = o.parsed.hosts}.host_of(r, comm.size());
  const std::vector<int> first = first_ranks(hosts);
  if (first_ranks(found).size() > 1)
    for (size_t r = 0; r < hosts.size(); ++r)
      check(found[r] == found[to_size(first[to_size(hosts[r])])], "--hosts ", o.hosts, ": learner ",
            r, " is on another host than learner ", first[to_size(hosts[r])], "; expected auto");
  const bool levels = first.size() > 1 && std::ssize(first) < comm.size();
  if (log && levels)
    log(concat("gradients: summed within each of ", first.size(),
               " hosts, and exchanged between them"));
  else if (log)
    log(concat("--hosts ", o.hosts, ": the exchange has one level, since ",
               first.size() > 1 ? "each learner is a host" : "all learners are on one host"));
  return levels ? hosts : std::vector<int>{};
}

DataParallelOptimizer make_optimizer(const CommonOptions& o, ParameterStore& store,
                                     Communicator& comm, const StepPlan& plan,
                                     const RunOutput& output, const DataParallelOptions& others) {
  const Logger& log = output.log;
  const CompressSpec spec = o.parsed.compress.spec;
  std::unique_ptr<CompressedReducer> reducer;
  std::unique_ptr<TopAgg> voting;
  DataParallelOptions parallel = others;
  parallel.bucket_bytes = std::max<int64_t>(1, to_int64(o.bucket_mb * (1 << 20)));
  parallel.overlap = o.overlap == "on";
  parallel.control_words = true;
  parallel.hosts = learner_hosts(o, comm, log);
  if (is_voting(o)) {
    voting = make_voting(o, store, plan, comm.size());
    if (log) log(concat("gradients: votes, ", to_string(spec)));
  } else if (spec.family != "none") {
    CompressSpec by_round = spec;
    if (const auto ramp = by_round.values.find("ramp"); ramp != by_round.values.end())
      ramp->second = std::ceil(ramp->second / to_double(o.local_steps));
    reducer = reducer_for(o, by_round, store);
    // In steps, from the beginning of a round; then in rounds.
    const int64_t rounds = (first_compressed_step(o, plan) + o.local_steps - 1) / o.local_steps;
    parallel.compress_start = rounds * o.local_steps;
    if (const CompressSpec& first = o.parsed.start_compress; first.family != "none")
      parallel.start = reducer_for(o, first, store);
    parallel.shadow_every = o.shadow;
    parallel.planner = planner_options(o, plan, store, comm.size(), output);
    if (o.parsed.compress.automatic) {
      parallel.chooser.every = std::max<int64_t>(plan.steps_per_epoch, 500);
      parallel.chooser.on_choice = [output](const ExchangeChoice& choice) {
        log_choice(choice, output);
      };
    }
    if (!o.plan.empty()) apply_layer_plan(o, store, comm.size(), *reducer);
    parallel.residual_momentum = residual_momentum(o, *reducer);
    if (log) log(describe_exchange(o, plan, spec, comm.size(), parallel));
    parallel.compress_start = rounds;
  }
  OptimizerOptions options = optimizer_options(o, log);
  if (o.local_steps > 1) {  // each learner accumulates and clips on its own
    options = {.on_nonfinite = options.on_nonfinite, .log = log};
    return {store,    make_sgd({.momentum = o.outer_momentum, .nesterov = o.outer_momentum > 0}),
            comm,     options,
            parallel, std::move(reducer)};
  }
  // With residuals, clips before sending: what is cut off after the exchange is lost.
  const bool local = o.clip_mode.empty() ? reducer != nullptr && reducer->keeps_residuals()
                                         : o.clip_mode == "local";
  if (local && (comm.size() > 1 || reducer != nullptr)) {
    parallel.local_clip = o.clip_grad_norm;
    options.clip_grad_norm = 0;
  } else if (log && o.clip_grad_norm > 0 && reducer != nullptr && reducer->keeps_residuals()) {
    log("--clip-mode " + o.clip_mode +
        " clips after the exchange: what it cuts off is in no residual and is lost");
  }
  std::unique_ptr<Reducer> either = std::move(reducer);
  if (voting != nullptr) either = std::move(voting);
  return {store, make_rule(o), comm, options, parallel, std::move(either)};
}

std::unique_ptr<LearnerOptimizer> make_learner_optimizer(const CommonOptions& o,
                                                         ParameterStore& store, Communicator& comm,
                                                         const StepPlan& plan, int64_t last_step,
                                                         const RunOutput& output) {
  if (o.peers.empty() && o.local_steps == 1)
    return std::unique_ptr<LearnerOptimizer>(
        new DataParallelOptimizer(make_optimizer(o, store, comm, plan, output)));
  if (o.local_steps > 1) {
    check(o.lr_scheduler != "plateau" || o.local_steps <= plan.steps_per_epoch,
          "--local-steps: expected at most the ", plan.steps_per_epoch,
          " steps of an epoch, after "
          "which --lr-scheduler plateau looks for progress, found ",
          o.local_steps);
    if (output.log)
      output.log(concat(
          "weights: each learner's own for ", o.local_steps,
          " steps; then all continue from their anchor, moved by ",
          o.outer_lr == 1 ? "" : concat(o.outer_lr, " times "), "the mean of their changes",
          o.outer_momentum > 0 ? concat(", with momentum ", o.outer_momentum) : "",
          o.outer_delay > 0 ? concat(", which is added ", o.outer_delay, " steps later") : "",
          o.local_steps > plan.steps_per_epoch
              ? "; a round is longer than an epoch: evaluations within it see old weights"
              : ""));
    return std::make_unique<LocalSteps>(
        store, make_rule(o), optimizer_options(o, output.log),
        LocalStepsOptions{o.local_steps, last_step, o.outer_lr, o.outer_delay},
        [&](ParameterStore& anchor) {
          return std::unique_ptr<DataParallelOptimizer>(new DataParallelOptimizer(
              make_optimizer(o, anchor, comm, plan, output, {.broadcast = false})));
        });
  }
  auto optimizer = std::make_unique<DecentralizedOptimizer>(
      store, make_rule(o), comm, optimizer_options(o, output.log),
      PeerOptions{.peers = o.peers,
                  .innovation = o.innovation,
                  .dual = o.peer_rule == "dual",
                  .mixing = o.peer_mixing,
                  .resync = o.resync,
                  .bucket_bytes = std::max<int64_t>(1, to_int64(o.bucket_mb * (1 << 20))),
                  .overlap = o.overlap == "on",
                  .most_non_finite = 0,  // the log ends such a run, on all ranks
                  .seed = static_cast<uint64_t>(o.seed)});
  if (output.log)
    output.log(concat("weights: exchanged with neighbours in the graph ", o.peers, " (",
                      optimizer->topology().degree(0), " of rank 0, second eigenvalue ",
                      decimals(optimizer->topology().second_eigenvalue(), 3), "), coded by ",
                      o.innovation, ", ", o.peer_rule, ", mixing ", optimizer->mixing()));
  return optimizer;
}

}  // namespace heddle
