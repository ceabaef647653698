#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "apps/benchmarks/headroom.h"

namespace heddle {
namespace {

// Two buckets: backward ends at 10 s, when the second becomes ready.
ExchangeProfile two_buckets(const std::string& compress) {
  return {.compress = compress,
          .times = {.backward_s = 10, .buckets = {{4, 1, 3}, {10, 1, 2}}, .rest_s = 0.5},
          .collectives = {{}, {}}};
}

}  // namespace

TEST_CASE("headroom: each exchange gets the same time, not the same number of steps") {
  CHECK(counted_steps(1, 0.1) == 9);
  CHECK(counted_steps(1, 0.2) == 4);
  for (const double slow : {0.5, 0.9, 7.0}) CHECK(counted_steps(1, slow) == 1);
  for (const double fast : {0.01, 1e-12, 0.0}) CHECK(counted_steps(1, fast) == 25);
}

TEST_CASE("step model: buckets wait for backward and for each other") {
  ExchangeTrial times = two_buckets("none").times;
  CHECK(step_seconds(times) == doctest::Approx(10 + 1 + 2 + 0.5));  // only the first is hidden
  times.buckets[0].comm_s = 8;
  CHECK(step_seconds(times) == doctest::Approx(4 + 9 + 3 + 0.5));  // the first is late
  CHECK(step_seconds({.backward_s = 10, .rest_s = 1}) == doctest::Approx(11));
}

TEST_CASE("step model: measured payloads; shares grow with the ranks") {
  const LinkCost link{.latency_s = 1e-3, .seconds_per_byte = 1e-6};
  // Two all-reduces of 1000 bytes on four ranks: each rank sends 2 * 1000 * 3 / 4 in a call.
  const BucketCollectives reduced{{"all_reduce", {2, 2 * 1500.0}}};
  for (const int p : {2, 4, 64})
    CHECK(comm_seconds(reduced, 4, p, link) ==
          doctest::Approx(2 * collective_seconds("all_reduce", 1000, p, link)));
  // Every rank's share of 100 bytes went to three others.
  const BucketCollectives gathered{{"all_gather", {1, 300.0}}};
  for (const int p : {2, 4, 64})
    CHECK(comm_seconds(gathered, 4, p, link) ==
          doctest::Approx(collective_seconds("all_gather", 100.0 * p, p, link)));
  // 400 bytes were divided among four ranks, and their sums gathered.
  const BucketCollectives divided{{"all_to_all", {1, 300.0}}, {"all_gather", {1, 300.0}}};
  for (const int p : {2, 4, 64})
    CHECK(comm_seconds(divided, 4, p, link) ==
          doctest::Approx(collective_seconds("all_to_all", 400, p, link) +
                          collective_seconds("all_gather", 400, p, link)));
}

TEST_CASE("step model: waiting for other ranks does not depend on the links") {
  const LinkCost here{.latency_s = 1e-3, .seconds_per_byte = 1e-6};
  const LinkCost slow{.latency_s = 2e-3, .seconds_per_byte = 1e-5};
  const auto on = [](const LinkCost& link, int p) {
    return collective_seconds("all_reduce", 1000, p, link);
  };
  ExchangeProfile profile{.times = {.backward_s = 1, .buckets = {{.ready_s = 1}}, .rest_s = 0.5},
                          .collectives = {{{"all_reduce", {1, 1500.0}}}}};
  double& comm_s = profile.times.buckets[0].comm_s;
  for (const double waited : {0.0, 0.25, -0.001}) {  // a clock may show less than the links need
    comm_s = on(here, 4) + waited;
    const double kept = std::max(0.0, waited);
    CHECK(waiting_seconds(comm_s, profile.collectives[0], 4, here) == doctest::Approx(kept));
    for (const int p : {4, 8})
      CHECK(step_seconds(profile, 4, here, p, slow) ==
            doctest::Approx(1 + on(slow, p) + kept + 0.5));
  }
}

TEST_CASE("step model: the rest of a step is its time without backward and exchanges") {
  const ExchangeTrial times = two_buckets("none").times;  // 13 s without a rest
  for (const double rest : {0.0, 0.25, 2.0})
    CHECK(rest_seconds(times, 13 + rest) == doctest::Approx(rest));
  CHECK(rest_seconds(times, 12.9) == 0);  // clocks differ
}

TEST_CASE("step model: a few disturbed steps are ignored, alternating ones are not") {
  CHECK(middle_mean({3}) == 3);
  CHECK(middle_mean({1, 2, 6}) == doctest::Approx(3));
  CHECK(middle_mean({100, 2, 1, 2, 2, 90, 2, 0}) == doctest::Approx(2));
  CHECK(middle_mean({1, 3, 1, 3, 1, 3, 1, 3}) == doctest::Approx(2));
}

TEST_CASE("headroom: the verdict follows from the steps") {
  Headroom h{.learners = 4, .link = {.latency_s = 1e-3, .seconds_per_byte = 1e-7}};
  h.profiles = {{.compress = "", .step_s = 1.0, .times = {.backward_s = 1.0}},
                two_buckets("none"),
                two_buckets("scalecom:rate=100")};
  h.profiles[1].step_s = 4.0;
  h.profiles[2].step_s = 1.25;
  h.profiles[2].steps = 17;
  CHECK(h.share() == doctest::Approx(0.75));
  CHECK(h.most() == doctest::Approx(4));
  CHECK(h.gain(2) == doctest::Approx(3.2));
  CHECK(h.best() == 2);
  const std::string text = describe_headroom(h);
  CHECK(text.find("Communication is 75 % of a step, 3000.0 of 4000.0 ms: nothing can win more than "
                  "4.00x. The best of these is --compress scalecom:rate=100, 3.20x.") !=
        std::string::npos);
  // An exchange adds 0.25 s to one step of eight.
  CHECK(
      text.find("With --local-steps 8 on top, one exchange every 8 steps, a step would take "
                "about 1031.2 ms, 3.88x, and 1000.0 ms, 4.00x, with --outer-delay 1 (computed)") !=
      std::string::npos);
  const auto json = nlohmann::json::parse(headroom_json(h));
  CHECK(json["local_step_s"] == 1.03125);
  CHECK(json["delayed_step_s"] == 1.0);
  Headroom slow = h;
  slow.profiles[1].step_s = 12;
  for (const auto& [step_s, delay, mean] :
       {std::tuple{9.6, 7, 1.2}, {4.5, 4, 1.0}, {4.0, 3, 1.0}}) {
    slow.profiles[2].step_s = step_s;
    const auto computed = nlohmann::json::parse(headroom_json(slow));
    CHECK(computed["outer_delay"] == delay);
    CHECK(computed["delayed_step_s"] == doctest::Approx(mean));
  }
  CHECK(json["best"] == "scalecom:rate=100");
  CHECK(json["measured"].size() == 3);
  CHECK(json["measured"][2]["gain"] == doctest::Approx(3.2));
  CHECK(json["measured"][2]["steps"] == 17);
  CHECK(json["model"].size() == 4 * 5 * 2);  // networks, numbers of learners, exchanges
  const auto& here = json["model"][0];
  CHECK(here["net"] == "these links");
  CHECK(here["learners"] == 4);
  CHECK(here["step_s"] == json["measured"][1]["model_step_s"]);
  for (const char* net : {"1mbit,1ms", "1gbit,200us"}) {  // the second is in the table anyway
    h.net = net;
    CHECK(nlohmann::json::parse(headroom_json(h))["model"].size() == (net[1] == 'm' ? 50 : 40));
  }
  CHECK(describe_headroom(h).find("1mbit,1ms") == std::string::npos);

  // Two levels: of the model's parties each is a host.
  h.hosts = 2;
  CHECK(
      describe_headroom(h).starts_with("4 learners on 2 hosts; links of 1.000 ms and 80 Mbit/s "
                                       "between them as"));
  const auto levels = nlohmann::json::parse(headroom_json(h));
  CHECK(levels["hosts"] == 2);
  CHECK(levels["model"].size() == 4 * 6 * 2);
  CHECK(levels["model"][0]["hosts"] == 2);
  CHECK(levels["model"][0]["step_s"] == levels["measured"][1]["model_step_s"]);
  CHECK_FALSE(levels["model"][0].contains("learners"));
  h.hosts = 0;

  // Learners that share processors wait longer than the exchange takes.
  CHECK(text.find("Of the waiting") == std::string::npos);
  h.profiles[1].exposed_s = 3.5;
  CHECK(describe_headroom(h).find("Of the waiting, only what") != std::string::npos);

  CHECK(text.find("An exchange was measured in few steps (0)") != std::string::npos);
  for (ExchangeProfile& profile : h.profiles) profile.steps = 4;
  CHECK(describe_headroom(h).find("measured in few steps") == std::string::npos);
  CHECK(text.find("share its processors") == std::string::npos);
  h.sharing = 4;
  CHECK(describe_headroom(h).find("4 learners on this machine share its processors") !=
        std::string::npos);

  CHECK(text.find("Others took") == std::string::npos);
  h.stolen = 0.31;
  CHECK(describe_headroom(h).find("Others took 31 % of the processors' time") != std::string::npos);
  CHECK(nlohmann::json::parse(headroom_json(h))["stolen"] == 0.31);

  h.profiles[2].step_s = 3.95;  // within the noise of such a measurement
  CHECK(describe_headroom(h).find("Of these --compress none is the best.\nWith --local-steps 8") !=
        std::string::npos);
  h.profiles[0].step_s = 3.95;
  CHECK(describe_headroom(h).find("Stay with --compress none.") != std::string::npos);
  h.profiles[2].step_s = 3.5;
  h.profiles[0].step_s = 4.1;  // and noise may make steps look faster than those without exchange
  CHECK(describe_headroom(h).find(
            "Communication is 0 % of a step, 0.0 of 4000.0 ms: nothing can win more than "
            "1.00x. But with scalecom:rate=100 steps took 0.85x") != std::string::npos);
  h.profiles[2].step_s = 3.95;
  CHECK(describe_headroom(h).find(
            "Communication is 0 % of a step, 0.0 of 4000.0 ms: nothing can win more than "
            "1.00x. Stay with --compress none.") != std::string::npos);
}

TEST_CASE("headroom: a long name keeps figures in their columns") {
  Headroom h{.learners = 4, .link = {.latency_s = 1e-3, .seconds_per_byte = 1e-7}};
  h.profiles = {{.compress = ""}, two_buckets("none"), two_buckets(std::string(40, 'x'))};
  std::istringstream lines(describe_headroom(h));
  std::vector<size_t> ends;  // of the column of steps, in the measured rows
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("dense ") || line.starts_with("xxxx"))
      ends.push_back(line.find_first_of("0123456789", 40));
  CHECK(ends == std::vector<size_t>{48, 48});
}

}  // namespace heddle
