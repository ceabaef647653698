// The gradient checker. The output of a layer is projected on a fixed random tensor r, so that
// loss = <output, r> (summed in double), and backward is compared with central differences of that
// loss, element by element. On the way it proves what a wrong `beta` or an aliased buffer would
// break (the idea is dlib's):
//   - parameter gradients begin as NaN: the first contribution must overwrite;
//   - another backward without begin_step must add to them, not overwrite them;
//   - an input's gradient slot begins with noise: the layer must add to it;
//   - an input used twice gets the sum;
//   - the output's gradient comes as one or two tensors, shared or not: all give the same, nothing
//     is written into shared memory, and neither inputs nor parameters change.
//
//   GradCheck check(store, {x}, [&](Tape& tape, const std::vector<Var>& in) {
//     return conv2d(tape, in[0], *weight, nullptr, {.padding = 1});
//   });
//   check.run();
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/tape.h"

namespace heddle {

// Uniform in [-1, 1), times scale; a pure function of the seed and the index in memory. On the
// device of the current Context.
Tensor random_tensor(const Shape& shape, uint64_t seed, Layout layout = Layout::plain,
                     float scale = 1.0f, DType dtype = DType::f32);

// i32 in [0, below), on the host.
Tensor random_integers(const Shape& shape, uint64_t seed, uint32_t below);

// x += value.
void add_constant(const Tensor& x, float value);

// Fills every parameter with uniform values around 1 (scale parameters of norms) or 0.
void randomize(ParameterStore& store, uint64_t seed, float scale);

// ||a - b|| / ||b||; NaN when either holds NaN.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b);

// <y, r> as a scalar loss; backward gives y its gradient in one of these ways, as r or (the last
// two) as two parts whose sum is r/2.
enum class DyMode { shared, unique, two_shared, two_unique, shared_and_unique, unique_and_shared };
Var project(Tape& tape, const Var& y, const Tensor& r, DyMode mode = DyMode::shared);

struct GradCheckOptions {
  // A difference fails if it is a larger share than this of max(|element|, rms of the tensor). A
  // third of the 1 % that must be caught. Measured: up to 3.3e-4 for layers, 2e-3 for whole blocks.
  double tolerance = 3e-3;
  // Slope of the numeric gradient over the analytic one, over all elements: a factor that is wrong
  // by 1 % shows here even where single elements are noisy. Measured: up to 8e-4.
  double slope_tolerance = 2e-3;
  int samples = 32;          // elements per tensor; at most HEDDLE_GRADCHECK_SAMPLES
  double max_skipped = 0.0;  // share of elements that may lie at a kink or drown in rounding
  double first_step = 0.5;   // the largest step of the differences
  TapeOptions tape = {.step = 0};
};

class GradCheck {
 public:
  using Network = std::function<Var(Tape&, const std::vector<Var>&)>;

  GradCheck(ParameterStore& store, std::vector<Tensor> inputs, Network network,
            const GradCheckOptions& options = {});
  void run();

  // Gradients of the inputs, then of the parameters in order of creation, in memory order.
  using Gradients = std::vector<std::vector<float>>;
  // uses: how often the network is applied to the same inputs within one tape.
  Gradients analytic(DyMode mode, int uses = 1);

 private:
  std::vector<float> output();
  // d loss / d values[i] by central differences around the output `middle`; false when no step size
  // gives a trustworthy value.
  bool differentiate(const Tensor& values, int64_t i, float centre,
                     const std::vector<float>& middle, double scale, double* derivative);
  void check_accumulation(const Gradients& expected);
  void check_tensor(const std::string& name, const Tensor& values,
                    const std::vector<float>& gradient);

  ParameterStore& store_;
  std::vector<Tensor> inputs_;
  Network network_;
  GradCheckOptions options_;
  Tensor r_;
};

// The output of one forward pass, whose tape is gone.
Tensor forward_value(const GradCheck::Network& network, const std::vector<Tensor>& inputs,
                     const TapeOptions& options = {.step = 0});

}  // namespace heddle
