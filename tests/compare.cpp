#include "tests/compare.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>

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

}  // namespace heddle
