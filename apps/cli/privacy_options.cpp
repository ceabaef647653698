#include "apps/cli/privacy_options.h"

namespace heddle {

void add_privacy_flags(FlagTable& flags, PrivacyOptions& o, bool units) {
  flags.group("Differential privacy (--compress topagg)");
  if (units) {
    flags.add("dp-unit", &o.unit, "UNIT",
              "whose data are protected; learner: all images of a learner, which votes in every "
              "step; group: --batch-size images, which vote in a step with probability --dp-rate",
              one_of({"learner", "group"}));
    flags.add("dp-rate", &o.rate, "X", "with --dp-unit group, the probability of a vote in a step",
              at_least(1e-6), at_most(1), otherwise("none"));
  }
  flags.add("dp-delta", &o.delta, "X",
            "the delta at which epsilon is reported; below 1 / (number of units)", at_least(1e-9),
            below(1));
  flags.add("dp-epsilon-max", &o.epsilon_max, "X",
            "stop before a step that would raise epsilon above X", above(0),
            otherwise("the epsilon of --compress, if it is given there"));
  flags.add("dp-anyway", &o.anyway, "",
            "train although the noise drowns the votes, or although nothing is protected");
}

std::vector<FlagTable::Need> privacy_needs(const PrivacyOptions& o, bool voting) {
  std::vector<FlagTable::Need> needs;
  for (const char* flag : {"dp-delta", "dp-epsilon-max", "dp-anyway", "dp-unit"})
    needs.push_back({flag, voting, "needs --compress topagg"});
  needs.push_back(
      {"dp-rate", voting && o.unit == "group", "needs --compress topagg and --dp-unit group"});
  for (const char* flag :
       {"accumulate", "compress-start", "start-compress", "dense-layers", "min-compress", "shadow",
        "compressed-momentum", "plan", "layerwise", "headroom"})
    needs.push_back({flag, !voting, "has no effect with --compress topagg"});
  return needs;
}

}  // namespace heddle
