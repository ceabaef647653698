#include "comm/link_cost.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/error.h"

namespace heddle {
namespace {

constexpr int kCalls = 7;  // repetitions, of which the median is used

// Returns the seconds of a ring of `steps`: a rank forwards a chunk when the chunk's first segment
// has arrived and its own link is free.
double ring_seconds(double bytes, int ranks, int steps, const LinkCost& link) {
  const double chunk = bytes / ranks, beta = link.seconds_per_byte;
  const double segment = std::min(chunk, to_double(link.collectives.segment_bytes));
  const double step = std::max(chunk * beta, segment * beta + link.latency_s);
  return (steps - 1) * step + chunk * beta + link.latency_s;
}

double broadcast_seconds(double bytes, int ranks, const LinkCost& link) {
  const double beta = link.seconds_per_byte;
  if (bytes <= to_double(link.collectives.tree_bytes))
    return std::bit_width(static_cast<unsigned>(ranks - 1)) * (bytes * beta + link.latency_s);
  const double segment = std::min(bytes, to_double(link.collectives.segment_bytes));
  return (ranks - 1) * (segment * beta + link.latency_s) + (bytes - segment) * beta;
}

// Returns the seconds of `count` messages over one link, a few of them in flight.
double pairwise_seconds(double bytes, int count, const LinkCost& link) {
  std::vector<double> arrivals;
  double free = 0;
  for (int i = 0; i < count; ++i) {
    const int before = i - link.collectives.pairs_ahead;
    if (before >= 0) free = std::max(free, arrivals[to_size(before)]);
    free += bytes * link.seconds_per_byte;
    arrivals.push_back(free + link.latency_s);
  }
  return arrivals.back();
}

// Returns the seconds of an all-reduce of P * `floats` values: median of calls, mean over ranks.
double time_all_reduce(Communicator& comm, int64_t floats) {
  const Tensor x = Tensor::zeros({floats * comm.size()});
  std::vector<double> seconds;
  for (int i = 0; i < kCalls; ++i) {
    comm.barrier();
    const double begin = comm.now();
    comm.all_reduce(x);
    seconds.push_back(comm.now() - begin);
  }
  std::ranges::nth_element(seconds, seconds.begin() + kCalls / 2);
  const Tensor sum = Tensor::empty_on(Device{}, {1});
  sum.data<float>()[0] = to_float(seconds[kCalls / 2]);
  comm.all_reduce(sum);
  return to_double(sum.item()) / comm.size();
}

}  // namespace

double collective_seconds(const std::string& collective, double bytes, int ranks,
                          const LinkCost& link) {
  if (ranks < 2) return 0;
  if (collective == "all_reduce") return ring_seconds(bytes, ranks, 2 * (ranks - 1), link);
  if (collective == "reduce_scatter" || collective == "all_gather")
    return ring_seconds(bytes, ranks, ranks - 1, link);
  if (collective == "broadcast") return broadcast_seconds(bytes, ranks, link);
  if (collective == "all_to_all") return pairwise_seconds(bytes / ranks, ranks - 1, link);
  if (collective == "exchange") return bytes * link.seconds_per_byte + link.latency_s;
  if (collective == "barrier")
    return std::bit_width(static_cast<unsigned>(ranks - 1)) * link.latency_s;
  throw InputError("unknown collective: " + collective);
}

double latencies(const std::string& collective, double bytes, int ranks) {
  const LinkCost link{.latency_s = 1};
  const bool divided =
      collective != "broadcast" && collective != "exchange" && collective != "barrier";
  if (divided && bytes / ranks > to_double(link.collectives.segment_bytes)) return 1;
  return collective_seconds(collective, bytes, ranks, link);
}

double latencies_since(const CollectiveTraffic& before, const Communicator& comm) {
  double sum = 0;
  for (const auto& [key, now] : comm.traffic()) {
    const auto found = before.find(key);
    const Traffic old = found == before.end() ? Traffic{} : found->second;
    if (key.second != comm.tag() || now.calls == old.calls) continue;
    const auto calls = to_double(now.calls - old.calls);
    const auto sent = to_double(now.sent - old.sent) / calls;
    // The ranks of a broadcast send different numbers of bytes; all but the root receive the
    // payload.
    const double bytes = key.first == "broadcast" ? to_double(now.received - old.received) / calls
                                                  : payload_of_sent(key.first, sent, comm.size());
    sum += calls * latencies(key.first, bytes, comm.size());
  }
  return sum;
}

double payload_of_sent(const std::string& collective, double sent, int ranks) {
  if (collective == "exchange") return sent;
  const double payload = ranks < 2 ? 0.0 : sent * ranks / (ranks - 1);
  return collective == "all_reduce" ? payload / 2 : payload;
}

double measure_latency(Communicator& comm) {
  return comm.size() < 2 ? 0 : time_all_reduce(comm, 1) / (2.0 * (comm.size() - 1));
}

LinkCost measure_link(Communicator& comm) {
  LinkCost link;
  if (comm.size() < 2) return link;
  // Chunks of one segment: every step of the ring takes alpha plus beta times the segment.
  const int64_t floats = link.collectives.segment_bytes / 4;
  const double steps = 2.0 * (comm.size() - 1);
  link.latency_s = measure_latency(comm);
  link.seconds_per_byte = std::max(0.0, time_all_reduce(comm, floats) / steps - link.latency_s) /
                          to_double(link.collectives.segment_bytes);
  return link;
}

}  // namespace heddle
