// The alpha-beta model against the communicator's virtual time, which simulates every message.
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "comm/link_cost.h"
#include "core/error.h"
#include "tests/ranks.h"

namespace heddle {
namespace {

constexpr double kRate = 12.5e6, kLatency = 1e-3;

ThreadsOptions slow_network() {
  ThreadsOptions options;
  options.net = {.bytes_per_s = kRate, .latency_s = kLatency, .virtual_time = true};
  return options;
}

void call(Communicator& comm, const std::string& collective, int64_t share) {
  const int64_t p = comm.size();
  const Tensor all = Tensor::zeros({p, share}), mine = Tensor::zeros({share}),
               other = Tensor::zeros({p, share});
  if (collective == "all_reduce") comm.all_reduce(all);
  if (collective == "reduce_scatter") comm.reduce_scatter(all, mine);
  if (collective == "all_gather") comm.all_gather(mine, all);
  if (collective == "broadcast") comm.broadcast(all, 0);
  if (collective == "all_to_all") comm.all_to_all(all, other);
  if (collective == "exchange") {  // with both neighbours of a ring
    std::vector<Parcel> out, in;
    for (const int64_t peer : std::set<int64_t>{(comm.rank() + 1) % p, (comm.rank() + p - 1) % p}) {
      out.push_back({static_cast<int>(peer), all});
      in.push_back({static_cast<int>(peer), other.clone()});
    }
    comm.exchange(out, in);
  }
  if (collective == "barrier") comm.barrier();
}

// Seconds until the slowest rank is done, and what a rank sends on average.
struct Seen {
  double seconds = 0, sent = 0;
};

Seen run_collective(const std::string& collective, int p, int64_t share) {
  Seen seen;
  std::mutex mutex;
  expect_none(run_ranks(
      p,
      [&](Communicator& comm) {
        const double begin = comm.now();
        call(comm, collective, share);
        const std::lock_guard lock(mutex);
        seen.seconds = std::max(seen.seconds, comm.now() - begin);
        seen.sent += static_cast<double>(comm.total_traffic().sent) / p;
      },
      slow_network()));
  return seen;
}

}  // namespace

TEST_CASE("link cost: short messages cost only latencies") {
  for (const std::string collective : {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                       "all_to_all", "exchange", "barrier"})
    for (const int p : {2, 3, 4, 8}) {
      CAPTURE(collective);
      CAPTURE(p);
      const double bytes = collective == "barrier" ? 0.0 : 4.0 * p;
      CHECK(run_collective(collective, p, 1).seconds ==
            doctest::Approx(kLatency * latencies(collective, bytes, p)).epsilon(0.02));
    }
  CHECK(latencies("all_reduce", 64e6, 4) == 1);
  CHECK(latencies("all_reduce", 4, 1) == 0);
  CHECK(latencies("all_to_all", 8, 8) == 2);  // four messages at a time
  CHECK(latencies("all_to_all", 64e6, 8) == 1);
  expect_none(run_ranks(
      4,
      [](Communicator& comm) {
        CHECK(measure_latency(comm) == doctest::Approx(kLatency).epsilon(0.05));
      },
      slow_network()));
}

TEST_CASE("link cost: every collective matches the model, and its payload is recovered") {
  const LinkCost link{.latency_s = kLatency, .seconds_per_byte = 1 / kRate};
  for (const std::string collective : {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                       "all_to_all", "exchange", "barrier"})
    for (const int p : {2, 4, 8, 16})
      for (const int64_t share : {1, 1000, 50000, 300000}) {
        CAPTURE(collective);
        CAPTURE(p);
        CAPTURE(share);
        Seen seen = run_collective(collective, p, share);
        const int parcels = collective == "exchange" && p > 2 ? 2 : 1;  // each with all values
        const double payload = collective == "barrier" ? 0.0 : 4.0 * share * p * parcels;
        const double said = collective_seconds(collective, payload, p, link);
        CHECK(seen.seconds > 0.9 * said);
        // Where several send to one rank, one of them has to wait.
        const bool ordered = collective != "all_to_all" || p == 2;
        CHECK(seen.seconds < (ordered ? 1.1 : 1.5) * said);
        CHECK(payload_of_sent(collective, seen.sent, p) == doctest::Approx(payload).epsilon(1e-9));
      }
  CHECK(collective_seconds("all_reduce", 1e6, 1, link) == 0);
  CHECK_THROWS_AS(collective_seconds("all_reduced", 1e6, 2, link), InputError);
}

TEST_CASE("net model: a message announced later gets the remaining time of a link") {
  LinkTime link;
  CHECK(link.reserve(0, 1) == 1);
  CHECK(link.reserve(5, 1) == 6);
  CHECK(link.reserve(0, 1) == 2);  // before the one at 5
  CHECK(link.reserve(1, 4) == 7);  // 2 to 5 and 6 to 7
  CHECK(link.reserve(6.5, 1) == 8);
  CHECK(link.reserve(9, 0) == 9);
  for (int i = 10; i < 200; ++i) CHECK(link.reserve(2 * i, 1) == 2 * i + 1);
  CHECK(link.reserve(300, 1) == 302);  // 300 to 301 is reserved
  CHECK(link.reserve(0, 0.5) > 100);   // too long ago: counts as reserved
}

TEST_CASE("link cost: latency and bandwidth are measured, the same on all ranks") {
  for (const int p : {1, 2, 5}) {
    std::vector<LinkCost> links(static_cast<size_t>(p));
    expect_none(run_ranks(
        p,
        [&](Communicator& comm) { links[static_cast<size_t>(comm.rank())] = measure_link(comm); },
        slow_network()));
    for (const LinkCost& link : links) {
      CHECK(link.latency_s == doctest::Approx(p > 1 ? kLatency : 0.0).epsilon(0.02));
      CHECK(link.seconds_per_byte == doctest::Approx(p > 1 ? 1 / kRate : 0.0).epsilon(0.02));
      CHECK(link.latency_s == links[0].latency_s);
      CHECK(link.seconds_per_byte == links[0].seconds_per_byte);
    }
  }
}

}  // namespace heddle
