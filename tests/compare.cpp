#include "tests/compare.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>

#include "core/kernels.h"
#include "tests/device.h"
#include "tests/gradcheck.h"
#include "tests/tolerances.h"

namespace heddle {

ContextOptions subject(bool tune) {
  ContextOptions options = on_test_device({.tune = tune, .deterministic = !tune});
  if (!options.device.is_cuda()) options.threads = 1;
  return options;
}

void compare(const std::string& operation, const std::string& what, DType dtype,
             const std::function<Results()>& job, const ContextOptions& options) {
  const auto run = [&](const ContextOptions& where) {
    Context context(where);
    return job();
  };
  const Results expected = run({.threads = 2}), found = run(options);
  REQUIRE(found.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double distance = relative_distance(found[i], expected[i]);
    worst = std::isnan(worst) || worst >= distance ? worst : distance;  // NaN stays
  }
  const double bound = tolerance(operation, dtype);
  std::printf("compare %-20s %-40s %-4s %8.1e %8.1e\n", operation.c_str(), what.c_str(),
              dtype_name(dtype), worst, bound);
  CAPTURE(what);
  CHECK(worst <= bound);
}

Results run_layer(ParameterStore& store, const Tensor& input, const Network& network,
                  const TapeOptions& options) {
  Tape tape(options);
  const Var x(input, true), y = network(tape, x);
  Results out = {y.value().to_vector()};
  const Tensor dy = random_tensor(y.shape(), 131, Layout::plain, 1.0f, y.value().dtype());
  const Var loss(Tensor::from({0.0f}, {}), true);
  tape.record("projection", loss, {}, [&](BackwardPass& pass) {
    (void)std::move(pass.dy).sum();
    y.add_grad(converted(dy, dy.dtype(), y.value().layout()).clone());
  });
  store.begin_step();
  tape.backward(loss);
  if (x.grad().defined()) out.push_back(x.grad().to_vector());
  for (Parameter& p : store.parameters()) out.push_back(p.grad.to_vector());
  return out;
}

std::vector<DType> library_types() {
  return bf16_on_cpu() ? std::vector{DType::f32, DType::bf16} : std::vector{DType::f32};
}

}  // namespace heddle
