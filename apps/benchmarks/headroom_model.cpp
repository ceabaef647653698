#include "apps/benchmarks/headroom_model.h"

#include <algorithm>
#include <numeric>

namespace heddle {

double comm_seconds(const BucketCollectives& collectives, int measured_ranks, int ranks,
                    const LinkCost& link) {
  // An all-gather after an all-to-all gathers a whole that was divided among the ranks, of the same
  // size for any number of ranks; any other gathers one share per rank.
  const auto whole = collectives.find("all_to_all");
  const bool divided = whole != collectives.end() && whole->second.calls > 0;
  double seconds = 0;
  for (const auto& [name, c] : collectives) {
    if (c.calls == 0) continue;
    double payload = payload_of_sent(name, c.sent / c.calls, measured_ranks);
    if (name == "all_gather" && !divided) payload *= to_double(ranks) / measured_ranks;
    seconds += c.calls * collective_seconds(name, payload, ranks, link);
  }
  return seconds;
}

double waiting_seconds(double comm_s, const BucketCollectives& collectives, int ranks,
                       const LinkCost& link) {
  return std::max(0.0, comm_s - comm_seconds(collectives, ranks, ranks, link));
}

double rest_seconds(ExchangeTrial times, double step_s) {
  times.rest_s = 0;
  return std::max(0.0, step_s - step_seconds(times));
}

int counted_steps(double share_s, double step_s) {
  return to_int(std::clamp(share_s / step_s - 1, 1.0, 25.0));
}

double middle_mean(std::vector<double> values) {
  std::ranges::sort(values);
  const auto quarter = std::ssize(values) / 4;
  return std::accumulate(values.begin() + quarter, values.end() - quarter, 0.0) /
         to_double(std::ssize(values) - 2 * quarter);
}

double step_seconds(const ExchangeProfile& profile, int measured_ranks,
                    const LinkCost& measured_link, int ranks, const LinkCost& link) {
  ExchangeTrial times = profile.times;
  for (size_t i = 0; i < times.buckets.size(); ++i) {
    const auto& collectives = profile.collectives[i];
    double& comm_s = times.buckets[i].comm_s;
    comm_s = comm_seconds(collectives, measured_ranks, ranks, link) +
             waiting_seconds(comm_s, collectives, measured_ranks, measured_link);
  }
  return step_seconds(times);
}

}  // namespace heddle
