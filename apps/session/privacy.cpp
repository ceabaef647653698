#include "apps/session/privacy.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/exchange_state.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

// The noise may be this many times the loudest possible sum of votes.
constexpr double kMostNoise = 4;

double loudest_sum(const StepPlan& plan, int learners) { return plan.voters * learners; }

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

// Returns what the run in that folder has spent; everything if that was for another unit.
RdpAccountant::State read_account(const std::string& path, const std::string& unit) {
  RdpAccountant::State state;
  read_members(path, [&] {
    const auto json = parse_json(read_text_file(path), path);
    state = parse_account(json);
    if (json.at("unit").get<std::string>() != unit) state.spent = everything().spent;
  });
  return state;
}

}  // namespace

void check_privacy(const CommonOptions& o) {
  if (!is_voting(o)) return;
  const auto& values = o.parsed.compress.spec.values;
  check(!o.parsed.compress.automatic,
        "--compress auto would reveal dense gradients; expected topagg alone");
  check(o.dp.unit == "learner" || o.dp.rate > 0,
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
                                          .replaced = o.dp.unit == "learner",
                                          .delta = o.dp.delta,
                                          .steps = plan.total_steps}};
  auto reducer =
      std::make_unique<TopAgg>(ReducerSetup{find_family(spec.family), spec, options, store});
  const double sigma = reducer->accountant()->mechanism().sigma;
  const double loudest = loudest_sum(plan, learners);
  check(
      sigma > 0 || o.dp.anyway,
      "--compress topagg without noise protects nobody: give epsilon=X or sigma=X, or --dp-anyway "
      "to train all the same");
  check(loudest * kMostNoise >= sigma || o.dp.anyway, "--compress topagg: noise of ",
        significant(sigma), " at every element, and votes that sum to ", significant(loudest),
        " at most: nothing can be learned from them; expected more votes (--learners, or --dp-unit "
        "group with a larger --dp-rate), fewer steps, a smaller density or a larger epsilon; "
        "--dp-anyway trains all the same");
  return reducer;
}

std::string describe_privacy(const CommonOptions& o, TopAgg& reducer, const StepPlan& plan,
                             int learners) {
  const RdpAccountant& accountant = *reducer.accountant();
  const NoisySum& sum = accountant.mechanism();
  std::string out;
  if (!sum.secret)
    out += "NOT PRIVATE, noise-seed tells the noise";
  else if (sum.sigma == 0)
    out += "NOT PRIVATE, there is no noise";
  else
    out += concat("the weights after ", plan.total_steps, " steps will have epsilon ",
                  significant(accountant.spent_after(plan.total_steps).epsilon), " at delta ",
                  significant(sum.delta), " for ", privacy_unit(o));
  return out + concat("; a vote has ", reducer.chosen(), " elements, noise multiplier ",
                      significant(sum.noise_multiplier()), ", noise of ", significant(sum.sigma),
                      " against votes that sum to ", significant(loudest_sum(plan, learners)),
                      " at most");
}

void keep_account(const CommonOptions& o, RdpAccountant& accountant, const RunFolder* folder,
                  const std::string& checkpoint, bool accounted, Communicator& comm) {
  const std::string unit = privacy_unit(o);
  std::string spent;
  if (folder != nullptr) {
    std::vector<fs::path> files = {folder->file(kPrivacyFile)};
    if (!checkpoint.empty())  // RUN/checkpoints/step-400
      files.push_back(fs::absolute(checkpoint).parent_path().parent_path() / kPrivacyFile);
    for (const fs::path& file : files)
      if (std::error_code none; fs::exists(file, none))
        accountant.raise_to(read_account(file.string(), unit));
    if (!checkpoint.empty() && !accounted) accountant.raise_to(everything());
    spent = account_text(accountant, unit);
    folder->write(kPrivacyFile, spent);
  }
  accountant.raise_to(parse_account(nlohmann::json::parse(broadcast_text(spent, comm))));
  if (folder != nullptr)
    accountant.on_count([&accountant, folder, unit](const RdpAccountant::State&) {
      folder->write(kPrivacyFile, account_text(accountant, unit));
    });
}

}  // namespace heddle
