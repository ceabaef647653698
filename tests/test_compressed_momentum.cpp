// SGD's rule for gradients that a residual held back (--compressed-momentum residual): against
// double precision, and across the switch from dense to compressed gradients and back.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "compress/compressed_reducer.h"
#include "tests/learner_net.h"

using namespace heddle;

namespace {

constexpr double kMomentum = 0.9, kDecay = 0.01, kLr = 0.05;

// One element in double precision; `v` is the velocity.
struct Reference {
  double w, v = 0;
  void step(double gradient, bool nesterov, bool from_residual, double decay = kDecay) {
    const double usual = decay * w + (from_residual ? 0 : gradient);
    v = kMomentum * v + usual;
    const double at_once = from_residual ? gradient / (1 - kMomentum) : 0;
    w -= kLr * ((nesterov ? usual + kMomentum * v : v) + at_once);
  }
};

// Returns how far a weight of 0 moves in `steps` steps with a gradient of 1 and `rest` without one.
double displacement(bool nesterov, int steps, bool from_residual, int rest,
                    bool rest_from_residual) {
  ParameterStore store;
  Parameter& p = store.add("w", {1}, constant_init(0));
  store.finalize(0);
  auto rule = make_sgd({.momentum = kMomentum, .nesterov = nesterov});
  rule->attach(store);
  for (int i = 0; i < steps + rest; ++i) {
    p.grad.copy_from(Tensor::from({i < steps ? 1.0f : 0.0f}));
    rule->update(p, {.lr = kLr,
                     .step = i + 1,
                     .from_residual = i < steps ? from_residual : rest_from_residual});
  }
  return p.value.to_vector()[0];
}

struct Trained {
  std::vector<float> w, bias;
  std::vector<double> reference;
};

// Trains one of two learners that begin dense, compress `w` from step 3 on, and send it dense again
// in steps 8 and 9. The reference takes the sums as they came back.
Trained train_across(Communicator& comm, bool nesterov, double momentum, bool residual_momentum,
                     bool deferred, const char* spec) {
  ParameterStore store;
  Parameter& w = store.add("w", {40, 50}, constant_init(0.5f));
  Parameter& bias = store.add("bias", {7}, constant_init(0.25f));
  store.finalize(1);
  auto made = make_reducer(parse_compress(spec), {.min_compress = 100}, store);
  auto& reducer = dynamic_cast<CompressedReducer&>(*made);
  DataParallelOptimizer optimizer(
      store, make_sgd({.momentum = momentum, .nesterov = nesterov, .weight_decay = kDecay}), comm,
      {.clip_grad_norm = deferred ? 1e9 : 0.0},
      {.compress_start = 3, .residual_momentum = residual_momentum}, std::move(made));
  std::vector<Reference> reference(static_cast<size_t>(w.size()), Reference{.w = 0.5});
  for (int step = 0; step < 12; ++step) {
    const bool dense_again = step == 8 || step == 9;
    reducer.set_dense("w", dense_again);
    optimizer.begin_step(kLr);
    for (Parameter* p : {&w, &bias}) {
      p->next_beta();
      const Philox rng(static_cast<uint64_t>(comm.rank()), static_cast<uint64_t>(step));
      for (int64_t i = 0; i < p->size(); ++i)
        p->grad.data<float>()[i] = rng.normal(static_cast<uint64_t>(i));
    }
    for (Parameter* p : {&bias, &w}) {
      optimizer.ready(*p);
      optimizer.weights_free(*p);
    }
    optimizer.finish_step();
    const bool from_residual = residual_momentum && step >= 3 && !dense_again;
    for (size_t i = 0; i < reference.size(); ++i)
      reference[i].step(w.grad.to_vector()[i] / comm.size(), nesterov, from_residual);
  }
  Trained out{w.value.to_vector(), bias.value.to_vector(), {}};
  for (const Reference& r : reference) out.reference.push_back(r.w);
  return out;
}

Trained train_two(bool nesterov, double momentum, bool residual_momentum, bool deferred,
                  const char* spec) {
  std::vector<Trained> ranks(2);
  expect_none(run_ranks(2, [&](Communicator& comm) {
    ranks[static_cast<size_t>(comm.rank())] =
        train_across(comm, nesterov, momentum, residual_momentum, deferred, spec);
  }));
  CHECK(ranks[0].w == ranks[1].w);
  return ranks[0];
}

}  // namespace

TEST_CASE("compressed momentum: steps with and without residual, against double") {
  Context context;
  for (const bool nesterov : {true, false}) {
    CAPTURE(nesterov);
    ParameterStore store;
    Parameter& p = store.add("w", {100}, constant_init(1));
    store.finalize(0);
    auto rule = make_sgd({.momentum = kMomentum, .nesterov = nesterov, .weight_decay = kDecay});
    rule->attach(store);
    std::vector<Reference> reference(100, Reference{.w = 1});
    for (int step = 0; step < 20; ++step) {
      const bool from_residual = step % 7 > 2;
      for (int64_t i = 0; i < 100; ++i)
        p.grad.data<float>()[i] =
            Philox(1, static_cast<uint64_t>(step)).normal(static_cast<uint64_t>(i));
      for (size_t i = 0; i < 100; ++i)
        reference[i].step(0.3f * p.grad.data<float>()[i], nesterov, from_residual);
      rule->update(
          p, {.lr = kLr, .grad_scale = 0.3, .step = step + 1, .from_residual = from_residual});
    }
    const std::vector<float> v = rule->named_state()[0].second.to_vector();
    for (size_t i = 0; i < 100; ++i) {
      CHECK(p.value.to_vector()[i] == doctest::Approx(reference[i].w).epsilon(1e-6).scale(1));
      CHECK(v[i] == doctest::Approx(reference[i].v).epsilon(1e-6).scale(1));
    }
  }
}

TEST_CASE("compressed momentum: a gradient moves a weight as far as momentum would, once") {
  Context context;
  for (const bool nesterov : {true, false}) {
    CAPTURE(nesterov);
    const double far = -kLr * 5 / (1 - kMomentum);
    for (const bool residual : {true, false})  // remaining velocity is applied under either rule
      for (const bool rest : {true, false})
        CHECK(displacement(nesterov, 5, residual, 400, rest) == doctest::Approx(far).epsilon(1e-5));
    CHECK(displacement(nesterov, 5, true, 0, true) == doctest::Approx(far).epsilon(1e-5));
    CHECK(displacement(nesterov, 5, false, 0, true) > 0.7 * far);
  }
}

TEST_CASE("compressed momentum: Adam's rule does not change") {
  Context context;
  const auto values = [](bool from_residual) {
    ParameterStore store;
    Parameter& p = store.add("w", {3}, constant_init(1));
    store.finalize(0);
    auto rule = make_adam({.weight_decay = 0.1});
    rule->attach(store);
    p.grad.copy_from(Tensor::from({1, -2, 3}));
    rule->update(p, {.lr = kLr, .from_residual = from_residual});
    return p.value.to_vector();
  };
  CHECK(values(true) == values(false));
}

TEST_CASE("learners: momentum across the switch to compressed gradients and back, against double") {
  for (const char* spec : {"scalecom:rate=50", "scalecom:rate=50,beta=0.3", "topk:density=0.02",
                           "randomk:density=0.02"})
    for (const bool nesterov : {true, false})
      for (const bool residual : {true, false}) {
        CAPTURE(spec);
        CAPTURE(nesterov);
        CAPTURE(residual);
        const Trained trained = train_two(nesterov, kMomentum, residual, false, spec);
        for (size_t i = 0; i < trained.w.size(); ++i)
          CHECK(trained.w[i] == doctest::Approx(trained.reference[i]).epsilon(2e-6).scale(1));
        // Updates that wait for the end of the step: the same bits.
        const Trained deferred = train_two(nesterov, kMomentum, residual, true, spec);
        CHECK(deferred.w == trained.w);
        CHECK(deferred.bias == trained.bias);
        // Dense layers, and training without momentum, are unchanged.
        const Trained other = train_two(nesterov, kMomentum, !residual, false, spec);
        CHECK(other.bias == trained.bias);
        CHECK(other.w != trained.w);
      }
  for (const char* spec : {"scalecom:rate=50", "topk:density=0.02"})
    CHECK(train_two(false, 0, true, false, spec).w == train_two(false, 0, false, false, spec).w);
}

TEST_CASE("learners: momentum is unchanged where no residual holds anything back") {
  for (const char* spec : {"qsgd:bits=4,bucket=64", "bf16"}) {
    CAPTURE(spec);
    CHECK(train_two(true, kMomentum, true, false, spec).w ==
          train_two(true, kMomentum, false, false, spec).w);
  }
}
