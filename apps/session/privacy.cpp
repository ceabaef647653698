#include "apps/session/privacy.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/exchange_state.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/log/summary.h"
#include "core/error.h"
#include "core/files.h"
#include "layers/weights.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

// The noise may be this many times the largest sum of votes.
constexpr double kMostNoise = 4;

// Returns the sum of the expected number of votes if all agree about an element; a clipped gradient
// is spread over all of them.
double largest_sum(const CommonOptions& o, const NoisySum& sum, const StepPlan& plan,
                   int learners) {
  const bool clipped = o.parsed.compress.spec.values.at("vote") == 2;
  return plan.voters * learners / (clipped ? std::sqrt(to_double(sum.elements)) : 1);
}

RdpAccountant::State everything() {
  RdpAccountant::State state;
  std::ranges::fill(state.spent, std::numeric_limits<double>::infinity());
  return state;
}

std::string account_text(const RdpAccountant& accountant, const std::string& unit) {
  const RdpAccountant::State& state = accountant.state();
  return json_line({{"unit", unit},
                    {"delta", accountant.mechanism().delta},
                    {"epsilon", accountant.spent().epsilon},
                    {"queries", state.queries},
                    {"spent", state.spent}});
}

// Raises the account to what the run in that folder has spent: everything if for another unit.
void read_account(const std::string& path, const std::string& unit, RdpAccountant& accountant) {
  read_members(path, [&] {
    const auto json = parse_json(read_text_file(path), path);
    check(json.is_object() && json.value("queries", nlohmann::json()).is_number_integer(), path,
          ": expected a whole number of queries");
    RdpAccountant::State state = parse_account(json);
    check(state.spent.size() == rdp_orders().size(), path, ": expected ", rdp_orders().size(),
          " numbers in \"spent\", found ", state.spent.size());
    if (json.at("unit").get<std::string>() != unit) state.spent = everything().spent;
    accountant.raise_to(state);
  });
}

}  // namespace

void check_privacy(const CommonOptions& o) {
  if (!is_voting(o)) return;
  const auto& values = o.parsed.compress.spec.values;
  check(!o.parsed.compress.automatic,
        "--compress auto would reveal dense gradients; expected topagg alone");
  check(o.peers.empty(),
        "--peers: weights would be exchanged without votes; expected no --compress");
  check(o.dp.unit != "group" || o.dp.rate > 0,
        "--dp-unit group needs --dp-rate, the probability of a group's vote in a step");
  check(o.accumulate == 1,
        "--compress topagg: expected no --accumulate; with --dp-unit group every group votes, and "
        "--dp-rate says how many do");
  check(o.clip_mode != "local",
        "--compress topagg: gradients are not clipped before they become votes; vote=clip does "
        "that by unit");
  check(!o.deterministic || values.at("noise-seed") != 0,
        "--deterministic: the noise of topagg differs from run to run, or it protects nobody; for "
        "tests add noise-seed=N");
  check(o.layerwise == "uniform" && o.plan.empty() && o.shadow == 0 && o.headroom == 0,
        "--compress topagg: expected no --layerwise, --plan, --shadow or --headroom, which look at "
        "gradients without noise");
}

std::unique_ptr<TopAgg> make_voting(const CommonOptions& o, const ParameterStore& store,
                                    const StepPlan& plan, int learners) {
  const CompressSpec& spec = o.parsed.compress.spec;
  const ReducerOptions options{.seed = static_cast<uint64_t>(o.seed),
                               .dense_layers = o.dense_layers,
                               .voting = {.voters = plan.voters,
                                          .rate = o.dp.unit == "group" ? o.dp.rate : 1,
                                          .replaced = o.dp.unit != "group",
                                          .delta = o.dp.delta,
                                          .steps = plan.total_steps}};
  auto reducer =
      std::make_unique<TopAgg>(ReducerSetup{find_family(spec.family), spec, options, store});
  const RdpAccountant& accountant = *reducer->accountant();
  const NoisySum& sum = accountant.mechanism();
  check(o.dp.delta * to_double(plan.units) < 1, "--dp-delta ", significant(o.dp.delta), ": with ",
        plan.units, " units, that is the chance to reveal one of them; expected less than 1 / ",
        plan.units);
  if (o.dp.anyway) return reducer;
  const char* anyway = "; --dp-anyway trains all the same";
  check(o.init.empty() || WeightsFile(o.init).value("privacy").empty(), "--init ", o.init,
        ": trained with votes, whose cost this run would not count: use --resume", anyway);
  check(sum.sigma > 0, "--compress topagg without noise protects nobody: give epsilon=X or sigma=X",
        anyway);
  check(o.dp.unit != "learner" || learners > 1,
        "--dp-unit learner: a learner alone has nobody to hide among", anyway);
  const double largest = largest_sum(o, sum, plan, learners);
  check(largest * kMostNoise >= sum.sigma, "--compress topagg: noise of ", significant(sum.sigma),
        " at every element, and votes that sum to ", significant(largest),
        " if all agree: nothing can be learned from them; expected more votes (--learners, or "
        "--dp-unit group with a larger --dp-rate), fewer steps, a smaller density or a larger "
        "epsilon",
        anyway);
  if (sum.secret)
    check(accountant.spent_after(1).epsilon <= kLargestEpsilon,
          "--compress topagg: one step costs "
          "an epsilon of ",
          significant(accountant.spent_after(1).epsilon),
          ", which protects nobody: expected more noise", anyway);
  return reducer;
}

std::string describe_privacy(const CommonOptions& o, const RdpAccountant& accountant,
                             const StepPlan& plan, int learners, int64_t steps) {
  const NoisySum& sum = accountant.mechanism();
  const double after = accountant.spent_after(steps).epsilon;
  std::string out;
  if (!sum.secret)
    out = "NOT PRIVATE, noise-seed reveals the noise";
  else if (sum.sigma == 0)
    out = "NOT PRIVATE, there is no noise";
  else if (!std::isfinite(after))
    out = "NOT PRIVATE, earlier steps have no account of their privacy";
  else
    out = concat("after ", steps, " steps", accountant.state().queries > 0 ? " more" : "",
                 " the weights will have epsilon ", significant(after), " at delta ",
                 significant(sum.delta), " for ", privacy_unit(o));
  if (const double limit = epsilon_limit(o, accountant); std::isfinite(after) && after > limit)
    out += concat("; the run ends before that, at ", significant(limit));
  return out + concat("; a vote has ", sum.elements, " elements, noise multiplier ",
                      significant(sum.noise_multiplier()), ", noise of ", significant(sum.sigma),
                      " against votes that sum to ",
                      significant(largest_sum(o, sum, plan, learners)), " if all agree");
}

double epsilon_limit(const CommonOptions& o, const RdpAccountant& accountant) {
  const double given = o.parsed.compress.spec.values.at("epsilon");
  const double limit = o.dp.epsilon_max > 0 ? o.dp.epsilon_max : given * (1 + 1e-9);
  return limit > 0 && accountant.mechanism().secret ? limit
                                                    : std::numeric_limits<double>::infinity();
}

void read_accounts(const CommonOptions& o, RdpAccountant& accountant, const RunFolder* folder,
                   const std::string& checkpoint, bool accounted, Communicator& comm) {
  const std::string unit = privacy_unit(o);
  std::string spent;
  if (folder != nullptr) {
    const auto exists = [](const fs::path& file) {
      std::error_code none;
      return fs::exists(file, none);
    };
    std::vector<fs::path> files = {folder->file(kPrivacyFile)};
    if (!checkpoint.empty()) {
      std::error_code none;
      const fs::path saves = fs::weakly_canonical(checkpoint, none).parent_path();
      if (saves.filename() == "checkpoints") {  // RUN/checkpoints/step-400
        files.push_back(saves.parent_path() / kPrivacyFile);
        accounted = accounted && exists(files.back());
      }
    }
    for (const fs::path& file : files)
      if (exists(file)) read_account(file.string(), unit, accountant);
    if (!checkpoint.empty() && !accounted) accountant.raise_to(everything());
    spent = account_text(accountant, unit);
  }
  accountant.raise_to(parse_account(nlohmann::json::parse(broadcast_text(spent, comm))));
}

void keep_account(const CommonOptions& o, RdpAccountant& accountant, const RunFolder& folder) {
  const auto write = [&accountant, &folder, unit = privacy_unit(o)](const RdpAccountant::State&) {
    folder.write(kPrivacyFile, account_text(accountant, unit));
  };
  write({});
  accountant.on_count(write);
}

}  // namespace heddle
