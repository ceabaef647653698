// A step's time from what was measured of its parts: the worker takes one bucket after the other as
// they become ready, encodes, exchanges and decodes it, and the step ends when backward and the
// last bucket have ended. With other links or another number of learners the collectives take what
// comm/link_cost.h says; everything else stays as it was measured, what ranks wait for each other
// too. A model, not a measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/link_cost.h"

namespace heddle {

// Means of the middle half of all steps, and over ranks, where nothing else is said; seconds count
// from the beginning of a step.
struct BucketProfile {
  double ready_s = 0;  // backward has made its last gradient
  double code_s = 0;   // of its exchange, what is not in collectives
  double comm_s = 0;   // in collectives
  struct Collective {
    std::string name;            // as in Communicator::traffic()
    double calls = 0, sent = 0;  // means of all
  };
  std::vector<Collective> collectives = {};  // of this bucket in a step
};

struct ExchangeProfile {
  std::string compress = {};  // "none", "scalecom:rate=100"; empty: no exchange
  int64_t steps = 0;          // measured
  double step_s = 0;          // of the slowest rank
  double exposed_s = 0;       // waiting for exchanges; mean of all steps
  double backward_s = 0;      // when backward has ended
  double rest_s = 0;          // in the step, neither backward nor an exchange
  double sent_bytes = 0;      // by a rank in a step; mean of all
  std::vector<BucketProfile> buckets = {};
};

// What the collectives of a bucket take, for what was measured with `measured_ranks`.
double comm_seconds(const BucketProfile& bucket, int measured_ranks, int ranks,
                    const LinkCost& link);

// Of what its collectives were measured to take, what these links do not explain: a rank that comes
// later, or encodes for longer, is waited for in them.
double waiting_seconds(const BucketProfile& bucket, int ranks, const LinkCost& link);

// Of its measured step what backward and the exchanges do not make up, as updates between two
// exchanges and behind the last.
double rest_seconds(const ExchangeProfile& profile);

// The mean without the lowest and the highest quarter: what disturbs a few steps does not count,
// and steps that differ in turns (who leads an exchange) count alike.
double middle_mean(std::vector<double> values);

// A step of `profile`, whose every exchange i takes comm_s[i] in collectives.
double step_seconds(const ExchangeProfile& profile, const std::vector<double>& comm_s);
double step_seconds(const ExchangeProfile& profile, int measured_ranks,
                    const LinkCost& measured_link, int ranks, const LinkCost& link);

}  // namespace heddle
