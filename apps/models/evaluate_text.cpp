#include "apps/models/evaluate_text.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"
#include "core/trace.h"
#include "data/text.h"
#include "layers/loss.h"

namespace heddle {
namespace {

// Number of tokens read at once. The result does not depend on it: windows pass on their state.
constexpr int64_t kWindow = 64;
constexpr int64_t kWindowsPerBarrier = 16;

// Returns i32 (T, 1) on the host.
Tensor as_column(const int32_t* tokens, int64_t count) {
  return Tensor::from_integers({tokens, tokens + count}).reshape({count, 1});
}

// Reads the tokens and returns the logits after the last one.
std::vector<float> read_on(const LstmLm& model, const int32_t* tokens, int64_t count,
                           LstmState& state) {
  Tape tape({.training = false});
  const Tensor logits = model.forward(tape, as_column(tokens, count), state).value();
  return logits.slice(count - 1, count).to_vector();
}

// Evaluates a text and calls `before` with the number of each window.
template <class Before>
TextEvaluation read_text(const LstmLm& model, const std::vector<int32_t>& text, Before before) {
  const double begin = steady_seconds();
  const TokenBatches windows(text, {.batch_size = 1, .bptt = kWindow});
  LstmState state = model.zero_state(1);
  TextEvaluation out;
  double sum = 0;
  for (int64_t i = 0; i < windows.size(); ++i) {
    before(i);
    const TokenWindow window = windows.window(i);
    Tape tape({.training = false});
    const Var logits = model.forward(tape, window.inputs, state);
    const Var loss = softmax_cross_entropy(tape, logits, window.targets);
    sum += to_double(loss.value().item()) * to_double(window.targets.size());
    out.tokens += window.targets.size();
  }
  out.loss = sum / to_double(out.tokens);
  out.seconds = steady_seconds() - begin;
  return out;
}

}  // namespace

TextEvaluation evaluate_text(const LstmLm& model, const std::vector<int32_t>& text) {
  return read_text(model, text, [](int64_t) {});
}

TextEvaluation evaluate_together(const LstmLm& model, const std::vector<int32_t>& text,
                                 LearnerOptimizer& learners) {
  if (learners.learners() == 1) return evaluate_text(model, text);
  // Periodic barriers keep the waiting ranks from timing out.
  const auto meet = [&](int64_t window) {
    if (window % kWindowsPerBarrier == 0)
      learners.collective("evaluation", [](Communicator& comm) { comm.barrier(); });
  };
  TextEvaluation out;
  int rank = 0;
  learners.collective("evaluation", [&](Communicator& comm) { rank = comm.rank(); });
  if (rank == 0) {
    out = read_text(model, text, meet);
  } else {
    const TokenBatches windows(text, {.batch_size = 1, .bptt = kWindow});
    const double begin = steady_seconds();
    for (int64_t i = 0; i < windows.size(); ++i) meet(i);
    out.seconds = steady_seconds() - begin;
  }
  learners.collective("evaluation", [&](Communicator& comm) {
    const auto all = gather_values(comm, std::vector{out.loss, to_double(out.tokens)});
    out.loss = all[0][0];
    out.tokens = to_int64(all[0][1]);
  });
  return out;
}

int32_t sample_token(const std::vector<float>& logits, double temperature, double u) {
  const auto finite = [](float z) { return std::isfinite(z); };
  if (!std::ranges::all_of(logits, finite))
    throw Error("generating: the model's output is not finite");
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<double> sums(logits.size());  // cumulative weights of the tokens
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    total += std::exp((to_double(logits[i]) - double{*best}) / temperature);
    sums[i] = total;
  }
  const auto token = std::upper_bound(sums.begin(), sums.end(), u * total);
  // Rounding may make u * total equal total: then the last token of nonzero weight is drawn.
  const auto last = std::lower_bound(sums.begin(), sums.end(), total);
  return static_cast<int32_t>(std::min(token, last) - sums.begin());
}

std::vector<int32_t> continue_text(const LstmLm& model, const std::vector<int32_t>& prompt,
                                   const ContinueOptions& options) {
  check(!prompt.empty(), "generating: expected a prompt of at least one token");
  const Philox rng(options.seed, stream_id(Stream::sample));
  LstmState state = model.zero_state(1);
  std::vector<float> logits;
  const auto size = to_int64(prompt.size());
  for (int64_t i = 0; i < size; i += kWindow)
    logits = read_on(model, prompt.data() + i, std::min(kWindow, size - i), state);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < options.tokens; ++i) {
    if (i > 0) logits = read_on(model, &out.back(), 1, state);
    const double u = (rng.bits(static_cast<uint64_t>(i)) + 0.5) / 4294967296.0;
    out.push_back(sample_token(logits, options.temperature, u));
  }
  return out;
}

}  // namespace heddle
