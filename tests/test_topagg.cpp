// TopAgg: sums of votes and the answers, signs, clipped gradients, what is exchanged.
#include <algorithm>
#include <limits>

#include "core/bfloat16.h"
#include "core/kernels.h"
#include "tests/voted.h"

namespace heddle {
namespace {

TEST_CASE("topagg: the answer is the sum of the votes, the same on all ranks") {
  for (const int ranks : {1, 3})
    for (const int64_t votes : {1, 5})
      for (const double density : {0.01, 0.3, 1.0}) {
        CAPTURE(ranks);
        CAPTURE(votes);
        CAPTURE(density);
        VoteRun run{.ranks = ranks, .steps = 2};
        run.votes = [=](int, int64_t) { return votes; };
        run.voting.voters = static_cast<double>(votes);
        for (const bool single : {false, true}) {
          run.single_layers = single;
          const auto sums = run_votes(concat("topagg:output=votes,density=", density), run);
          const auto signs = run_votes(concat("topagg:density=", density), run);
          for (int64_t step = 0; step < 2; ++step) {
            const auto expected = plain_sums(run, density, step);
            for (int r = 0; r < ranks; ++r) {
              const auto& sum = sums[static_cast<size_t>(r)][static_cast<size_t>(step)];
              const auto& sign = signs[static_cast<size_t>(r)][static_cast<size_t>(step)];
              for (size_t i = 0; i < expected.size(); ++i) {
                CHECK(sum[i] == static_cast<float>(expected[i] / static_cast<double>(votes)));
                const int majority = expected[i] > 0 ? 1 : expected[i] < 0 ? -1 : 0;
                CHECK(sign[i] == static_cast<float>(ranks * majority));
              }
            }
          }
        }
      }
}

TEST_CASE("topagg: sums of votes at the limits of their bits, and ranks without a vote") {
  for (const int64_t votes : {0, 1, 127, 128, 129}) {
    CAPTURE(votes);
    VoteRun run{.ranks = 2};
    run.votes = [=](int rank, int64_t) { return rank == 0 ? votes : 0; };
    run.voting.voters = 64;
    run.fill = [](int, int64_t, int64_t, int64_t element) { return element % 2 == 0 ? 1.f : -1.f; };
    const auto sums = run_votes("topagg:output=votes,density=1", run);
    Context context;
    Voted net;
    const Parameter& p = *net.store.find("fc.bias");
    for (const Answers& of_rank : sums)
      for (int64_t i = p.offset; i < p.offset + p.size(); ++i)
        CHECK(of_rank[0][static_cast<size_t>(i)] ==  // bf16 has 8 bits
              static_cast<float>(bfloat16(static_cast<float>(votes))) / (i % 2 == 0 ? 64 : -64));
  }
}

TEST_CASE("topagg: signs are zero where the noisy sum is within the threshold") {
  VoteRun run{.rows = 400};
  run.fill = [](int, int64_t, int64_t, int64_t element) { return element % 2 == 0 ? 1.f : -1.f; };
  const auto signs = run_votes("topagg:density=1,sigma=2,threshold=3,noise-seed=4", run);
  // The sum is 1 or -1; P(1 + 2 N > 3) = 0.1587, P(1 + 2 N < -3) = 0.0228.
  int with = 0, against = 0;
  Context context;
  Voted net(400);
  const Parameter& p = *net.store.find("fc.weight");
  for (int64_t i = 0; i < p.size(); ++i) {
    const float o = signs[0][0][static_cast<size_t>(p.offset + i)];
    CHECK((o == 0 || o == 1 || o == -1));
    with += o == ((p.offset + i) % 2 == 0 ? 1.0f : -1.0f) ? 1 : 0;
    against += o == ((p.offset + i) % 2 == 0 ? -1.0f : 1.0f) ? 1 : 0;
  }
  CHECK(with == doctest::Approx(0.1587 * 20000).epsilon(0.05));
  CHECK(against == doctest::Approx(0.0228 * 20000).epsilon(0.12));
}

TEST_CASE("topagg: stochastic votes have the gradient as their mean") {
  VoteRun run{.steps = 10000};
  const std::vector<float> values = {0.9f, -0.6f, 0.3f, -0.1f};
  run.fill = [&](int, int64_t, int64_t, int64_t element) {
    return element < 4 ? values[static_cast<size_t>(element)] : 0.0f;
  };
  const auto votes = run_votes("topagg:density=1,output=votes,vote=stochastic", run);
  for (size_t i = 0; i < 4; ++i) {
    double mean = 0;
    for (const auto& step : votes[0]) mean += static_cast<double>(step[i]) / 1e4;
    CHECK(mean == doctest::Approx(static_cast<double>(values[i] / 0.9f)).epsilon(0.0015).scale(40));
  }
}

TEST_CASE("topagg: clipped gradients are those of DP-SGD") {
  VoteRun run{.ranks = 2};
  run.votes = [](int, int64_t) { return 3; };
  run.voting.voters = 3;
  run.fill = [](int rank, int64_t step, int64_t vote, int64_t element) {
    return normal_gradient(rank, step, vote, element) * (vote == 0 ? 1e-4f : 1.0f);
  };
  const auto sums = run_votes("topagg:density=1,output=votes,vote=clip,clip=0.5", run);
  Context context;
  Voted net;
  std::vector<double> expected(static_cast<size_t>(net.store.grads().size()));
  for (int rank = 0; rank < 2; ++rank)
    for (int64_t vote = 0; vote < 3; ++vote) {
      double squares = 0;
      for (const Parameter& p : net.store.parameters())
        for (int64_t i = p.offset; i < p.offset + p.size(); ++i)
          squares += std::pow(static_cast<double>(run.fill(rank, 0, vote, i)), 2);
      const double scale = std::min(1.0, 0.5 / std::sqrt(squares));
      CHECK((scale == 1) == (vote == 0));
      for (const Parameter& p : net.store.parameters())
        for (int64_t i = p.offset; i < p.offset + p.size(); ++i)
          expected[static_cast<size_t>(i)] +=
              scale * static_cast<double>(run.fill(rank, 0, vote, i)) / 3;
    }
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(static_cast<double>(sums[0][0][i]) ==
          doctest::Approx(expected[i]).epsilon(0.005).scale(1e-3));
}

TEST_CASE("topagg: sums of clipped gradients are exact, however many there are") {
  VoteRun run{.ranks = 2};
  run.votes = [](int rank, int64_t) { return rank == 0 ? 1001 : 1000; };
  run.voting.voters = 1001;
  run.fill = [](int rank, int64_t, int64_t vote, int64_t element) {
    if (element != 0) return 0.0f;
    return vote == 1000 ? 1e-4f : rank == 0 ? 0.9f : -0.9f;
  };
  const auto sums = run_votes("topagg:density=1,output=votes,vote=clip", run);
  // In fp32 the next number after 900 is 900.00006.
  CHECK(1e4 * 1001 * static_cast<double>(sums[0][0][0]) == doctest::Approx(1).epsilon(0.03));
}

TEST_CASE("topagg: a rank of one voter votes once, whatever the votes are") {
  Context context({.threads = 1});
  Voted net;
  for (const char* vote : {"sign", "stochastic", "clip"}) {
    TopAgg reducer({find_family("topagg"), parse_compress(concat("topagg:sigma=1,vote=", vote)),
                    ReducerOptions{.voting = {.voters = 1}}, net.store});
    for (Parameter& p : net.store.parameters()) fill(p.grad, 1);
    reducer.vote(0, 0, 0);
    CHECK_THROWS_WITH(reducer.vote(0, 1, 0),
                      "topagg: a rank has voted more than once in a step, but voters is 1");
    CHECK_NOTHROW(reducer.vote(1, 0, 0));
  }
}

TEST_CASE("topagg: clipped gradients of more voters than expected are limited, not wrapped") {
  VoteRun run{.ranks = 1};
  run.votes = [](int, int64_t) { return 20; };
  run.voting.voters = 2;
  run.fill = [](int, int64_t, int64_t, int64_t element) { return element == 0 ? 0.9f : 0.0f; };
  const auto sums = run_votes("topagg:density=1,output=votes,vote=clip", run);
  CHECK(sums[0][0][0] == doctest::Approx(4).epsilon(0.01));  // 8 of 18, over two expected voters
}

TEST_CASE("topagg: a gradient that is not finite is an empty vote, and nothing is refused") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    VoteRun run{.ranks = 2};
    run.fill = [=](int rank, int64_t step, int64_t vote, int64_t element) {
      return rank == 1 && element == 3 ? bad : normal_gradient(rank, step, vote, element);
    };
    const auto sums = run_votes("topagg:output=votes,density=0.1", run);
    VoteRun first{.ranks = 1};
    const auto expected = plain_sums(first, 0.1);
    for (const Answers& of_rank : sums)
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(of_rank[0][i] == static_cast<float>(expected[i]));
  }
}

TEST_CASE("topagg: an answer depends on the votes of its step only") {
  VoteRun run{.ranks = 2, .steps = 3};
  const auto normal = run_votes("topagg:output=votes,density=0.1", run);
  run.fill = [](int rank, int64_t step, int64_t vote, int64_t element) {
    return normal_gradient(rank, step, vote, element) * (step == 0 ? 1000.0f : 1.0f);
  };
  const auto large = run_votes("topagg:output=votes,density=0.1", run);
  run.votes = [](int, int64_t step) { return step == 0 ? 0 : 1; };
  const auto late = run_votes("topagg:output=votes,density=0.1", run);
  CHECK(normal == large);
  CHECK(normal[0][1] == late[0][1]);
  CHECK(normal[0][2] == late[0][2]);
  Context context;
  Voted net;
  const auto reducer = make_reducer(parse_compress("topagg"), {}, net.store);
  CHECK(!reducer->keeps_residuals());
  CHECK(reducer->named_state().empty());
}

TEST_CASE("topagg: control words are summed exactly, without noise") {
  expect_none(run_ranks(3, [](Communicator& comm) {
    Voted net;
    const auto reducer = make_reducer(parse_compress("topagg:sigma=50"), {}, net.store);
    GradientBucket bucket = net.bucket(0);
    bucket.flat = net.store.grads_and_extra();
    bucket.control = ParameterStore::kExtra;
    const Tensor words = bucket.flat.slice(bucket.flat.size() - 4, bucket.flat.size());
    for (int i = 0; i < 4; ++i) words.data<float>()[i] = static_cast<float>(comm.rank() * 10 + i);
    Ledger ledger;
    CHECK(reducer->reduce(bucket, comm, ledger));
    for (int i = 0; i < 4; ++i) CHECK(words.data<float>()[i] == static_cast<float>(30 + 3 * i));
  }));
}

}  // namespace
}  // namespace heddle
