// LayerPlanner: runs L-GreCo (arXiv 2210.17357) during training. Every `every` steps it chooses a
// new setting for each layer. Over a window of steps each rank sums up its gradients, residual
// included and with their signs, so that layers whose gradients agree from step to step weigh more.
// From these sums a background thread computes the error of each setting. At a step that is fixed
// when the window closes the ranks exchange their tables and average them; the plan is computed
// (l_greco.h) in parallel with the next step and used from then on. Between these windows nothing
// is computed or copied.
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

// What came out at a step.
struct PlanReport {
  int64_t step;  // steps that were made before the plan
  std::vector<LayerChoices> layers;
  LayerPlan plan;              // that is used from now on
  bool changed;                // false: it is the one before, for which no better was found
  std::vector<bool> critical;  // by layer, where Accordion sets the budget
};

struct LayerPlannerOptions {
  int64_t every = 0;       // steps from window to window; 0: no plans
  int64_t window = 10;     // steps, at most `every`
  double alpha = 1;        // error of a plan over that of the settings which set the budget:
  bool accordion = false;  // the uniform ones, or Accordion's
  bool time = false;       // plans make nanoseconds small, not bytes
  std::function<void(const PlanReport&)> on_plan = {};
  std::function<void(const std::string&)> log = {};  // told once for each reason to stay uniform
};

// What a checkpoint keeps of a planner.
struct LayerPlannerState {
  // The same on all ranks.
  int64_t due = -1;                  // steps after which the table becomes a plan
  std::vector<LayerChoices> layers;  // without errors; empty before the first window has closed
  std::vector<size_t> current;
  Accordion::Sample sample;
  std::optional<double> lr;  // of the last step before the tables were exchanged
  // Of one rank: what its background has found out, empty when nothing is due, and the window that
  // is open, whose tensors may still grow.
  std::vector<double> table;
  GradientWindow window;
};

class LayerPlanner {
 public:
  // Runs a collective in its turn, named for the ledger, and waits for it.
  using Collective =
      std::function<void(const std::string& what, const std::function<void(Communicator&)>& call)>;

  // The reducer, which compresses from step `start` on with uniform settings, must outlive the
  // planner, as must the current Context. Throws InputError for options that cannot be and where no
  // layer has a setting.
  LayerPlanner(CompressedReducer& reducer, const LayerPlannerOptions& options, int64_t start);

  // `step` steps have been made, the last at rate `lr`. Windows close at multiples of `every`; a
  // plan takes effect ten steps later, or before the next window opens; where more than one
  // step lies between, tables are exchanged and the plan is solved for beside the last. Throws
  // Error when the ranks' plans differ.
  void finish_step(int64_t step, double lr, const Collective& collective);

  // Between steps; waits for the background.
  LayerPlannerState state();
  // `step` steps have been made by an earlier process, with these options or, where the state is
  // empty, with others. Without the table of the last window it gives no plan.
  void restore(int64_t step, LayerPlannerState state);

 private:
  // What a rank knows of the layers, one after the other: the errors of all settings, then what the
  // options ask for, the seconds of all settings and the norm of the gradients.
  using Table = std::vector<double>;

  bool closes_at(int64_t step) const;
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
  std::vector<size_t> current_;       // a candidate for each of them
  Accordion accordion_;
  std::optional<double> lr_;  // while a plan is being solved for, as in LayerPlannerState
  std::set<std::string> reported_;
  std::future<Table> table_;  // last: their threads use the above
  std::future<Solution> solution_;
};

}  // namespace heddle
