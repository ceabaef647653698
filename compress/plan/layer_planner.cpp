#include "compress/plan/layer_planner.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "core/context.h"
#include "core/hash.h"
#include "core/kernels.h"

namespace heddle {
namespace {

constexpr int64_t kDelay = 10;  // steps from window to plan; the plan is solved during the last
// The fraction of the cost that a new plan must save to replace one within the budget.
constexpr double kLeastGain = 0.02;
// The fraction of the budget that is left unused if that costs less than kLeastGain.
constexpr double kSlack = 0.02;

void check_same(const std::vector<size_t>& chosen, int64_t step,
                const LayerPlanner::Collective& collective) {
  const uint64_t hash = hash_bytes(chosen.data(), chosen.size() * sizeof(size_t));
  std::vector<std::vector<uint64_t>> all;
  collective("layer plan",
             [&](Communicator& comm) { all = gather_values(comm, std::vector{hash}); });
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r][0] != hash)
      throw Error(
          concat("step ", step, ": the layer plan of rank ", r, " is not what it is on this rank"));
}

}  // namespace

LayerPlanner::LayerPlanner(CompressedReducer& reducer, const LayerPlannerOptions& options,
                           int64_t start)
    : reducer_(reducer), options_(options), start_(start) {
  check(options.every > 0 && options.window > 0 && options.alpha > 0,
        "layer plans: expected every, window and alpha above 0, found ", options.every, ", ",
        options.window, ", ", options.alpha);
  check(!reducer.candidates().empty(), "layer plans: ", reducer.name(),
        " has no layer with a setting here");
  options_.window = std::min(options.window, options.every);
  if (closes_at(options_.window)) open_window();
}

void LayerPlanner::open_window() {
  reducer_.window().open(
      {.compensated = options_.compensated, .alone = options_.accordion || !options_.compensated});
}

bool LayerPlanner::closes_at(int64_t step) const {
  return step % options_.every == 0 && step >= start_ + options_.window;
}

void LayerPlanner::finish_step(int64_t step, double lr, const Collective& collective) {
  if (closes_at(step))
    close_window(step);
  else if (step == due_ - 1)
    solve(lr, collective);  // the background thread has had at least one step for the table
  if (step == due_) adopt(step, lr, collective);
  if (closes_at(step + options_.window)) open_window();
}

void LayerPlanner::close_window(int64_t step) {
  solution_ = {};  // of a plan that is due now, if a resumed run has a different interval
  lr_ = {};
  if (layers_.empty()) {  // the settings are still the uniform ones
    layers_ = reducer_.candidates();
    for (const LayerChoices& layer : layers_) current_.push_back(layer.uniform);
  }
  due_ = step + std::min(kDelay, options_.every - options_.window);
  const auto compute = [this, window = reducer_.window().close(), &context = Context::current()] {
    const ContextScope scope(context);
    omp_set_num_threads(1);  // the learner's threads are busy with the next steps
    const TraceRange range("plan", "error table");
    const double per_byte = seconds_per_byte(window.exchanges);
    Table table;
    for (const LayerChoices& layer : layers_) {
      const Table row = describe(layer, window, per_byte);
      table.insert(table.end(), row.begin(), row.end());
    }
    return table;
  };
  table_ = std::async(std::launch::async, compute);
}

LayerPlannerState LayerPlanner::state() {
  LayerPlannerState state{due_, layers_, current_, accordion_.last(), lr_, {}, {}};
  for (LayerChoices& layer : state.layers) layer.errors.clear(), layer.costs.clear();
  if (table_.valid()) {
    state.table = table_.get();
    store_table(state.table);
  }
  if (const GradientWindow* open = reducer_.window().window()) state.window = *open;
  if (!options_.time) state.window.exchanges.clear();
  return state;
}

void LayerPlanner::restore(int64_t step, LayerPlannerState state) {
  table_ = {};
  solution_ = {};
  layers_ = std::move(state.layers);
  current_ = std::move(state.current);
  accordion_.restore(std::move(state.sample));
  lr_ = {};
  due_ = -1;
  if (state.due > step && !layers_.empty() && state.table.size() == table_size()) {
    due_ = state.due;
    lr_ = state.lr;
    store_table(std::move(state.table));
  }
  (void)reducer_.window().close();
  const int64_t next = (step / options_.every + 1) * options_.every;
  if (!closes_at(next) || step < next - options_.window) return;
  open_window();
  reducer_.window().restore(std::move(state.window));
}

// Makes the table available as if the background thread had just computed it.
void LayerPlanner::store_table(Table table) {
  std::promise<Table> made;
  made.set_value(std::move(table));
  table_ = made.get_future();
}

size_t LayerPlanner::table_size() const {
  size_t size = options_.accordion ? layers_.size() : 0;
  for (const LayerChoices& layer : layers_) size += layer.settings.size() * (options_.time ? 2 : 1);
  return size;
}

LayerPlanner::Table LayerPlanner::describe(const LayerChoices& layer, const GradientWindow& window,
                                           double per_byte) const {
  // A layer whose buckets were all rejected has no sum: then there is no plan.
  const auto& sums = options_.compensated ? window.compensated : window.alone;
  const auto sum = sums.find(layer.name);
  const bool known = sum != sums.end();
  const Table unknown(layer.settings.size(), INFINITY);
  Table row = known ? reducer_.errors(layer, sum->second) : unknown;
  if (options_.time) {
    const Table seconds = known ? reducer_.seconds(layer, sum->second) : unknown;
    for (size_t c = 0; c < seconds.size(); ++c)
      row.push_back(seconds[c] + per_byte * to_double(layer.bytes[c]));
  }
  if (options_.accordion)
    row.push_back(known ? std::sqrt(squared_norm(window.alone.at(layer.name))) : INFINITY);
  return row;
}

// Stores the table's errors and costs in layers_, and returns the norms.
std::vector<double> LayerPlanner::read_table(const Table& table) {
  std::vector<double> norms;
  auto at = table.begin();
  for (LayerChoices& layer : layers_) {
    const auto settings = std::ssize(layer.settings);
    layer.errors.assign(at, at + settings);
    at += settings;
    if (options_.time) {
      layer.costs.clear();
      for (const auto end = at + settings; at != end; ++at)
        layer.costs.push_back(std::isfinite(*at) ? std::llround(1e9 * *at) : 0);
    }
    if (options_.accordion) norms.push_back(*at++);
  }
  return norms;
}

// Returns the best plan, or the last one if that is nearly as good and still within the budget. A
// new plan leaves some slack, so that the next table, whose errors may be slightly larger, allows
// it, too.
LayerPlan LayerPlanner::choose(const std::vector<bool>& critical) const {
  LayerPlanOptions options{.alpha = options_.alpha};
  if (options_.accordion) {
    LayerPlan basis;
    basis.chosen = accordion_settings(layers_, critical);
    measure_plan(layers_, basis);
    options.budget = options_.alpha * basis.error;
  }
  LayerPlan plan = plan_layers(layers_, options);
  LayerPlan before = plan;
  before.chosen = current_;
  measure_plan(layers_, before);
  const bool keeps_budget = before.error <= plan.budget;
  const auto gain = [](const LayerPlan& from, const LayerPlan& to) {
    return to_double(to.cost) <= (1 - kLeastGain) * to_double(from.cost);
  };
  // Measured times change: a plan that was cheaper than the uniform settings may no longer be so.
  const bool too_expensive = plan.cost <= plan.uniform_cost && before.cost > plan.uniform_cost;
  if (!plan.fallback.empty()) return plan;
  options.budget = (1 - kSlack) * plan.budget;
  LayerPlan with_slack = plan_layers(layers_, options);
  with_slack.budget = plan.budget;
  const bool expensive = with_slack.cost > plan.uniform_cost && plan.cost <= plan.uniform_cost;
  if (with_slack.fallback.empty() && !gain(with_slack, plan) && !expensive)
    plan = std::move(with_slack);
  return keeps_budget && !gain(before, plan) && !too_expensive ? before : plan;
}

// Averages the tables and solves in the background. Keeps the rank's own table, which a checkpoint
// saves; a resumed run solves again.
void LayerPlanner::solve(double lr, const Collective& collective) {
  if (!lr_) lr_ = lr;
  Table table = table_.get();
  store_table(table);
  collective("layer plan", [&](Communicator& comm) { table = mean_over_ranks(comm, table); });
  const std::vector<double> norms = read_table(table);
  solution_ = std::async(std::launch::async, [this, norms, &context = Context::current()] {
    const ContextScope scope(context);
    const TraceRange range("plan", "solve");
    Solution out{.plan = {}, .accordion = accordion_, .critical = {}};
    if (options_.accordion) out.critical = out.accordion.judge(norms, *lr_);
    out.plan = choose(out.critical);
    return out;
  });
}

void LayerPlanner::adopt(int64_t step, double lr, const Collective& collective) {
  if (!solution_.valid())
    solve(lr, collective);  // there was no step to solve in, or not in this process
  Solution solution = solution_.get();
  table_ = {};
  lr_ = {};
  accordion_ = std::move(solution.accordion);
  const LayerPlan& plan = solution.plan;
  check_same(plan.chosen, step, collective);
  for (size_t l = 0; l < layers_.size(); ++l)
    reducer_.set_choice(layers_[l].name, layers_[l].settings[plan.chosen[l]]);
  const bool changed = plan.chosen != current_;
  current_ = plan.chosen;
  if (!plan.fallback.empty() && options_.log && reported_.insert(plan.fallback).second)
    options_.log(concat("step ", step, ": layers keep their uniform settings: ", plan.fallback));
  if (options_.on_plan) options_.on_plan({step, layers_, plan, changed, solution.critical});
}

}  // namespace heddle
