// Optimisers, schedules, and ten steps of training against PyTorch: golden values of
// tests/golden/make_golden.py.
#include <doctest/doctest.h>

#include "layers/loss.h"
#include "layers/resnet.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "optim/update_rule.h"
#include "tests/golden.h"

using namespace heddle;

namespace {

void check_rule(const std::string& name, std::unique_ptr<UpdateRule> rule, double lr) {
  ParameterStore store;
  Parameter& p = store.add("toy", {37}, constant_init(0.0f));
  store.finalize(0);
  p.value.copy_from(formula("toy.param", {37}));
  rule->attach(store);
  std::vector<float> values;
  for (int step = 0; step < 5; ++step) {
    p.grad.copy_from(formula(concat("toy.grad:", step), {37}));
    rule->update(p, {.lr = lr, .step = step + 1});
    const std::vector<float> now = p.value.to_vector();
    values.insert(values.end(), now.begin(), now.end());
  }
  Golden("optimizers").expect(name, values);
}

void check_schedule(const std::string& name, const ScheduleOptions& options) {
  Schedule schedule(options);
  const std::vector<float> metric = formula_values("plateau.metric", 30, 0.5f, 1.0);
  std::vector<float> rates;
  for (int step = 0; step < 30; ++step) {
    rates.push_back(static_cast<float>(schedule.lr(step)));
    schedule.observe(metric[step]);
  }
  // Each rate separately: the late ones are too small to show in a norm.
  const std::vector<float> expected = Golden("schedules").load(name).to_vector();
  for (int step = 0; step < 30; ++step) {
    CAPTURE(name);
    CAPTURE(step);
    CHECK(std::abs(rates[step] - expected[step]) <= 1e-6 * expected[step]);
  }
}

void check_steps(const std::string& name, const SgdOptions& options) {
  const Golden golden(name);
  ParameterStore store;
  const ResNet model(store, {.arch = "resnet20"});
  store.finalize(0);
  set_formula_parameters(store);
  Optimizer optimizer(store, make_sgd(options));
  const Tensor seeds = golden.load("input_seed");
  std::vector<float> losses;
  for (int step = 0; step < 10; ++step) {
    const int64_t seed = seeds.data<int64_t>()[step];
    optimizer.begin_step(0.01);
    Tape tape;
    const Var logits = model.forward(tape, Var(formula(concat("input:", seed), {4, 3, 12, 12})));
    const Var loss =
        softmax_cross_entropy(tape, logits, formula_labels(concat("labels:", seed), 4, 10));
    losses.push_back(loss.value().item());
    tape.backward(
        loss, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) { optimizer.weights_free(p); });
    optimizer.finish_step();
  }
  golden.expect("losses", losses);
  CHECK(golden.names().size() == store.parameters().size() + 2);
  for (const Parameter& p : store.parameters()) golden.expect("param:" + p.name, p.value);
}

}  // namespace

TEST_CASE("golden: SGD, Adam, AdamW on a vector") {
  Context context(on_test_device());
  check_rule("sgd", make_sgd({}), 0.1);
  check_rule("sgd_weight_decay", make_sgd({.weight_decay = 0.01}), 0.1);
  check_rule("sgd_momentum", make_sgd({.momentum = 0.9}), 0.1);
  check_rule("sgd_momentum_weight_decay", make_sgd({.momentum = 0.9, .weight_decay = 0.01}), 0.1);
  check_rule("sgd_nesterov", make_sgd({.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}),
             0.1);
  check_rule("adam", make_adam({}), 0.01);
  check_rule("adam_weight_decay", make_adam({.weight_decay = 0.01}), 0.01);
  check_rule("adamw", make_adam({.weight_decay = 0.01, .decoupled = true}), 0.01);
}

TEST_CASE("golden: schedules") {
  Context context(on_test_device());
  ScheduleOptions options{.lr = 0.4, .total_steps = 30, .steps_per_epoch = 1};
  options.kind = ScheduleKind::cosine;
  check_schedule("cosine", options);
  options.kind = ScheduleKind::onecycle;
  check_schedule("onecycle", options);
  options.kind = ScheduleKind::step;
  options.step_epochs = 7;
  check_schedule("step", options);
  options.kind = ScheduleKind::multistep;
  options.milestones = {8, 19, 25};
  check_schedule("multistep", options);
  options.kind = ScheduleKind::plateau;
  options.patience = 3;
  check_schedule("plateau", options);
}

TEST_CASE("golden: ten steps of SGD on ResNet-20") {
  Context context(on_test_device());
  check_steps("sgd_steps", {.momentum = 0.9, .weight_decay = 1e-4});
  check_steps("sgd_steps_nesterov", {.momentum = 0.9, .nesterov = true, .weight_decay = 1e-4});
}
