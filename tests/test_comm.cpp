// Communicators of one process: one rank and threads, with and without a network model, and
// failures of a rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "comm/group.h"
#include "comm/threads.h"
#include "core/context.h"
#include "core/kernels.h"
#include "tests/comm_suite.h"
#include "tests/ranks.h"

using namespace heddle;

namespace {

Tensor ramp(int64_t n, float scale) {
  const Tensor x = Tensor::empty_on(Device{}, {n});
  for (int64_t i = 0; i < n; ++i)
    x.data<float>()[i] = scale * static_cast<float>((i * 7919) % 1013) / 1013.0f;
  return x;
}

}  // namespace

TEST_CASE(
    "collectives: one rank and 2 to 8 threads, all sizes and types, bytes match the formulas") {
  {
    Context context;
    const auto solo = make_solo();
    for (const std::string& f : check_collectives(*solo, 10000)) FAIL_CHECK(f);
    CHECK(solo->total_traffic().sent == 0);
  }
  for (int p : {2, 3, 4, 8})
    for (int64_t segment : {int64_t{64}, int64_t{4096}, int64_t{256 * 1024}}) {
      CAPTURE(p);
      CAPTURE(segment);
      std::mutex mutex;
      const int64_t large = segment == 64 ? 3001 : 200003;
      expect_none(run_ranks(p,
                            [&](Communicator& comm) {
                              const auto failures = check_collectives(comm, large);
                              std::lock_guard lock(mutex);
                              for (const std::string& f : failures) FAIL_CHECK(f);
                            },
                            {.collectives = {.segment_bytes = segment, .tree_bytes = 512}}));
    }
}

TEST_CASE("all_reduce: the same bits on all ranks, for every segment length; bf16") {
  for (int p : {2, 3, 5}) {
    std::vector<std::vector<float>> results;
    for (int64_t segment : {int64_t{128}, int64_t{65536}})
      for (int repeat = 0; repeat < 2; ++repeat) {
        std::vector<std::vector<float>> by_rank(static_cast<size_t>(p));
        expect_none(run_ranks(p,
                              [&](Communicator& comm) {
                                const Tensor x =
                                    ramp(20011, 0.1f + static_cast<float>(comm.rank()));
                                comm.all_reduce(x);
                                by_rank[static_cast<size_t>(comm.rank())] = x.to_vector();
                                const Tensor half = converted(x, DType::bf16, Layout::plain);
                                comm.all_reduce(half);
                                for (float v : half.to_vector())
                                  by_rank[static_cast<size_t>(comm.rank())].push_back(v);
                              },
                              {.collectives = {.segment_bytes = segment}}));
        for (const auto& values : by_rank) results.push_back(values);
      }
    for (const auto& values : results) CHECK(values == results[0]);
  }
}

TEST_CASE("network model: text, errors") {
  const NetModel net = parse_net("100mbit,20ms,jitter=2ms");
  CHECK(net.bytes_per_s == doctest::Approx(12.5e6));
  CHECK(net.latency_s == doctest::Approx(0.02));
  CHECK(net.jitter_s == doctest::Approx(0.002));
  CHECK(parse_net("1.5gbit").bytes_per_s == doctest::Approx(187.5e6));
  CHECK(parse_net("500us").latency_s == doctest::Approx(5e-4));
  CHECK(std::isinf(parse_net("500us").bytes_per_s));
  for (const char* bad : {"", "100", "mbit", "-1mbit", "0mbit", "nanmbit", "1mbit,2mbit", "1ms,2ms",
                          "1mbit,", "jitter=1ms", "1mbit,1ms,jitter=2ms", "1mbit,jitter", "1 mbit",
                          "1mbitx", "infmbit", "1mbit;1ms"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_net(bad), InputError);
  }
}

TEST_CASE("virtual time: collectives match the alpha-beta model, for many ranks too") {
  for (int p : {2, 4, 8, 32}) {
    CAPTURE(p);
    constexpr double kRate = 12.5e6, kLatency = 1e-4;
    const int64_t n = 1 << 20, segment = 16384;
    ThreadsOptions options;
    options.net = {.bytes_per_s = kRate, .latency_s = kLatency, .virtual_time = true};
    options.collectives.segment_bytes = segment;
    std::mutex mutex;
    double slowest = 0;
    expect_none(run_ranks(
        p,
        [&](Communicator& comm) {
          const Tensor x = Tensor::zeros({n});
          const double begin = comm.now();
          comm.all_reduce(x);
          std::lock_guard lock(mutex);
          slowest = std::max(slowest, comm.now() - begin);
        },
        options));
    // 2 (P - 1) messages of n / P elements in sequence, each with its latency; the pipeline of
    // segments adds at most one segment's time per hop.
    const double bytes = 4.0 * static_cast<double>(n);
    const double wire = 2.0 * (p - 1) / p * bytes / kRate;
    CHECK(slowest >= wire);
    CHECK(slowest <= wire + 2 * (p - 1) * (kLatency + static_cast<double>(segment) / kRate));
  }
}

TEST_CASE("groups: every collective over some ranks, counted by the whole, too") {
  expect_none(run_ranks(5, [](Communicator& comm) {
    const std::vector<int> even = {4, 0, 2}, odd = {1, 3};  // in any order
    const bool mine = comm.rank() % 2 == 0;
    const auto group = make_group(comm, mine ? even : odd);
    CHECK(group->rank() == (mine ? std::vector{1, 0, 2, 0, 0}
                                 : std::vector{0, 0, 0, 1, 0})[static_cast<size_t>(comm.rank())]);
    for (const std::string& problem : check_collectives(*group, 5000)) throw Error(problem);
    CHECK(comm.total_traffic().sent == group->total_traffic().sent);
    CHECK_THROWS_AS(group->hosts(), InputError);
    CHECK(comm.total_traffic().calls == group->total_traffic().calls);
    const Tensor x = Tensor::zeros({3});
    fill(x, static_cast<float>(comm.rank()));
    comm.all_reduce(x);  // between the group's
    CHECK(x.to_vector() == std::vector<float>(3, 10));
    group->set_tag("part");
    group->all_reduce(x);
    CHECK(comm.traffic().at({"all_reduce", "part"}).sent > 0);
    CHECK(x.to_vector() == std::vector<float>(3, mine ? 30 : 20));
    CHECK_THROWS_AS(make_group(comm, {0, 1, 2, 3, 4, 0}), InputError);
    CHECK_THROWS_AS(make_group(comm, {comm.rank(), 5}), InputError);
    CHECK_THROWS_AS(make_group(comm, {(comm.rank() + 1) % 5}), InputError);
  }));
  const auto errors = run_ranks(3, [](Communicator& comm) {
    if (comm.rank() == 1) return;
    const auto group = make_group(comm, {0, 2});
    group->set_tag("bucket 1");
    if (comm.rank() == 2) throw Error("broken");
    group->barrier();
  });
  CHECK(errors[0].find("rank 0 of 3 (0 of a group of 2), barrier of bucket 1") == 0);
  CHECK(first_ranks({0, 0, 1, 0, 1, 2}) == std::vector{0, 2, 5});
  CHECK(host_numbers({5, 5, 2, 5, 2, 9}) == std::vector{0, 0, 1, 0, 1, 2});
}

TEST_CASE("groups: a patient one waits beyond the timeout") {
  for (const bool patient : {true, false}) {
    const auto errors =
        run_ranks(2,
                  [&](Communicator& comm) {
                    const auto group = patient ? make_patient(comm) : make_group(comm, {0, 1});
                    if (comm.rank() == 0)
                      std::this_thread::sleep_for(std::chrono::milliseconds(900));
                    group->barrier();
                  },
                  {.timeout_s = 0.3});
    CHECK(errors[1].empty() == patient);
  }
}

TEST_CASE("network model: hosts share a link, and are near within") {
  const NetModel net = parse_net("hosts=2;host=10gbit,20us;between=100mbit,1ms,jitter=1us");
  CHECK(net.hosts == 2);
  CHECK(net.host_bytes_per_s == doctest::Approx(1.25e9));
  CHECK(net.host_latency_s == doctest::Approx(2e-5));
  CHECK(net.bytes_per_s == doctest::Approx(12.5e6));
  CHECK(net.jitter_s == doctest::Approx(1e-6));
  CHECK(parse_net("host=1gbit;between=1mbit").hosts == -1);
  CHECK(parse_net("between=1mbit;hosts=3", "--net").hosts == 3);
  for (const char* bad :
       {"host=1gbit", "hosts=2", "hosts=0;between=1mbit", "hosts=2x;between=1mbit",
        "host=1gbit;between=1mbit;host=2gbit", "host=1gbit;between=1mbit;",
        "host=1gbit,2ms,jitter=1ms;between=1mbit", "host;between=1mbit", "hostess",
        "host=1gbit;between=", "hosts=99999999999;between=1mbit"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_net(bad), InputError);
  }
  for (const int ranks : {4, 5, 7}) {
    std::vector<int> seen;
    for (int r = 0; r < ranks; ++r) seen.push_back(net.host_of(r, ranks));
    CHECK(seen.front() == 0);
    CHECK(seen.back() == 1);
    CHECK(std::ranges::is_sorted(seen));
    CHECK(std::abs(2 * std::ranges::count(seen, 0) - ranks) <= 1);
  }
  // Two ranks of a host send one megabyte each to the other host at once: they share its link.
  NetClock clock(parse_net("hosts=2;host=8gbit,1ms;between=80mbit,5ms"), 4);
  CHECK(clock.arrival(0, 2, 1000000, 0) == doctest::Approx(0.105));
  CHECK(clock.arrival(1, 3, 1000000, 0) == doctest::Approx(0.205));
  CHECK(clock.arrival(2, 3, 1000000, 0) == doctest::Approx(0.002));  // other links
  CHECK(clock.arrival(3, 2, 1000000, 0) == doctest::Approx(0.002));
  NetClock three(parse_net("hosts=3;between=80mbit"), 6);  // to two hosts, over the link of one
  CHECK(three.arrival(0, 2, 1000000, 0) == doctest::Approx(0.1));
  CHECK(three.arrival(1, 4, 1000000, 0) == doctest::Approx(0.2));
  CHECK_THROWS_AS(NetClock(parse_net("hosts=3;between=1mbit"), 2), InputError);
  CHECK_THROWS_AS(NetClock(parse_net("host=1gbit;between=1mbit"), 2), InputError);
  expect_none(run_ranks(5,
                        [](Communicator& comm) {
                          CHECK(comm.hosts() == std::vector{0, 0, 0, 1, 1});
                        },
                        {.net = net}));
  expect_none(run_ranks(2, [](Communicator& comm) { CHECK(comm.hosts() == std::vector{0, 0}); }));
  expect_none(run_ranks(2,
                        [](Communicator& comm) {
                          CHECK(comm.hosts() == std::vector{0, 1});
                        },
                        {.net = parse_net("1gbit")}));
}

TEST_CASE("real time: a slow link takes at least its time") {
  ThreadsOptions options;
  options.net = {.bytes_per_s = 50e6, .latency_s = 2e-3};
  expect_none(run_ranks(
      2,
      [](Communicator& comm) {
        const Tensor x = Tensor::zeros({250000});
        const double begin = comm.now();
        comm.all_reduce(x);  // 1 MB: two halves of 0.5 MB, 10 ms each, plus latency
        const double seconds = comm.now() - begin;
        if (seconds < 0.022) throw Error(concat("too fast: ", seconds, " s"));
      },
      options));
}

TEST_CASE("failures: a rank throws, does not arrive, or passes a different shape") {
  // One rank throws outside of a collective: all others end with its reason.
  auto errors = run_ranks(4, [](Communicator& comm) {
    const Tensor x = Tensor::zeros({100000});
    comm.all_reduce(x);
    if (comm.rank() == 2) throw Error("out of luck");
    comm.all_reduce(x);
  });
  CHECK(errors[2] == "out of luck");
  for (int r : {0, 1, 3}) {
    const std::string& e = errors[static_cast<size_t>(r)];
    CHECK(e.find("out of luck") != std::string::npos);
    CHECK(e.find(concat("rank ", r, " of 4, all_reduce")) == 0);
  }
  // One rank passes a different length while the others' messages cross a slow network.
  for (int repeat = 0; repeat < 5; ++repeat) {
    ThreadsOptions slow{.timeout_s = 10};
    slow.net = {.bytes_per_s = 4e6, .latency_s = 5e-3};
    slow.collectives.segment_bytes = 4096;
    errors = run_ranks(
        4,
        [](Communicator& comm) {
          comm.all_reduce(Tensor::zeros({comm.rank() == 1 ? 9000 : 40000}));
        },
        slow);
    for (const std::string& e : errors) CHECK(e != "");
  }
  // One rank never arrives: a timeout that names the rank.
  errors = run_ranks(3,
                     [](Communicator& comm) {
                       if (comm.rank() == 1) return;
                       // Rank 0 waits for rank 2, and would give up at the same time.
                       if (comm.rank() == 0)
                         std::this_thread::sleep_for(std::chrono::milliseconds(300));
                       comm.set_tag("layer3.weight");
                       comm.set_step(17);
                       comm.all_reduce(Tensor::zeros({1000}));
                     },
                     {.timeout_s = 0.6});
  CHECK(errors[1] == "");
  CHECK(errors[2].find("rank 2 of 3, all_reduce of layer3.weight, step 17: ") == 0);
  CHECK(errors[2].find("no answer from rank 1") != std::string::npos);
  CHECK(errors[0] != "");
  // Different sizes are detected.
  errors = run_ranks(
      2,
      [](Communicator& comm) { comm.all_reduce(Tensor::zeros({comm.rank() == 0 ? 1000 : 1004})); },
      {.timeout_s = 5});
  CHECK((errors[0] + errors[1]).find(" bytes from rank ") != std::string::npos);
  // Repeated at different points, with many messages in flight.
  for (int place = 0; place < 30; ++place) {
    errors = run_ranks(4,
                       [&](Communicator& comm) {
                         for (int i = 0;; ++i) {
                           const Tensor x = ramp(5000 + 1000 * i, 1.0f);
                           if (i == place % 5 && comm.rank() == place % 4) throw Error("stop");
                           comm.all_reduce(x);
                         }
                       },
                       {.timeout_s = 20, .collectives = {.segment_bytes = 4096}});
    for (const std::string& e : errors) CHECK(e.find("stop") != std::string::npos);
  }
}

TEST_CASE("exchange: ranks wait for their own peers only, and unequal lengths name the peer") {
  std::atomic<bool> alone_returned = false;
  expect_none(run_ranks(3,
                        [&](Communicator& comm) {
                          if (comm.rank() == 2) {
                            comm.exchange({}, {});
                            alone_returned = true;
                            return;
                          }
                          for (const double begin = steady_seconds(); !alone_returned;)
                            if (steady_seconds() > begin + 10)
                              throw Error("a rank without peers waits for others");
                          const Tensor x = Tensor::zeros({3});
                          comm.exchange({{1 - comm.rank(), ramp(3, 1.0f)}}, {{1 - comm.rank(), x}});
                          CHECK(x.to_vector() == ramp(3, 1.0f).to_vector());
                        },
                        {.timeout_s = 20}));
  for (const auto& [shorter, longer] : {std::pair{10, 11}, {256, 512}, {0, 256}}) {
    const int lengths[] = {shorter, longer, 0};
    const auto errors = run_ranks(3,
                                  [&](Communicator& comm) {
                                    const Tensor x = Tensor::zeros({lengths[comm.rank()]}),
                                                 y = x.clone();
                                    if (comm.rank() < 2)
                                      comm.exchange({{1 - comm.rank(), x}}, {{1 - comm.rank(), y}});
                                  },
                                  {.timeout_s = 5, .collectives = {.segment_bytes = 64}});
    CHECK((errors[0] + errors[1]).find(" bytes from rank ") != std::string::npos);
    CHECK(errors[2] == "");
  }
}

// Records how long messages are, and sends nothing.
class RecordingTransport : public Transport {
 public:
  explicit RecordingTransport(std::vector<size_t>& lengths) : lengths_(lengths) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  const char* name() const override { return "recording"; }
  uint64_t post_send(int, const void*, size_t bytes) override { return record(bytes); }
  uint64_t post_receive(int, void*, size_t bytes) override { return record(bytes); }
  void wait(uint64_t) override {}
  void withdraw() noexcept override {}
  void abort(const std::string&, int) noexcept override {}
  double now() const override { return 0; }

 private:
  uint64_t record(size_t bytes) { return lengths_.push_back(bytes), lengths_.size(); }
  std::vector<size_t>& lengths_;
};

// Its messages arrive after some timeouts.
class LateTransport : public RecordingTransport {
 public:
  LateTransport(std::vector<size_t>& lengths, int timeouts)
      : RecordingTransport(lengths), timeouts_(timeouts) {}
  void wait(uint64_t ticket) override {
    if (++waits_[ticket] <= timeouts_) throw CommTimeout("no answer");
  }

 private:
  std::map<uint64_t, int> waits_;
  int timeouts_;
};

TEST_CASE("exchange: a rank is patient with a peer that has many others") {
  Context context;
  for (const int timeouts : {1, 2, 3}) {
    CAPTURE(timeouts);
    std::vector<size_t> lengths;
    MessageCommunicator comm(std::make_unique<LateTransport>(lengths, 2), {});
    const auto exchange = [&] {
      comm.exchange({{1, ramp(9, 1.0f)}}, {{1, ramp(9, 1.0f)}}, timeouts);
    };
    if (timeouts < 3)
      CHECK_THROWS_AS(exchange(), CommError);
    else
      CHECK_NOTHROW(exchange());
  }
}

TEST_CASE("exchange: long parcels travel in pieces, of which each has the whole timeout") {
  Context context;
  std::vector<size_t> lengths;
  MessageCommunicator comm(std::make_unique<RecordingTransport>(lengths), {.segment_bytes = 64});
  comm.exchange({{1, ramp(600, 1.0f)}}, {{1, ramp(512, 1.0f)}});
  // An empty one ends what would end with a whole piece.
  CHECK(lengths == std::vector<size_t>{1024, 1024, 0, 1024, 1024, 352});
  lengths.clear();
  comm.exchange({{1, ramp(0, 1.0f)}}, {});
  CHECK(lengths == std::vector<size_t>{0});
  expect_none(run_ranks(
      3,
      [](Communicator& ranks) {
        std::vector<Parcel> out, in;
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == ranks.rank()) continue;
          out.push_back({peer, ramp(700 + peer, 1.0f + static_cast<float>(ranks.rank()))});
          in.push_back({peer, Tensor::zeros({700 + ranks.rank()})});
        }
        ranks.exchange(out, in);
        for (const auto& [peer, data] : in)
          CHECK(data.to_vector() ==
                ramp(700 + ranks.rank(), 1.0f + static_cast<float>(peer)).to_vector());
      },
      {.timeout_s = 20, .collectives = {.segment_bytes = 64}}));
}

TEST_CASE("communicators: impossible calls are refused") {
  Context context;
  const auto solo = make_solo();
  const Tensor x = Tensor::zeros({4});
  CHECK_THROWS_AS(solo->broadcast(x, 1), InputError);
  CHECK_THROWS_AS(solo->broadcast(x, -1), InputError);
  CHECK_THROWS_AS(solo->all_gather(x, x), InputError);
  CHECK_THROWS_AS(solo->all_gather(x, Tensor::zeros({1, 4}, DType::i32)), InputError);
  CHECK_THROWS_AS(solo->reduce_scatter(Tensor::zeros({2, 4}), x), InputError);
  CHECK_THROWS_AS(solo->all_to_all(x, x), InputError);
  CHECK_THROWS_AS(solo->exchange({{0, x}}, {}), InputError);
  CHECK_THROWS_AS(solo->exchange({}, {{1, x}}), InputError);
  CHECK_THROWS_AS(solo->exchange({}, {{-1, x}}), InputError);
  CHECK_THROWS_AS(make_threads(3)[0]->exchange({{1, x}, {2, x}, {1, x}}, {}), InputError);
  CHECK_THROWS_AS(solo->all_reduce(Tensor::zeros({4}, DType::u8)), InputError);
  CHECK_THROWS_AS(make_threads(0), InputError);
}
