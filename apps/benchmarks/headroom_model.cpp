#include "apps/benchmarks/headroom_model.h"

#include <algorithm>
#include <numeric>

#include "compress/plan/exchange_chooser.h"

namespace heddle {

double comm_seconds(const BucketProfile& bucket, int measured_ranks, int ranks,
                    const LinkCost& link) {
  // What an all-to-all has divided among the ranks is gathered again: the whole stays the same when
  // there are more of them, else everybody's share does.
  const bool divided = std::ranges::any_of(
      bucket.collectives, [](const auto& c) { return c.name == "all_to_all" && c.calls > 0; });
  double seconds = 0;
  for (const BucketProfile::Collective& c : bucket.collectives) {
    if (c.calls == 0) continue;
    double payload = payload_of_sent(c.name, c.sent / c.calls, measured_ranks);
    if (c.name == "all_gather" && !divided) payload *= static_cast<double>(ranks) / measured_ranks;
    seconds += c.calls * collective_seconds(c.name, payload, ranks, link);
  }
  return seconds;
}

double step_seconds(const ExchangeProfile& profile, const std::vector<double>& comm_s) {
  std::vector<BucketTimes> buckets;
  for (size_t i = 0; i < profile.buckets.size(); ++i)
    buckets.push_back({profile.buckets[i].ready_s, profile.buckets[i].code_s, comm_s[i]});
  return std::max(profile.backward_s, exchanges_end(buckets)) + profile.rest_s;
}

double rest_seconds(const ExchangeProfile& profile) {
  std::vector<double> comm_s;
  for (const BucketProfile& bucket : profile.buckets) comm_s.push_back(bucket.comm_s);
  return std::max(0.0, profile.step_s - (step_seconds(profile, comm_s) - profile.rest_s));
}

double middle_mean(std::vector<double> values) {
  std::ranges::sort(values);
  const auto quarter = std::ssize(values) / 4;
  return std::accumulate(values.begin() + quarter, values.end() - quarter, 0.0) /
         static_cast<double>(std::ssize(values) - 2 * quarter);
}

double waiting_seconds(const BucketProfile& bucket, int ranks, const LinkCost& link) {
  return std::max(0.0, bucket.comm_s - comm_seconds(bucket, ranks, ranks, link));
}

double step_seconds(const ExchangeProfile& profile, int measured_ranks,
                    const LinkCost& measured_link, int ranks, const LinkCost& link) {
  std::vector<double> comm_s;
  for (const BucketProfile& bucket : profile.buckets)
    comm_s.push_back(comm_seconds(bucket, measured_ranks, ranks, link) +
                     waiting_seconds(bucket, measured_ranks, measured_link));
  return step_seconds(profile, comm_s);
}

}  // namespace heddle
