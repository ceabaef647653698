// train_lm: evaluating a text, sampling and generating.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "apps/cli/lm_options.h"
#include "apps/models/evaluate_text.h"
#include "apps/session/lm_setup.h"
#include "core/context.h"
#include "core/random.h"
#include "layers/loss.h"
#include "tests/app_helpers.h"
#include "tests/small_lm.h"

using namespace heddle;

namespace {

std::vector<int32_t> some_text(int64_t size, int32_t vocabulary) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < size; ++i)
    out.push_back(static_cast<int32_t>((i * i + i / 3) % vocabulary));
  return out;
}

}  // namespace

TEST_CASE("evaluation: every token is predicted from its whole past, whatever the windows") {
  const Context context({.threads = 1});
  const SmallModel net(5);
  for (const int64_t size : {2, 3, 64, 65, 66, 200}) {
    CAPTURE(size);
    const std::vector<int32_t> text = some_text(size, 5);
    const TextEvaluation found = evaluate_text(net.model, text);
    CHECK(found.tokens == size - 1);
    // The same in one piece.
    const TokenBatches whole(text, {.batch_size = 1, .bptt = size});
    REQUIRE(whole.size() == 1);
    Tape tape({.training = false});
    LstmState state = net.model.zero_state(1);
    const Var logits = net.model.forward(tape, whole.window(0).inputs, state);
    const Var loss = softmax_cross_entropy(tape, logits, whole.window(0).targets);
    CHECK(found.loss == doctest::Approx(loss.value().item()).epsilon(1e-6));
  }
  CHECK(perplexity(std::log(50.0)) == doctest::Approx(50));
  CHECK(bits(std::log(8.0)) == doctest::Approx(3));
  // An untrained model.
  net.store.values().fill_zero();
  CHECK(evaluate_text(net.model, some_text(100, 5)).loss == doctest::Approx(std::log(5.0)));
}

TEST_CASE("sampling: frequencies are softmax(logits / temperature); 0 is arg-max") {
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f, 2.0f, -200.0f};
  const Philox rng(7, stream_id(Stream::sample));
  for (const double temperature : {0.5, 1.0, 3.0}) {
    CAPTURE(temperature);
    double total = 0;
    for (const float z : logits) total += std::exp(z / temperature);
    constexpr int kDraws = 40000;
    std::array<int, 5> counts{};
    for (uint64_t i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(sample_token(logits, temperature, rng.uniform(i)))];
    }
    for (size_t i = 0; i < logits.size(); ++i) {
      CAPTURE(i);
      const double p = std::exp(logits[i] / temperature) / total;
      const double sigma = std::sqrt(p * (1 - p) / kDraws);
      CHECK(std::fabs(double{1} * counts[i] / kDraws - p) <= 4 * sigma + 1e-9);
    }
  }
  CHECK(sample_token(logits, 0, 0.9) == 2);  // the first of equals
  CHECK(sample_token(logits, 1e-300, 0.2) == 2);
  CHECK(sample_token(logits, 1e-300, 0.8) == 3);
  CHECK(sample_token(logits, 1, 0) == 0);
  CHECK(sample_token(logits, 1, 1) == 3);  // never a token without weight
  CHECK(sample_token({-1000.0f, 0.0f}, 1, 0) == 1);
  CHECK_THROWS_AS(sample_token({0.0f, NAN}, 1, 0.5), Error);
  CHECK_THROWS_AS(sample_token({0.0f, INFINITY}, 0, 0.5), Error);
}

TEST_CASE("generation: repeats by seed, and continues from the whole prompt") {
  const Context context({.threads = 1});
  const SmallModel net(5);
  const std::vector<int32_t> prompt = some_text(130, 5);  // more than two windows
  const auto a = continue_text(net.model, prompt, {.tokens = 50, .seed = 3});
  CHECK(a.size() == 50);
  CHECK(a == continue_text(net.model, prompt, {.tokens = 50, .seed = 3}));
  CHECK(a != continue_text(net.model, prompt, {.tokens = 50, .seed = 4}));
  const auto shorter = continue_text(net.model, prompt, {.tokens = 20, .seed = 3});
  CHECK(shorter == std::vector<int32_t>(a.begin(), a.begin() + 20));
  // Arg-max generates the same continuation if its own output extends the prompt.
  const auto greedy = continue_text(net.model, prompt, {.tokens = 20, .temperature = 0});
  std::vector<int32_t> further = prompt;
  further.insert(further.end(), greedy.begin(), greedy.begin() + 8);
  const auto rest = continue_text(net.model, further, {.tokens = 12, .temperature = 0});
  CHECK(rest == std::vector<int32_t>(greedy.begin() + 8, greedy.end()));
  // The first token follows the whole prompt, even if only one token of it remains for the last
  // window.
  const std::vector<int32_t> text = some_text(66, 5), long_prompt(text.begin(), text.end() - 1);
  const TokenBatches whole(text, {.batch_size = 1, .bptt = 65});
  Tape tape({.training = false});
  LstmState state = net.model.zero_state(1);
  const Tensor logits = net.model.forward(tape, whole.window(0).inputs, state).value();
  const std::vector<float> last = logits.slice(64, 65).to_vector();
  int differing = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const double u = (Philox(seed, stream_id(Stream::sample)).bits(0) + 0.5) / 4294967296.0;
    const auto first = continue_text(net.model, long_prompt, {.tokens = 1, .seed = seed});
    differing += first.at(0) == sample_token(last, 1, u) ? 0 : 1;
  }
  CHECK(differing <= 1);  // rounding may move the end of one token's interval across u
  CHECK(continue_text(net.model, prompt, {}).empty());
  CHECK_FALSE(message_of([&] { continue_text(net.model, {}, {.tokens = 1}); }).empty());
}

TEST_CASE("prompts: incomplete lines are continued; unknown words") {
  const Vocabulary words = vocabulary_of({"the", "<eos>", "cat", "<unk>"});
  const auto encode = [&](const std::string& prompt, const char* level, const Vocabulary& known) {
    TrainLmOptions o;
    o.prompt = prompt;
    o.level = level;
    return encode_prompt(o, known);
  };
  using Tokens = std::vector<int32_t>;
  CHECK(encode("the cat", "word", words) == Tokens{0, 2});
  CHECK(encode("the cat\n", "word", words) == Tokens{0, 2, 1});
  CHECK(encode("the\ncat", "word", words) == Tokens{0, 1, 2});
  CHECK(encode("the dog", "word", words) == Tokens{0, 3});
  CHECK(encode("", "word", words).empty());
  CHECK(encode("\xef\xbb\xbf", "word", words).empty());
  const Vocabulary closed = vocabulary_of({"the", "<eos>"});
  CHECK(contains(message_of([&] { encode("the dog", "word", closed); }), "dog"));
  const Vocabulary bytes = vocabulary_of({"\n", "a", "b"});
  CHECK(encode("ab", "char", bytes) == Tokens{1, 2});
  CHECK(contains(message_of([&] { encode("abc", "char", bytes); }), "--prompt"));
  CHECK(start_token(TextLevel::word, words) == 1);
  CHECK(start_token(TextLevel::character, bytes) == 0);
  CHECK(start_token(TextLevel::character, vocabulary_of({"x", "y"})) == 0);
}
