// LayerPlanner: runs L-GreCo (arXiv 2210.17357) during training. Every `every` steps it chooses a
// new setting for each layer. Over a window of steps each rank sums its gradients with their signs,
// so that layers whose gradients agree from step to step weigh more. Residuals are left out by
// default: they depend on the plan in use more than on the layer, and plans would alternate.
// From these sums a background thread computes the error of each setting. At a step that is fixed
// when the window closes the ranks exchange their tables and average them; a second background task
// solves for the plan (l_greco.h) during the next step, and the plan is used from then on. Between
// windows nothing is computed or copied.
//
//   steps   | window: sums | tables of errors, in the background | exchange, solve | new settings
//   ...
//
// The budget is the error of the uniform settings, or of those that Accordion chooses (accordion.h)
// by the norms of the windows' gradients without residuals. Plans minimise bytes or, optionally,
// the measured time of encoding and exchange.
//
//   LayerPlanner planner(reducer, {.every = 390}, compress_start);
//   planner.finish_step(step, lr, collective);   // after every step, on all ranks
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "compress/compressed_reducer.h"
#include "compress/plan/accordion.h"
#include "compress/plan/l_greco.h"

namespace heddle {

// The outcome of one round of planning.
struct PlanReport {
  int64_t step;  // steps before the plan
  std::vector<LayerChoices> layers;
  LayerPlan plan;              // used from now on
  bool changed;                // false: no better plan than the last one was found
  std::vector<bool> critical;  // by layer, if Accordion sets the budget
};

struct LayerPlannerOptions {
  int64_t every = 0;         // steps from window to window; 0: no plans
  int64_t window = 10;       // steps, at most `every`
  bool compensated = false;  // errors are those of gradients with residuals, as in L-GreCo's code
  double alpha = 1;          // the budget is alpha times the error of the uniform settings,
  bool accordion = false;    // or of Accordion's
  bool time = false;         // plans minimise nanoseconds, not bytes
  std::function<void(const PlanReport&)> on_plan = {};
  std::function<void(const std::string&)> log = {};  // called once for each reason to stay uniform
};

// The state of a planner for a checkpoint.
struct LayerPlannerState {
  // The same on all ranks.
  int64_t due = -1;                  // steps after which the table becomes a plan
  std::vector<LayerChoices> layers;  // without errors; empty before the first window has closed
  std::vector<size_t> current;
  Accordion::Sample sample;
  std::optional<double> lr;  // of the last step before the tables were exchanged
  // This rank's own: the table that its background thread has computed, empty if none is due, and
  // the open window, whose tensors may still grow.
  std::vector<double> table;
  GradientWindow window;
};

class LayerPlanner {
 public:
  // Runs a collective, named `what` in the ledger, after those already posted; waits for it.
  using Collective =
      std::function<void(const std::string& what, const std::function<void(Communicator&)>& call)>;

  // The reducer compresses from step `start` on, with uniform settings. It and the current Context
  // must outlive the planner. Throws InputError for impossible options and if no layer has a
  // setting.
  LayerPlanner(CompressedReducer& reducer, const LayerPlannerOptions& options, int64_t start);

  // Ends a step, on all ranks: `step` steps have been made, the last one at learning rate `lr`.
  // Windows close at multiples of `every`; a plan takes effect ten steps later, or before the next
  // window opens. If more than one step lies between, tables are exchanged before the last of them
  // and the plan is solved during it. Throws Error if the ranks' plans differ.
  void finish_step(int64_t step, double lr, const Collective& collective);

  // Returns the state, between steps; waits for the background thread.
  LayerPlannerState state();
  // Resumes after `step` steps of an earlier process that had the same options; with an empty state
  // they may differ. Without the table of the last window there is no plan from it.
  void restore(int64_t step, LayerPlannerState state);

 private:
  // One row per layer, concatenated: the errors of all settings; with options.time also their
  // seconds; with options.accordion also the norm of the gradients.
  using Table = std::vector<double>;

  bool closes_at(int64_t step) const;
  void open_window();
  size_t table_size() const;
  void store_table(Table table);
  void close_window(int64_t step);
  Table describe(const LayerChoices& layer, const GradientWindow& window, double per_byte) const;
  std::vector<double> read_table(const Table& table);
  // The result of solving with the ranks' averaged table.
  struct Solution {
    LayerPlan plan;
    Accordion accordion;
    std::vector<bool> critical;
  };

  LayerPlan choose(const std::vector<bool>& critical) const;
  void solve(double lr, const Collective& collective);
  void adopt(int64_t step, double lr, const Collective& collective);

  CompressedReducer& reducer_;
  LayerPlannerOptions options_;
  int64_t start_, due_ = -1;
  std::vector<LayerChoices> layers_;  // with the errors of the last table
  std::vector<size_t> current_;       // index of a candidate, for each of them
  Accordion accordion_;
  std::optional<double> lr_;  // as in LayerPlannerState; set while a plan is being solved
  std::set<std::string> reported_;
  std::future<Table> table_;  // declared last: their threads use the members above
  std::future<Solution> solution_;
};

}  // namespace heddle
