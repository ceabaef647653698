// ScaleCom, random-k and top-k: conservation, commutativity, leaders, traffic. Messages of top-k
// are tested in test_top_k.cpp.
#include <algorithm>
#include <cmath>

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "tests/compress_helpers.h"

using namespace heddle;

namespace {

const std::vector<std::string> kSparse = {
    "topk:density=0.02",         "randomk:density=0.02",
    "scalecom:rate=50",          "scalecom:rate=50,select=exact",
    "scalecom:rate=40,beta=0.3", "scalecom:rate=40,beta=0.3,select=exact",
    "scalecom:rate=40,beta=0.1", "scalecom:rate=40,beta=0.1,select=exact"};

Indices indices_of(const Tensor& indices) {
  const auto* first = reinterpret_cast<const uint32_t*>(indices.data<int32_t>());
  return {first, first + indices.size()};
}

// Returns the indices of the elements that are not zero.
Indices support(const Values& x) {
  Indices out;
  for (uint32_t i = 0; i < x.size(); ++i)
    if (x[i] != 0) out.push_back(i);
  return out;
}

// Returns the largest difference between the gradients given to a rank and the elements that it has
// sent plus its residual, if all ranks send the same indices: those where the sum is not zero.
double imbalance_of_a_rank(const std::vector<RankRun>& runs, const std::string& layer,
                           double beta) {
  const std::string residual = "residual." + layer;
  double worst = 0;
  const auto [offset, size] = place_of(layer);
  for (const RankRun& run : runs)
    for (int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<size_t>(offset + i);
      double balance = 0, m = 0;
      for (size_t s = 0; s < run.given.size(); ++s) {
        balance += run.sums[s][at] != 0 ? -m : double{run.given[s][at]};
        m = run.states[s].at(residual)[static_cast<size_t>(i)];
      }
      worst = std::max(worst, std::abs(balance - m / beta));
    }
  return worst;
}

}  // namespace

TEST_CASE("error feedback: one pass adds, keeps the old residual, finds maxima of chunks") {
  Context context;
  for (const int64_t n : {1, 5, 99, 100, 101, 1000, 40000})
    for (const int64_t chunk : {1, 2, 25, 100, 400, 4096, 1000000}) {
      CAPTURE(n);
      CAPTURE(chunk);
      ErrorFeedback feedback;
      Values g(static_cast<size_t>(n)), m(g.size()), sum(g.size());
      const Philox rng(1, static_cast<uint64_t>(n));
      for (size_t i = 0; i < g.size(); ++i) g[i] = rng.normal(i), m[i] = rng.normal(i + 50000);
      for (size_t i = 0; i < g.size(); i += 3) g[i] = g[0], m[i] = m[0];  // ties
      for (size_t i = 0; i < g.size(); ++i) sum[i] = g[i] + m[i];
      feedback.residual("w", n).copy_from(Tensor::from(m));
      const Tensor gradient = Tensor::from(g);
      const Compensated all = feedback.compensate_swapping("w", gradient, chunk);
      CHECK(all.x.to_vector() == sum);
      CHECK(indices_of(all.indices) == select_chunks(sum, chunk));
      CHECK(largest_magnitude_of({all.magnitudes}) == largest_magnitude(sum.data(), n));
      CHECK(gradient.to_vector() == m);
      feedback.restore("w", gradient);
      CHECK(feedback.residual("w", n).to_vector() == m);
    }
  for (const float bad : {NAN, -INFINITY, 3e38f})
    for (const size_t at : {0, 15, 517, 999}) {
      ErrorFeedback feedback;
      Values g(1000, 1.0f);
      g[at] = bad;
      CHECK(largest_magnitude_of(
                {feedback.compensate_swapping("w", Tensor::from(g), 100).magnitudes}) ==
            magnitude(bad));
    }
}

TEST_CASE("a flag: infinity above a magnitude, else zero") {
  Context context;
  const Tensor flag = Tensor::from({5});
  for (const float largest : {0.0f, 1e30f, 1.01e30f, INFINITY, NAN})
    for (const int64_t at : {0, 1, 2}) {
      const Tensor found = Tensor::zeros({3}, DType::i32);
      found.data<int32_t>()[at] = static_cast<int32_t>(magnitude(largest));
      cpu::flag_above(found, magnitude(kMaxAddend), flag);
      CHECK(flag.item() == (largest <= 1e30f ? 0.0f : INFINITY));
    }
}

TEST_CASE("error feedback: unsent elements are the residual, the gradient is cleared") {
  Context context;
  for (const double beta : {1.0, 0.3}) {
    ErrorFeedback feedback(beta);
    const Values m = {1, 2, 3, 4, 5}, g = {10, 20, 30, 40, 50};
    feedback.residual("w", 5).copy_from(Tensor::from(m));
    const Tensor gradient = Tensor::from(g);
    feedback.compensate_swapping("w", gradient, 5);
    feedback.keep_unsent("w", gradient, index_tensor({1, 4}));
    const Values kept = feedback.residual("w", 5).to_vector();
    for (const size_t i : {0, 1, 2, 3, 4}) {
      const double sent = i == 1 || i == 4 ? m[i] + g[i] : 0;
      CHECK(kept[i] == doctest::Approx((1 - beta) * m[i] + beta * (m[i] + g[i] - sent)));
    }
    CHECK(gradient.to_vector() == Values(5));
  }
}

TEST_CASE("error feedback: a temporarily dense layer applies its residual, for any beta") {
  Context context;
  for (const double beta : {1.0, 0.3}) {
    CAPTURE(beta);
    ErrorFeedback feedback(beta);
    feedback.residual("w", 3).copy_from(Tensor::from(Values{1, -2, 3}));
    Values owed = {1, -2, 3};  // m / beta, and the gradients since, less what was sent
    for (float& v : owed) v /= static_cast<float>(beta);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = Tensor::from(Values{10, 20, 30});
      feedback.compensate("w", x);
      feedback.mark_sent_whole("w");
      const Values sent = x.to_vector(), kept = feedback.residual("w", 3).to_vector();
      for (size_t i = 0; i < 3; ++i) {
        owed[i] += 10 * static_cast<float>(i + 1) - sent[i];
        CHECK(kept[i] / beta == doctest::Approx(owed[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("error feedback: a dense layer's residual is dropped once it is applied") {
  Context context;
  for (const auto& [beta, most] : {std::pair{1.0, 1}, {0.3, 150}}) {
    ErrorFeedback feedback(beta);
    feedback.residual("w", 3).copy_from(Tensor::from(Values{1, -2e-12f, 3}));
    int steps = 0;
    for (; feedback.holds("w") && steps <= most; ++steps) {
      for (const float m : feedback.residual("w", 3).to_vector()) CHECK(std::isnormal(m));
      feedback.mark_sent_whole("w");
    }
    CHECK(steps <= most);
    CHECK(steps >= most * 0.7);
  }
}

TEST_CASE("error feedback: sum of what was sent + m / beta = sum of the gradients, for any P") {
  for (const std::string& spec : kSparse)
    for (const int p : {1, 2, 3, 4, 7}) {  // in the last case more ranks than layers
      CAPTURE(spec);
      CAPTURE(p);
      const auto runs = reduce_ranks(p, spec, {.steps = 25});
      for (const std::string layer : {"conv2.weight", "fc.weight"}) {
        const double worst = imbalance(runs, layer, beta_of(spec));
        double owed = 0;
        for (const RankRun& run : runs)
          for (const float m : run.states.back().at("residual." + layer)) owed += std::abs(m);
        CHECK(worst < 2e-4);
        CHECK(owed > 100);  // much was not sent
        if (!spec.starts_with("topk"))
          CHECK(imbalance_of_a_rank(runs, layer, beta_of(spec)) < 2e-4);
      }
    }
}

TEST_CASE("scalecom: the sum at the leader's indices is the sum of the sent values") {
  // P is larger than the number of layers in one case; steps are missing, as if skipped.
  for (int p : {2, 3, 7})
    for (const std::string select : {"chunk", "exact"}) {
      CAPTURE(p);
      CAPTURE(select);
      const ReduceOptions o{.step_numbers = {0, 1, 2, 5, 6, 13}};
      const auto runs = reduce_ranks(p, "scalecom:rate=50,beta=0.3,select=" + select, o);
      for (const std::string layer : {"conv2.weight", "fc.weight"})
        for (size_t s = 0; s < o.step_numbers.size(); ++s) {
          std::vector<Values> compensated;
          for (const RankRun& run : runs) {
            compensated.push_back(part_of(run.given[s], layer));
            for (size_t i = 0; s > 0 && i < compensated.back().size(); ++i)
              compensated.back()[i] += run.states[s - 1].at("residual." + layer)[i];
          }
          const Values& led = compensated[static_cast<size_t>(o.step_numbers[s] % p)];
          const auto k = static_cast<int64_t>((led.size() + 49) / 50);
          const Indices expected = select == "chunk" ? select_chunks(led, 50) : select_top(led, k);
          const Values got = part_of(runs[0].sums[s], layer);
          CHECK(std::ssize(expected) == k);
          CHECK(support(got) == expected);
          for (const uint32_t i : expected) {
            double sum = 0;
            for (const Values& x : compensated) sum += x[i];
            CHECK(got[i] == doctest::Approx(sum).epsilon(1e-5));
          }
        }
    }
}

TEST_CASE("scalecom: one learner equals local top-k with filtered feedback in double") {
  constexpr size_t kChunk = 50;  // exact: as many elements as there are chunks
  for (const bool exact : {true, false})
    for (const double beta : {1.0, 0.1}) {
      CAPTURE(exact);
      CAPTURE(beta);
      const std::string spec =
          concat("scalecom:rate=", kChunk, ",select=", exact ? "exact" : "chunk", ",beta=", beta);
      const auto runs = reduce_ranks(1, spec, {.steps = 12});
      std::vector<double> m(1750);
      for (size_t s = 0; s < 12; ++s) {
        const Values g = part_of(runs[0].given[s], "fc.weight");
        const size_t within = exact ? g.size() : kChunk, k = exact ? g.size() / kChunk : 1;
        std::vector<size_t> order(g.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::vector<double> sent(g.size());
        for (auto begin = order.begin(); begin != order.end();) {
          const auto end = begin + static_cast<std::ptrdiff_t>(within);
          std::stable_sort(begin, end, [&](size_t x, size_t y) {
            return std::abs(g[x] + m[x]) > std::abs(g[y] + m[y]);
          });
          for (size_t j = 0; j < k; ++j) sent[begin[static_cast<std::ptrdiff_t>(j)]] = 1;
          begin = end;
        }
        for (size_t i = 0; i < m.size(); ++i) {
          sent[i] *= g[i] + m[i];
          m[i] = (1 - beta) * m[i] + beta * (m[i] + g[i] - sent[i]);
        }
        const Values got = part_of(runs[0].sums[s], "fc.weight");
        double worst = 0;
        for (size_t i = 0; i < m.size(); ++i) worst = std::max(worst, std::abs(got[i] - sent[i]));
        CHECK(worst < 1e-4);
      }
    }
}

TEST_CASE("identical learners behave as one") {
  const auto fill = [](CompressModel& m, int, int64_t step) { m.fill_random(0, step); };
  for (const std::string& spec : kSparse)
    for (int p : {2, 3, 4}) {
      CAPTURE(spec);
      const auto alone = reduce_ranks(1, spec, {.fill = fill});
      const auto runs = reduce_ranks(p, spec, {.fill = fill});
      for (size_t s = 0; s < alone[0].sums.size(); ++s) {
        Values expected = alone[0].sums[s];
        for (float& v : expected) v *= static_cast<float>(p);
        CHECK(runs[0].sums[s] == expected);
        CHECK(runs[static_cast<size_t>(p) - 1].states[s] == alone[0].states[s]);
      }
    }
}

TEST_CASE("a constant gradient is delivered in full over time") {
  const auto fill = [](CompressModel& m, int, int64_t) {
    m.fill([](uint64_t i) { return 1.0f + static_cast<float>(i % 7) * 0.1f; });
  };
  for (const std::string spec : {"topk:density=0.1", "randomk:density=0.1", "scalecom:rate=10",
                                 "scalecom:rate=10,beta=0.5", "powersgd:rank=2"}) {
    CAPTURE(spec);
    const auto runs = reduce_ranks(2, spec, {.steps = 200, .fill = fill});
    double given = 0, got = 0;
    for (size_t s = 0; s < 200; ++s)
      for (const float v : part_of(runs[0].sums[s], "fc.weight")) got += v;
    for (const float v : part_of(runs[0].given[0], "fc.weight")) given += v;
    CHECK(got / (200 * 2 * given) > 0.85);
    CHECK(got / (200 * 2 * given) < 1.01);
  }
}

TEST_CASE("traffic of a learner: constant with ScaleCom, growing with P with top-k by all-gather") {
  struct Sent {
    double mean = 0, most = 0;  // bytes a step, over the learners
    double indices = 0;         // of the mean
  };
  const auto sent = [](int p, const std::string& spec, int steps = 1) {
    Sent out;
    for (const RankRun& run : reduce_ranks(p, spec, {.steps = steps})) {
      const auto bytes = static_cast<double>(run.traffic.sent) / steps;
      out.mean += bytes / p;
      out.most = std::max(out.most, bytes);
      out.indices += static_cast<double>(run.ledger.total(PayloadKind::indices).sent) / steps / p;
    }
    return out;
  };
  // conv1 and the parameters of one axis are sent dense; 1152 and 1750 elements make 24 and 35
  // chunks of 50, whose indices take 6 bits each; a flag.
  const double values = 4.0 * (1080 + 40 + 35 + 24 + 35 + 1), indices = 18 + 27;
  // Top-k: 11 bits per index, a flag; in addition the dense layers in a ring, with a flag.
  const double message = 1 + 4 * (23 + 35) + 32 + 49;
  const double dense = 4.0 * (1080 + 40 + 35 + 1);
  double first = 0;
  for (int p : {2, 4, 8, 16, 32, 64}) {
    CAPTURE(p);
    const double ring = 2.0 * (p - 1) / p;
    // The mean over P steps of one learner is the mean over the learners of one step, in which the
    // leader sends the indices to as many ranks as its tree has branches.
    const Sent step = sent(p, "scalecom:rate=50");
    const double mean = ring * values + ring / 2 * indices;
    CHECK(step.mean == doctest::Approx(mean).epsilon(1e-3));
    CHECK(step.indices == doctest::Approx(ring / 2 * indices).epsilon(1e-9));
    CHECK(step.most == doctest::Approx(ring * values + std::log2(p) * indices).epsilon(2e-3));
    // Each learner was the leader once, and all have sent the same amount, except for the ring's
    // rounding.
    if (p <= 16) CHECK(sent(p, "scalecom:rate=50", p).most == doctest::Approx(mean).epsilon(2e-3));
    // QSGD: the dense layers, 4 bits an element of 1152 and 1750, scales for 18 and 28 blocks of
    // 64; padding, and unequal shares where a bucket has few blocks for each learner.
    const double levels = dense + (1152 + 1750) / 2.0 + 4 * (18 + 28);
    CHECK(sent(p, "qsgd:bits=4,bucket=64").most < (p <= 8 ? 1.1 : 1.5) * ring * levels);
    const Sent gathered = sent(p, "topk:density=0.02,indices=plain");
    CHECK(gathered.mean == doctest::Approx((p - 1) * message + ring * dense).epsilon(1e-3));
    CHECK(gathered.most == doctest::Approx(gathered.mean).epsilon(2e-3));
    // Differences: a length before them, and the length of the longest.
    const double each = (sent(p, "topk:density=0.02").mean - ring * dense) / (p - 1) - 8;
    if (p == 2) first = each;
    CHECK(each == doctest::Approx(first).epsilon(0.02));
    CHECK(each < message - 20);
  }
}

TEST_CASE("scalecom: residual with beta below 1; settings of single layers") {
  const ReduceOptions o{.steps = 12, .before = [](Reducer& reducer, int64_t step) {
                          if (step == 11) reducer.set_choice("fc.weight", 7);
                        }};
  const auto runs = reduce_ranks(2, "scalecom:rate=50,beta=0.8", o);
  const auto [offset, size] = place_of("fc.weight");
  for (int64_t i = 0; i < size; ++i) {
    const auto at = static_cast<size_t>(offset + i);
    double balance = 0;
    for (const RankRun& run : runs) {
      for (const Values& g : run.given) balance += g[at];
      balance -= run.states.back().at("residual.fc.weight")[static_cast<size_t>(i)] / 0.8;
    }
    for (const Values& sum : runs[0].sums) balance -= sum[at];
    CHECK(std::abs(balance) < 2e-4);
  }
  CHECK(support(part_of(runs[0].sums[10], "fc.weight")).size() == 35);
  CHECK(support(part_of(runs[0].sums[11], "fc.weight")).size() == 250);
  CHECK(support(part_of(runs[0].sums[11], "conv2.weight")).size() == 24);
}

TEST_CASE("scalecom: all elements, and one element of a layer") {
  for (const std::string select : {"chunk", "exact"}) {
    const auto all = reduce_ranks(2, "scalecom:rate=1,select=" + select);
    CHECK(all[0].sums == reduce_ranks(2, "none")[0].sums);
    const auto one = reduce_ranks(2, "scalecom:rate=1000000,select=" + select);
    for (const Values& sum : one[0].sums) CHECK(support(part_of(sum, "fc.weight")).size() == 1);
  }
}

TEST_CASE("scalecom: automatic rates by multiply-accumulates per weight") {
  for (const auto& [uses, rate] : std::vector<std::pair<double, double>>{
           {3136, 25}, {197, 25}, {196, 50}, {128, 50}, {127, 400}, {1, 400}}) {
    Context context;
    const auto comm = make_solo();
    CompressModel model;
    model.fill_random(0, 0);
    model.store.find("conv2.weight")->uses_per_sample = uses;
    const auto reducer = make_reducer(parse_compress("scalecom:rate=auto"), {}, model.store);
    Ledger ledger;
    CHECK(reducer->reduce(model.bucket(0), *comm, ledger));
    CHECK(reducer->choices().at("conv2.weight") == rate);
    // From the next step on the chunks are known before the exchange.
    for (int64_t step = 0; step < 2; ++step) {
      if (step > 0) {
        model.fill_random(0, step);
        CHECK(reducer->reduce(model.bucket(step), *comm, ledger));
      }
      const Indices sent = support(model.store.find("conv2.weight")->grad.to_vector());
      CHECK(sent.size() == static_cast<size_t>(std::ceil(1152 / rate)));
      for (size_t c = 0; c < sent.size(); ++c) CHECK(sent[c] / static_cast<uint32_t>(rate) == c);
    }
  }
}

TEST_CASE("scalecom: setting 0 uses the automatic rate, before and after it is fixed") {
  Context context;
  const auto comm = make_solo();
  CompressModel model;
  for (Parameter& p : model.store.parameters()) p.uses_per_sample = 150;
  const auto reducer = make_reducer(parse_compress("scalecom:rate=auto"), {}, model.store);
  const auto& compressed = dynamic_cast<const CompressedReducer&>(*reducer);
  const std::map<std::string, double> open = {{"conv2.weight", 0}, {"fc.weight", 0}};
  CHECK(reducer->choices() == open);
  for (const LayerChoices& layer : compressed.candidates()) {
    CHECK(layer.settings == std::vector<double>{0});
    CHECK(layer.bytes == std::vector<int64_t>{4 * model.store.find(layer.name)->size()});
    REQUIRE(layer.uniform == 0);
    const Tensor x = model.store.find(layer.name)->grad;
    CHECK(std::isinf(compressed.errors(layer, x.reshape({x.size()}))[0]));
    reducer->set_choice(layer.name, layer.settings[layer.uniform]);
  }
  CHECK(reducer->choices() == open);
  Ledger ledger;
  for (int64_t step = 0; step < 2; ++step) {
    model.fill_random(0, step);
    CHECK(reducer->reduce(model.bucket(step), *comm, ledger));
    CHECK(reducer->choices().at("conv2.weight") == 50);
    CHECK(support(model.store.find("conv2.weight")->grad.to_vector()).size() == 24);
    CHECK(compressed.candidates()[0].settings.size() == 9);
    reducer->set_choice("conv2.weight", 7);
    reducer->set_choice("conv2.weight", 0);
  }
  const auto top_k = make_reducer(parse_compress("topk"), {}, model.store);
  CHECK_THROWS_AS(top_k->set_choice("fc.weight", 0), InputError);
  CHECK_THROWS_AS(reducer->set_choice("fc.weight", 1.5), InputError);
}
