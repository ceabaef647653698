// The options of training with differential privacy (--compress topagg): whose data are protected,
// and how much of it may be revealed.
#pragma once

#include <string>

#include "apps/cli/flags.h"

namespace heddle {

struct PrivacyOptions {
  std::string unit = "learner";  // or "group", or "teacher"
  std::string described;         // the unit in words, if the program has one of its own
  double rate = 0;               // of groups, in a step; 0: not given
  double delta = 1e-5, epsilon_max = 0;
  bool anyway = false;
};

// Adds the flags; `units`: with --dp-unit and --dp-rate.
void add_privacy_flags(FlagTable& flags, PrivacyOptions& o, bool units = true);
// Returns what the flags need to have an effect; `voting`: --compress topagg is given.
std::vector<FlagTable::Need> privacy_needs(const PrivacyOptions& o, bool voting);

}  // namespace heddle
