// The window of a planner: what it sums of the buckets that an exchange accepts.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/compress_helpers.h"

using namespace heddle;

TEST_CASE("planner: a window sums what was to be sent, with signs, without rejected steps") {
  for (const char* spec : {"topk:density=0.05", "qsgd:bits=4"})
    expect_none(run_ranks(2, [&](Communicator& comm) {
      CompressModel model;
      const auto reducer = make_reducer(parse_compress(spec), {.seed = 5}, model.store);
      auto& compressed = dynamic_cast<CompressedReducer&>(*reducer);
      Ledger ledger;
      Values expected(static_cast<size_t>(model.store.find("fc.weight")->size()));
      Values gradients(expected.size());
      std::vector<TimedExchange> exchanges;
      for (int64_t step = 0; step < 8; ++step) {
        if (step == 2) compressed.window().open({.compensated = true, .alone = true});
        model.fill_random(comm.rank(), step);
        const Tensor& grad = model.store.find("fc.weight")->grad;
        const Values g = grad.to_vector(), m = state_of(*reducer)["residual.fc.weight"];
        if (step == 4 && comm.rank() == 1) grad.data<float>()[3] = NAN;
        if (step == 5 && comm.rank() == 0)
          model.store.find("conv2.weight")->grad.data<float>()[0] = INFINITY;
        const int64_t payload = ledger.total().payload;
        const double seconds = ledger.seconds();
        const bool accepted = reducer->reduce(model.bucket(step), comm, ledger);
        if (step >= 2 && accepted)
          exchanges.push_back({ledger.total().payload - payload, ledger.seconds() - seconds});
        if (accepted == (step == 4 || step == 5)) throw Error("accepted or not");
        for (size_t i = 0; i < expected.size() && step >= 2 && accepted; ++i) {
          expected[i] += g[i] + (m.empty() ? 0 : m[i]);
          gradients[i] += g[i];
        }
      }
      const GradientWindow window = compressed.window().close();
      if (window.compensated.size() != 2 || window.alone.size() != 2)
        throw Error(concat(window.compensated.size(), " layers"));
      const Values sum = window.compensated.at("fc.weight").to_vector();
      const Values alone = window.alone.at("fc.weight").to_vector();
      for (size_t i = 0; i < sum.size(); ++i)
        if (!(std::abs(sum[i] - expected[i]) < 1e-4 && std::abs(alone[i] - gradients[i]) < 1e-4))
          throw Error(concat("sum at ", i));
      if (window.exchanges.size() != 4) throw Error("exchanges");
      for (size_t i = 0; i < 4; ++i)
        if (window.exchanges[i].bytes != exchanges[i].bytes || exchanges[i].bytes <= 0 ||
            window.exchanges[i].seconds != exchanges[i].seconds || exchanges[i].seconds <= 0)
          throw Error(concat("exchange ", i));
      (void)reducer->reduce(model.bucket(8), comm, ledger);
      if (!compressed.window().close().alone.empty()) throw Error("copied without a window");
      for (const bool alone : {false, true}) {
        compressed.window().open({.compensated = !alone, .alone = alone});
        (void)reducer->reduce(model.bucket(9), comm, ledger);
        const GradientWindow one = compressed.window().close();
        if (one.compensated.empty() != alone || one.alone.empty() == alone)
          throw Error("sums unasked for");
      }
    }));
}
