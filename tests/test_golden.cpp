// Every layer against PyTorch: outputs and gradients of tests/golden/make_golden.py.
#include <doctest/doctest.h>

#include "core/context.h"
#include "tests/golden.h"

using namespace heddle;

TEST_CASE("golden: both sides compute the same numbers from names") {
  Context context;
  Golden golden("formula");
  const Shape n{1000};
  CHECK(formula("layer1.0.conv1.weight", n).to_vector() == golden.load("uniform").to_vector());
  const float scale = he_scale({16, 16, 3, 3});
  CHECK(formula("layer1.0.conv1.weight", n, scale).to_vector() ==
        golden.load("scaled").to_vector());
  CHECK(formula("bn1.weight", n, 0.1f, 1.0).to_vector() == golden.load("shifted").to_vector());
  const Tensor labels = golden.load("labels");
  const std::vector<int32_t> ours = formula_labels("labels:0", 100, 10);
  CHECK(std::equal(ours.begin(), ours.end(), labels.data<int64_t>()));
}
