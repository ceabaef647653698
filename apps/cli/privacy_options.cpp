#include "apps/cli/privacy_options.h"

namespace heddle {

void add_privacy_flags(FlagTable& flags, PrivacyOptions& o) {
  flags.group("Differential privacy (--compress topagg)");
  flags.add("dp-unit", &o.unit, "UNIT",
            "whose data are protected; learner: all images of a learner, which votes in every "
            "step; group: --batch-size images, which vote in a step with probability --dp-rate",
            one_of({"learner", "group"}));
  flags.add("dp-rate", &o.rate, "X", "with --dp-unit group, the probability of a vote in a step",
            above(0), at_most(1), otherwise("none"));
  flags.add("dp-delta", &o.delta, "X",
            "the delta for which epsilon is reported; well below 1 / (number of units)", above(0),
            below(1));
  flags.add("dp-epsilon-max", &o.epsilon_max, "X",
            "end the run before the step after which epsilon would be larger", above(0),
            otherwise("no limit"));
  flags.add("dp-anyway", &o.anyway, "",
            "train although the noise drowns the votes, or without any noise");
}

std::vector<FlagTable::Need> privacy_needs(const PrivacyOptions& o, bool voting) {
  std::vector<FlagTable::Need> needs;
  for (const char* flag : {"dp-unit", "dp-rate", "dp-delta", "dp-epsilon-max", "dp-anyway"})
    needs.push_back({flag, voting, "needs --compress topagg"});
  needs.push_back({"dp-rate", o.unit == "group", "needs --dp-unit group"});
  for (const char* flag : {"accumulate", "compress-start", "dense-layers", "min-compress", "shadow",
                           "compressed-momentum", "plan", "layerwise", "headroom"})
    needs.push_back({flag, !voting, "has no effect with --compress topagg"});
  return needs;
}

}  // namespace heddle
