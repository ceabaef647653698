// Steps that are not applied, because some rank's gradients are non-finite: no rank applies them,
// and what was sent returns to the residuals.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "compress/compressed_reducer.h"
#include "core/kernels.h"
#include "tests/learner_net.h"

using namespace heddle;

TEST_CASE("learners: residuals are zero during a dense start, after a skipped step of it too") {
  for (const char* spec :
       {"topk:density=0.1", "randomk:density=0.1", "scalecom:rate=10,beta=0.3", "powersgd:rank=1"})
    for (const bool coded : {false, true}) {
      CAPTURE(spec);
      CAPTURE(coded);
      expect_none(run_ranks(2, [&](Communicator& comm) {
        ParameterStore store;
        Parameter& w = store.add("w", {32, 32}, constant_init(0.0f));
        store.finalize(1);
        auto reducer = make_reducer(parse_compress(spec), {.min_compress = 10}, store);
        Reducer& state = *reducer;
        DataParallelOptions parallel{.compress_start = 3};
        if (coded) parallel.start = start_reducer("qsgd", store);
        DataParallelOptimizer optimizer(store, make_sgd({}), comm,
                                        {.on_nonfinite = OnNonfinite::step}, parallel,
                                        std::move(reducer));
        for (int step = 0; step < 4; ++step) {
          optimizer.begin_step(0.1);
          w.next_beta();
          for (int64_t i = 0; i < w.size(); ++i)
            w.grad.data<float>()[i] = Philox(3, static_cast<uint64_t>(step)).normal(i);
          if (step == 1 && comm.rank() == 1) w.grad.data<float>()[7] = NAN;
          optimizer.ready(w);
          optimizer.weights_free(w);
          if (optimizer.finish_step().skipped != (step == 1)) throw Error("skipped or not");
          double residual = 0;
          for (const auto& [name, m] : state.named_state())
            if (name == "residual.w") residual = squared_norm(m);
          if ((residual > 0) != (step == 3))
            throw Error(concat("step ", step, ": the residual has squared norm ", residual));
        }
      }));
    }
}

TEST_CASE("learners: a non-finite gradient on one rank is applied on none, compressed too") {
  for (const char* spec : {"none", "bf16", "topk:density=0.1", "randomk:density=0.1",
                           "scalecom:rate=10,beta=0.3", "qsgd", "powersgd:rank=2"})
    for (int way = 0; way < 4; ++way) {
      CAPTURE(spec);
      CAPTURE(way);  // updates at once; whole steps; clipped before the exchange; in one bucket
      std::vector<std::vector<float>> values(3);
      expect_none(run_ranks(3, [&](Communicator& comm) {
        Net net(1);
        const auto reducer = parse_compress(spec);
        DataParallelOptimizer optimizer(
            net.store, make_sgd({}), comm,
            {.on_nonfinite = way == 1 ? OnNonfinite::step : OnNonfinite::bucket},
            {.bucket_bytes = way == 3 ? 1 << 20 : 64, .local_clip = way == 2 ? 1.0 : 0.0},
            make_reducer(reducer, {.min_compress = 100}, net.store));
        const std::vector<float> before = net.store.values().to_vector();
        const std::vector<float> second = net.second.weight->value.to_vector();
        for (int step = 0; step < 4; ++step) {
          const bool bad = step == 1 && comm.rank() == 1;
          const std::vector<float> all = net.store.values().to_vector(),
                                   own = net.second.weight->value.to_vector();
          optimizer.begin_step(0.1);
          for (Parameter& p : net.store.parameters()) {
            p.next_beta();
            for (int64_t i = 0; i < p.size(); ++i)
              p.grad.data<float>()[i] = Philox(1, p.offset).normal(4 * i + step) + comm.rank();
            if (bad && p.name == "second.weight") p.grad.data<float>()[7] = NAN;
            optimizer.ready(p);
            optimizer.weights_free(p);
          }
          const StepReport report = optimizer.finish_step();
          if ((report.skipped_parameters > 0) != (step == 1)) throw Error("skipped or not");
          // All ranks name it, unless clipping before the exchange spoils a rank's other buckets.
          if (step == 1 && (way != 2 || bad) && report.first_skipped != "second.weight")
            throw Error("reported: " + report.first_skipped);
          if (step == 1 && way == 0 && net.second.weight->value.to_vector() != own)
            throw Error("applied");
          if (step == 1 && way > 0 && net.store.values().to_vector() != all)
            throw Error("a part was applied");
          for (float v : net.store.values().to_vector())
            if (!std::isfinite(v)) throw Error("weights that are not finite");
        }
        optimizer.check_replicas();
        values[static_cast<size_t>(comm.rank())] = net.store.values().to_vector();
        if (values[static_cast<size_t>(comm.rank())] == before) throw Error("nothing was applied");
      }));
      CHECK(values[0] == values[1]);
      CHECK(values[0] == values[2]);
    }
}

TEST_CASE("learners: what the ranks sent in a skipped step returns to their residuals") {
  enum Form {
    compressed_then,
    dense_then,
    huge_then
  };  // then: in the skipped step; huge: larger than a residual can hold
  struct Case {
    std::string spec;
    Form form;
    int steps = 8;  // until all has arrived
    float tolerance = 1e-5f;
  };
  for (const Case& c :
       {Case{"scalecom:rate=4", compressed_then}, Case{"scalecom:rate=4", dense_then},
        Case{"scalecom:rate=4", huge_then}, Case{"topk:density=0.25", compressed_then},
        Case{"randomk:density=0.25", compressed_then, 60},
        Case{"powersgd:rank=2", compressed_then, 60, 1e-4f}})
    expect_none(run_ranks(2, [=, form = c.form](Communicator& comm) {
      ParameterStore store;
      Parameter& a = store.add("a", {32, 8}, constant_init(0.0f));
      Parameter& b = store.add("b", {32, 8}, constant_init(0.0f));
      store.finalize(1);
      auto reducer = make_reducer(parse_compress(c.spec), {.min_compress = 10}, store);
      auto& compressed = dynamic_cast<CompressedReducer&>(*reducer);
      DataParallelOptimizer optimizer(store, make_sgd({}), comm,
                                      {.on_nonfinite = OnNonfinite::step}, {.bucket_bytes = 64},
                                      std::move(reducer));
      for (int step = 0; step < c.steps; ++step) {
        for (const char* name : {"a", "b"})
          compressed.set_dense(name, form != compressed_then && step == 1);
        optimizer.begin_step(1.0);
        for (Parameter* p : {&b, &a}) {
          p->next_beta();
          fill(p->grad, 0.0f);
          if (step < 2)
            for (int64_t i = 0; i < p->size(); ++i)
              p->grad.data<float>()[i] = static_cast<float>(1 + i % 5);
          // By now there are residuals, those of b among them, whose bucket is rejected.
          if (step == 1 && p == &b && comm.rank() == 1) fill(p->grad, NAN);
          if (step == 1 && p == &a && form == huge_then) fill(p->grad, 1e32f);
          optimizer.ready(*p);
          optimizer.weights_free(*p);
        }
        if (optimizer.finish_step().skipped != (step == 1)) throw Error("skipped or not");
      }
      for (int64_t i = 0; i < a.size(); ++i) {
        const auto g = static_cast<float>(1 + i % 5);  // of a twice, of b in the first step alone
        const float times = form == huge_then ? 1.0f : 2.0f;
        if (std::abs(a.value.data<float>()[i] + times * g) > c.tolerance ||
            std::abs(b.value.data<float>()[i] + g) > c.tolerance)
          throw Error(concat(c.spec, ": element ", i, ": ", a.value.data<float>()[i], " and ",
                             b.value.data<float>()[i], " have arrived"));
      }
    }));
}

TEST_CASE(
    "learners: applied gradients and residual / beta sum to all gradients, for beta below 1 too") {
  for (const double beta : {1.0, 0.3}) {
    constexpr int64_t kSize = 256;
    std::vector<std::vector<float>> left(2);  // residuals of a, by rank
    std::vector<double> given(kSize);         // to a, in the steps whose buckets were accepted
    std::vector<float> applied;
    std::mutex mutex;
    expect_none(run_ranks(2, [&](Communicator& comm) {
      ParameterStore store;
      Parameter& a = store.add("a", {32, 8}, constant_init(0.0f));
      Parameter& b = store.add("b", {32, 8}, constant_init(0.0f));
      store.finalize(1);
      auto reducer = make_reducer(parse_compress(concat("scalecom:rate=4,beta=", beta)),
                                  {.min_compress = 10}, store);
      Reducer& state = *reducer;
      DataParallelOptimizer optimizer(store, make_sgd({}), comm,
                                      {.on_nonfinite = OnNonfinite::step}, {.bucket_bytes = 64},
                                      std::move(reducer));
      for (int step = 0; step < 6; ++step) {
        optimizer.begin_step(1.0);
        for (Parameter* p : {&b, &a}) {
          p->next_beta();
          for (int64_t i = 0; i < p->size(); ++i)
            p->grad.data<float>()[i] =
                Philox(4, p->offset).normal(64 * i + 8 * step) + static_cast<float>(comm.rank());
          // b's bucket is rejected; a's is not, and returns to the residuals.
          if (step == 2 && p == &b && comm.rank() == 1) fill(p->grad, NAN);
          if (p == &a) {
            const std::lock_guard lock(mutex);
            for (int64_t i = 0; i < kSize; ++i)
              given[static_cast<size_t>(i)] += double{p->grad.data<float>()[i]};
          }
          optimizer.ready(*p);
          optimizer.weights_free(*p);
        }
        if (optimizer.finish_step().skipped != (step == 2)) throw Error("skipped or not");
      }
      for (const auto& [name, m] : state.named_state())
        if (name == "residual.a") left[static_cast<size_t>(comm.rank())] = m.to_vector();
      if (optimizer.totals().rejected != 1) throw Error("rejected buckets are not counted");
      if (comm.rank() == 0) applied = a.value.to_vector();
    }));
    REQUIRE(left[0].size() == size_t{kSize});
    REQUIRE(applied.size() == size_t{kSize});
    double worst = 0;
    for (size_t i = 0; i < size_t{kSize}; ++i) {
      const double residual = (double{left[0][i]} + double{left[1][i]}) / beta;
      worst = std::max(worst, std::abs(given[i] + 2 * double{applied[i]} - residual));
    }
    CAPTURE(beta);
    CHECK(worst < 1e-4);
  }
}
