// The time of a step on other links, or with other numbers of learners, from a measured one: its
// collectives take what comm/link_cost.h says, everything else stays as it was measured, and so
// does the time for which ranks wait for each other. The step itself is step_seconds() of
// --compress auto (compress/plan/exchange_chooser.h). A model, not a measurement.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/link_cost.h"
#include "compress/plan/exchange_chooser.h"

namespace heddle {

// The calls of one collective in a bucket's exchange, and the bytes that a rank sends in all of
// them; means over steps and ranks.
struct CollectiveCalls {
  double calls = 0, sent = 0;
};
// By name, as in Communicator::traffic().
using BucketCollectives = std::map<std::string, CollectiveCalls>;

// Measured steps with one kind of exchange. Times are means of the middle half of all steps, and
// over the ranks that exchange: with two levels the first of each host, and "ranks" below are
// hosts.
struct ExchangeProfile {
  std::string compress = {};  // "none", "scalecom:rate=100"; empty: no exchange
  int64_t steps = 0;          // measured
  double step_s = 0;          // of the slowest rank
  double exposed_s = 0;       // waiting for exchanges; mean of all steps
  double sent_bytes = 0;      // by a rank in a step; mean of all
  ExchangeTrial times = {};
  std::vector<BucketCollectives> collectives = {};  // by bucket
};

// Returns the seconds that a bucket's collectives, measured with `measured_ranks`, take on `link`.
double comm_seconds(const BucketCollectives& collectives, int measured_ranks, int ranks,
                    const LinkCost& link);

// Returns how much of comm_s, which the collectives were measured to take on `link`, the link does
// not explain: they include waiting for a rank that is late or encodes for longer.
double waiting_seconds(double comm_s, const BucketCollectives& collectives, int ranks,
                       const LinkCost& link);

// Returns how much of a step of step_s neither backward nor the exchanges account for, such as
// updates between two exchanges and after the last.
double rest_seconds(ExchangeTrial times, double step_s);

// Returns how many steps of step_s fit into share_s after one that is not counted, from 1 to 25.
int counted_steps(double share_s, double step_s);

// Returns the mean without the lowest and the highest quarter: a few disturbed steps do not count,
// but differences that recur (by who leads an exchange) do.
double middle_mean(std::vector<double> values);

// Returns the seconds of a step of `profile`, measured with `measured_ranks` on `measured_link`,
// with `ranks` ranks on `link`.
double step_seconds(const ExchangeProfile& profile, int measured_ranks,
                    const LinkCost& measured_link, int ranks, const LinkCost& link);

}  // namespace heddle
