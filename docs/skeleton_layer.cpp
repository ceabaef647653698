// A layer to copy: y = slope * x where x < 0, x elsewhere (PReLU, He et al. 2015), with one learned
// slope. It shows what every layer of heddle has: a function that computes forward and records its
// backward, a small class that owns the parameters, and a gradient check. A real layer's kernels
// are in a .cu file (layers/activation.cu) and run on both devices; the loops here are CPU only.
// Compiled and run by the tests.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/context.h"
#include "core/parallel.h"
#include "core/trace.h"
#include "tests/gradcheck.h"

namespace {

using namespace heddle;

// x f32, any shape; slope (1) -> the shape of x.
Var prelu(Tape& tape, const Var& x, Parameter& slope) {
  TraceRange range("forward", slope.name);
  check_shape(slope.value, {1}, slope.name);
  // Before the loops: their bodies, which other threads run, must not throw.
  check_form(x.value(), {x.shape(), DType::f32, Layout::plain}, slope.name.c_str());
  const Tensor input = x.value(), output = Tensor::empty_like(input);
  const float a = slope.value.data<float>()[0];
  parallel_for(input.size(), 8192, [&](int64_t begin, int64_t end) {
    const float* in = input.data<float>();
    for (int64_t i = begin; i < end; ++i)
      output.data<float>()[i] = in[i] < 0.0f ? a * in[i] : in[i];
  });
  slope.uses_per_sample =
      static_cast<double>(input.size()) / std::max<int64_t>(1, input.shape()[0]);

  Var y(output, x.needs_grad() || any_trained({&slope}));
  // The closure keeps what backward needs. `slope` is used once here: one contribution is promised.
  tape.record(slope.name, y, {&slope}, [x, input, &slope](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const float* in = input.data<float>();
    const float* d = dy.data<float>();
    // Parameters first, so that their gradients can travel while the rest is computed. A fixed
    // order of summation keeps the result independent of the number of threads.
    if (!slope.frozen) {  // a frozen parameter has no gradient
      const double sum = parallel_reduce(input.size(), 0.0, [&](int64_t begin, int64_t end) {
        double part = 0;
        for (int64_t i = begin; i < end; ++i) part += in[i] < 0.0f ? double{d[i]} * in[i] : 0.0;
        return part;
      });
      float& gradient = slope.grad.data<float>()[0];
      const float beta = slope.next_beta();  // 0: overwrite, whatever is there; 1: add
      gradient = (beta == 0.0f ? 0.0f : gradient) + static_cast<float>(sum);
    }
    pass.contributed(slope);
    if (!x.needs_grad()) return;
    const Tensor dx = dy.unique() ? dy : Tensor::empty_like(dy);  // in place if nobody shares it
    const float a = slope.value.data<float>()[0];
    parallel_for(dx.size(), 8192, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dx.data<float>()[i] = in[i] < 0.0f ? a * d[i] : d[i];
    });
    x.add_grad(dx);
  });
  return y;
}

class PRelu {
 public:
  PRelu(ParameterStore& store, const std::string& name)
      : slope_(&store.add(name + ".weight", {1}, constant_init(0.25f), false)) {}
  Var forward(Tape& tape, const Var& x) const { return prelu(tape, x, *slope_); }

 private:
  Parameter* slope_;
};

}  // namespace

TEST_CASE("the layer to copy: gradients") {
  Context context;
  ParameterStore store;
  const PRelu layer(store, "prelu");
  store.finalize(1);
  const Tensor x = random_tensor({4, 9}, 2);
  GradCheck(store, {x},
            [&](Tape& tape, const std::vector<Var>& in) { return layer.forward(tape, in[0]); },
            {.max_skipped = 0.05})  // elements near the kink
      .run();
}
