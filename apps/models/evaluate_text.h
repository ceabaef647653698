// Applies a language model without training: the loss on a text, and text that the model generates.
//
//   TextEvaluation e = evaluate_text(model, corpus.test);   // perplexity(e.loss)
//   auto tokens = continue_text(model, prompt, {.tokens = 400, .temperature = 0.8, .seed = 1});
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "layers/lstm_lm.h"
#include "optim/learner_optimizer.h"

namespace heddle {

struct TextEvaluation {
  double loss = NAN;   // mean over tokens, nats
  int64_t tokens = 0;  // predicted
  double seconds = 0;
};

inline double perplexity(double loss) { return std::exp(loss); }
// Returns NaN where the perplexity is not finite: saturated gates keep such a loss finite, but the
// run has diverged.
inline double finite_or_nan(double loss) { return std::isfinite(perplexity(loss)) ? loss : NAN; }
inline double bits(double loss) { return loss / std::numbers::ln2; }  // per token

// Reads the text as one stream from a state of zero: every token but the first is predicted once,
// with all the text before it. So the result depends only on model and text. Throws InputError for
// a text of fewer than two tokens.
TextEvaluation evaluate_text(const LstmLm& model, const std::vector<int32_t>& text);

// Evaluates with several learners: one reads, the others wait and get the result, because a stream
// cannot be read in parts. Collective.
TextEvaluation evaluate_together(const LstmLm& model, const std::vector<int32_t>& text,
                                 LearnerOptimizer& learners);

struct ContinueOptions {
  int64_t tokens = 0;
  double temperature = 1;
  uint64_t seed = 1;
};

// Returns the tokens that the model generates after a prompt of at least one token, without the
// prompt. Token i is drawn with number i of Philox(seed, Stream::sample). Throws Error if the
// output is not finite.
std::vector<int32_t> continue_text(const LstmLm& model, const std::vector<int32_t>& prompt,
                                   const ContinueOptions& options);

// Draws one token of softmax(logits / temperature): the one whose share of [0, 1) contains u.
// Temperature 0: the first of the largest logits. Throws Error for logits that are not finite.
int32_t sample_token(const std::vector<float>& logits, double temperature, double u);

}  // namespace heddle
