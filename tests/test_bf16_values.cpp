// values=bf16: what is sent, and where the rest goes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/bfloat16.h"
#include "tests/compress_helpers.h"

using namespace heddle;

TEST_CASE("values=bf16: half the bytes of values; what rounding loses stays in the residuals") {
  const auto values_sent = [](const std::vector<RankRun>& runs, const std::string& layer) {
    return runs[0].ledger.entries().at({layer, PayloadKind::values}).payload;
  };
  for (const std::string spec :
       {"topk:density=0.02", "topk:density=0.02,indices=plain", "randomk:density=0.02",
        "scalecom:rate=50", "scalecom:rate=40,beta=0.3,select=exact", "powersgd:rank=2"})
    for (const int p : {1, 2, 3, 5}) {
      CAPTURE(spec);
      CAPTURE(p);
      const ReduceOptions o{.steps = 25};
      const auto full = reduce_ranks(p, spec, o), half = reduce_ranks(p, spec + ",values=bf16", o);
      for (const std::string layer : {"conv2.weight", "fc.weight"}) {
        CHECK(2 * values_sent(half, layer) == values_sent(full, layer));
        const double worst = imbalance(half, layer, beta_of(spec));
        const Values a = part_of(half[0].sums[0], layer), b = part_of(full[0].sums[0], layer);
        float lost = 0;
        for (size_t i = 0; i < a.size(); ++i) lost = std::max(lost, std::abs(a[i] - b[i]));
        CHECK(worst < 2e-4);  // as without rounding: a relative 2^-9 of values around 3 is more
        CHECK(lost > 2e-4f);
      }
      for (const RankRun& run : half) CHECK(run.sums == half[0].sums);
      // Sums at indices that all ranks share are bf16 themselves; a tensor that is sent dense is
      // not.
      if (spec.starts_with("topk") || spec.starts_with("powersgd")) continue;
      for (const float x : part_of(half[0].sums[3], "fc.weight"))
        CHECK(static_cast<float>(bfloat16(x)) == x);
      CHECK(part_of(half[0].sums[3], "bn1.weight") == part_of(full[0].sums[3], "bn1.weight"));
    }
}

TEST_CASE("values=bf16: a bucket with NaN on one rank is used on no rank") {
  for (const char* spec : {"scalecom:rate=50,values=bf16", "topk:density=0.02,values=bf16"}) {
    const auto fill = [](CompressModel& m, int rank, int64_t step) {
      m.fill_random(rank, step);
      if (step == 1) m.store.find("fc.weight")->grad.data<float>()[7] = rank == 1 ? NAN : 5.0f;
    };
    for (const RankRun& run : reduce_ranks(3, spec, {.steps = 3, .fill = fill})) {
      CHECK(run.accepted == std::vector<bool>{true, false, true});
      CHECK(run.states[1] == run.states[0]);
    }
  }
}
