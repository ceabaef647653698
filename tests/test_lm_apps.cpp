// train_lm: presets, precedence, the card of its weights, evaluation and generating.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "apps/cli/lm_options.h"
#include "apps/models/evaluate_text.h"
#include "apps/models/lm_card.h"
#include "apps/models/weights.h"
#include "apps/session/lm_setup.h"
#include "core/context.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "layers/loss.h"
#include "tests/app_helpers.h"

using namespace heddle;

namespace {

TrainLmOptions parse(const Strings& arguments, const Strings& environment = {}) {
  TrainLmOptions options;
  FlagTable flags = lm_flags(options);
  flags.parse(arguments, environment);
  resolve(options, flags, text_kind(options.data));
  return options;
}

std::string complaint(const Strings& arguments) {
  return message_of([&] { parse(arguments); });
}

std::string dump(const Strings& arguments) {
  TrainLmOptions o;
  FlagTable flags = lm_flags(o);
  flags.parse(arguments, {});
  resolve(o, flags, text_kind(o.data));
  return config_text(o, flags);
}

// The rate in epoch 1, 2, ... of a run whose epochs have three steps.
double rate_in_epoch(const TrainLmOptions& o, int64_t epoch) {
  const Schedule schedule(lm_schedule(o, {3, 3 * o.epochs}));
  CHECK(schedule.lr(3 * epoch - 3) == schedule.lr(3 * epoch - 1));
  return schedule.lr(3 * epoch - 3);
}

Vocabulary vocabulary_of(const Strings& texts) {
  Vocabulary out;
  for (const std::string& text : texts) out.add(text);
  return out;
}

struct SmallModel {
  ParameterStore store;
  LstmLm model;
  explicit SmallModel(int64_t vocabulary, bool tied = false, uint64_t seed = 1)
      : model(store, {.vocabulary = vocabulary,
                      .emsize = 6,
                      .nhid = 6,
                      .nlayers = 2,
                      .dropout = 0.5f,
                      .tied = tied,
                      .init = 0.5f}) {
    store.finalize(seed);
  }
};

std::vector<int32_t> some_text(int64_t size, int32_t vocabulary) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < size; ++i)
    out.push_back(static_cast<int32_t>((i * i + i / 3) % vocabulary));
  return out;
}

}  // namespace

TEST_CASE("lm presets: sizes and rates of the papers, for the mean over tokens") {
  struct Expected {
    const char* preset;
    int64_t size, bptt, epochs;
    double init, dropout, lr, clip;
  };
  const Expected all[] = {{"zaremba-small", 200, 20, 13, 0.1, 0, 20, 5.0 / 20},
                          {"zaremba-medium", 650, 35, 39, 0.05, 0.5, 35, 5.0 / 35},
                          {"zaremba-large", 1500, 35, 55, 0.04, 0.65, 35, 10.0 / 35},
                          {"wlm", 200, 35, 40, 0, 0.2, 20, 0.25}};
  for (const Expected& e : all) {
    CAPTURE(e.preset);
    const auto o = parse({"--preset", e.preset});
    CHECK(o.emsize == e.size);
    CHECK(o.nhid == e.size);
    CHECK(o.nlayers == 2);
    CHECK_FALSE(o.tied);
    CHECK(o.init_range == e.init);
    CHECK(o.dropout == e.dropout);
    CHECK(o.bptt == e.bptt);
    CHECK(o.batch_size == 20);
    CHECK(o.epochs == e.epochs);
    CHECK(o.lr == doctest::Approx(e.lr).epsilon(1e-12));
    CHECK(o.clip_grad_norm == doctest::Approx(e.clip).epsilon(1e-12));
    CHECK(o.optimizer == "sgd");
    CHECK(o.momentum == 0);
    CHECK_FALSE(o.nesterov);
    CHECK(o.weight_decay == 0);
    CHECK(o.name == e.preset);
  }
}

TEST_CASE("lm presets: the learning rate falls where TensorFlow's tutorial lets it fall") {
  // There: lr * decay ** max(epoch - max_epoch, 0) for epoch 1, 2, ...
  struct Expected {
    const char* preset;
    int64_t constant, epochs;
    double lr, decay;
  };
  for (const auto& e :
       {Expected{"zaremba-small", 4, 13, 20, 0.5}, Expected{"zaremba-medium", 6, 39, 35, 0.8},
        Expected{"zaremba-large", 14, 55, 35, 1 / 1.15}}) {
    CAPTURE(e.preset);
    const auto o = parse({"--preset", e.preset});
    for (int64_t epoch = 1; epoch <= e.epochs; ++epoch) {
      CAPTURE(epoch);
      const auto times = static_cast<double>(std::max<int64_t>(epoch - e.constant, 0));
      CHECK(rate_in_epoch(o, epoch) ==
            doctest::Approx(e.lr * std::pow(e.decay, times)).epsilon(1e-9));
    }
  }
  // In Zaremba's own scale, which is ours divided by T: 1 in epochs 1 to 4, then 1/2.
  const auto small = parse({"--preset", "zaremba-small"});
  CHECK(rate_in_epoch(small, 4) / 20 == doctest::Approx(1));
  CHECK(rate_in_epoch(small, 5) / 20 == doctest::Approx(0.5));
  // A longer run goes on falling.
  const auto longer = parse({"--preset", "zaremba-small", "--epochs", "20"});
  CHECK(rate_in_epoch(longer, 20) == doctest::Approx(20 * std::pow(0.5, 16)));
}

TEST_CASE("lm plateau: a quarter after every epoch that is not the best so far") {
  Schedule schedule(lm_schedule(parse({"--preset", "wlm"}), {10, 400}));
  CHECK(schedule.lr(0) == 20);
  schedule.observe(5.0);
  schedule.observe(4.9999999);  // any improvement counts
  CHECK(schedule.lr(20) == 20);
  schedule.observe(4.9999999);
  CHECK(schedule.lr(30) == 5);
  schedule.observe(5.5);
  CHECK(schedule.lr(40) == 1.25);
  schedule.observe(4.5);
  CHECK(schedule.lr(50) == 1.25);
}

TEST_CASE("lm flags: what is given wins over the preset, wherever it stands") {
  const TempFolder temp;
  const Strings preset = {"--preset", "zaremba-medium"};
  const auto with = [&](Strings more) {
    more.insert(more.begin(), preset.begin(), preset.end());
    return more;
  };
  CHECK(parse(with({"--nhid", "32"})).nhid == 32);
  CHECK(parse(preset, {"HEDDLE_NHID=33"}).nhid == 33);
  const std::string config = temp.write("c.toml", "nhid = 34\nlr = 7\ndropout = 0\n");
  const auto o = parse(with({"--config", config, "--lr", "8"}), {"HEDDLE_EPOCHS=3"});
  CHECK(o.nhid == 34);
  CHECK(o.lr == 8);
  CHECK(o.dropout == 0);
  CHECK(o.epochs == 3);
  CHECK(o.emsize == 650);
  CHECK(o.lr_milestones.front() == 6);
  // The preset itself may come from anywhere.
  CHECK(parse({}, {"HEDDLE_PRESET=wlm"}).lr_scheduler == "plateau");
  CHECK(parse({"--config", temp.write("p.toml", "preset = \"wlm\"\n")}).bptt == 35);
  CHECK(parse({"--preset", "wlm"}, {"HEDDLE_PRESET=zaremba-small"}).bptt == 35);
  // Another schedule or optimizer does not take over what belonged to the recipe's own.
  const auto cosine = parse(with({"--lr-scheduler", "cosine"}));
  CHECK(cosine.lr_milestones.empty());
  CHECK(cosine.lr_gamma == 0.1);
  CHECK(parse(with({"--lr-scheduler", "plateau"})).lr_gamma == 0.25);
  CHECK(parse(with({"--optimizer", "adam"})).lr == 0.002);
  CHECK(parse({"--optimizer", "sgd"}).lr == 20);
  CHECK(parse(with({"--steps", "9"})).epochs == 0);
}

TEST_CASE("lm defaults follow level and data") {
  const TempFolder temp;
  const std::string file = temp.write("a.txt", "abc");
  CHECK(parse({}).level == "char");
  CHECK(parse({}).optimizer == "adam");
  CHECK(parse({}).generate > 0);
  CHECK(parse({"--generate", "0"}).generate == 0);
  CHECK(parse({"--evaluate"}).generate == 0);
  CHECK(parse({"--data", file}).level == "char");
  CHECK(parse({"--data", file}).generate == 0);
  CHECK(parse({"--data", file, "--level", "word"}).lr_scheduler == "plateau");
  CHECK(parse({"--data", temp.path}).level == "word");
  CHECK(parse({"--data", temp.path}).lr == 20);
  CHECK(parse({"--data", temp.path, "--level", "char"}).optimizer == "adam");
}

TEST_CASE("lm flags: impossible values and combinations are refused") {
  for (const Strings& arguments : std::vector<Strings>{{"--preset", "zaremba"},
                                                       {"--level", "byte"},
                                                       {"--nhid", "0"},
                                                       {"--nlayers", "-1"},
                                                       {"--bptt", "0"},
                                                       {"--dropout", "1"},
                                                       {"--init-range", "-1"},
                                                       {"--temperature", "-0.5"},
                                                       {"--temperature", "nan"},
                                                       {"--generate", "-1"},
                                                       {"--prompt", "x", "--data", "/tmp"},
                                                       {"--tied", "--nhid", "3"},
                                                       {"--momentum", "0.9"},
                                                       {"--data", "/nonexistent"}}) {
    const std::string said = complaint(arguments);
    CAPTURE(said);
    CHECK_MESSAGE(contains(said, arguments[0]), arguments[0]);
    CHECK_FALSE(contains(said, "\n"));
  }
  CHECK(contains(complaint({"--hidden", "3"}), "is not a known flag"));
}

TEST_CASE("lm: --generate needs weights, and trains them only when told to") {
  CHECK(contains(complaint({"--generate", "5"}), "--generate needs --init"));
  CHECK(!parse({"--generate", "5", "--init", "run"}).training);
  CHECK(parse({"--generate", "5", "--train"}).training);
  CHECK(parse({"--generate", "0"}).training);
  CHECK(parse({}).training);  // and writes a sample
}

TEST_CASE("lm: two steps of an epoch of millions have a schedule, whichever it is") {
  for (const char* name : {"constant", "step", "multistep", "cosine", "onecycle", "plateau"}) {
    CAPTURE(name);
    CommonOptions o;
    o.lr = 1;
    o.lr_scheduler = name;
    CHECK(Schedule(schedule_options(o, 2, 5'000'000)).lr(0) > 0);
  }
}

TEST_CASE("lm configuration: a dump read back dumps the same") {
  const TempFolder temp;
  const Strings cases[] = {{},
                           {"--preset", "zaremba-small"},
                           {"--preset", "zaremba-large", "--epochs", "2"},
                           {"--preset", "zaremba-large", "--lr-scheduler", "cosine"},
                           {"--preset", "wlm", "--tied", "--lr", "0.30000000000000004"},
                           {"--data", temp.path, "--steps", "7"},
                           {"--optimizer", "adamw", "--temperature", "0"}};
  for (const Strings& arguments : cases) {
    const std::string first = dump(arguments);
    const std::string second = dump({"--config", temp.write("c.toml", first)});
    CHECK(without_remarks(first) == without_remarks(second));
    CHECK_FALSE(contains(second, "# default"));
  }
  CHECK(contains(dump({"--preset", "wlm"}), "lr = 20  # default for wlm, sgd"));
}

TEST_CASE("lm help names every flag; no line is too long") {
  TrainLmOptions o;
  const std::string help = lm_flags(o).help();
  for (const char* part : {"--preset NAME", "zaremba-large", "--bptt N", "--temperature X",
                           "--init-range X", "x0.87 from epoch 15", "(default: sources)"}) {
    CHECK_MESSAGE(contains(help, part), part);
  }
  std::istringstream in(help);
  for (std::string line; std::getline(in, line);) CHECK_MESSAGE(line.size() <= 100, line);
}

TEST_CASE("lm card: level, vocabulary and sizes come back") {
  const Context context({.threads = 1});
  const TempFolder temp;
  const std::string path = temp.path + "/m.safetensors";
  const Vocabulary bytes = vocabulary_of({std::string(1, '\0'), "\n", "\"", "a", "\x80", "\xff"});
  const Vocabulary words = vocabulary_of({"<eos>", "na\u00efve", "\"", "\\", "1", "\u65e5"});
  for (const bool tied : {false, true}) {
    const SmallModel net(6, tied);
    for (const TextLevel level : {TextLevel::word, TextLevel::character}) {
      const Vocabulary& vocabulary = level == TextLevel::word ? words : bytes;
      save_lm(path, net.model, level, vocabulary);
      const LmCard card = read_lm_card(WeightsFile(temp.path + "/m.safetensors"));
      CHECK(card.level == level);
      CHECK(card.vocabulary.texts() == vocabulary.texts());
      CHECK(card.emsize == 6);
      CHECK(card.nhid == 6);
      CHECK(card.nlayers == 2);
      CHECK(card.tied == tied);
      SmallModel other(6, tied, 2);
      load_weights(WeightsFile(path), other.model.named_tensors());
      CHECK(other.store.values().to_vector() == net.store.values().to_vector());
    }
  }
  CHECK(format_vocabulary(bytes, TextLevel::character) == "[0,10,34,97,128,255]");
}

TEST_CASE("lm card: a file without one, and cards that cannot be") {
  const Context context({.threads = 1});
  const TempFolder temp;
  const std::string path = temp.path + "/m.safetensors";
  const SmallModel net(6);
  const auto complaint_about = [&](const std::map<std::string, std::string>& metadata) {
    save_safetensors(path, net.model.named_tensors(), metadata);
    return message_of([&] { read_lm_card(WeightsFile(path)); });
  };
  CHECK(complaint_about({}).empty());
  const LmCard card = read_lm_card(WeightsFile(path));  // as PyTorch's: the tensors tell the sizes
  CHECK(card.level == TextLevel::automatic);
  CHECK(card.vocabulary.size() == 0);
  CHECK(card.nhid == 6);
  CHECK(card.nlayers == 2);

  const std::string six = "[1,2,3,4,5,6]";
  CHECK(complaint_about({{"level", "char"}, {"vocabulary", six}}).empty());
  CHECK(contains(complaint_about({{"level", "byte"}, {"vocabulary", six}}), "byte"));
  CHECK(contains(complaint_about({{"vocabulary", six}}), "level"));
  const auto said = [&](const char* text) {
    const std::string message = complaint_about({{"level", "char"}, {"vocabulary", text}});
    CHECK(contains(message, "metadata vocabulary"));
    return message;
  };
  CHECK(contains(said("[1,2,3]"), "expected 6 tokens"));
  CHECK(contains(said("{}"), "JSON array"));
  CHECK(contains(said("[1,2,"), "JSON array"));
  CHECK(contains(said("[1,2,3,4,5,256]"), "entry 5"));
  CHECK(contains(said("[1,2,3,4,5,-1]"), "entry 5"));
  CHECK(contains(said("[1,2,3,4,5,[6]]"), "entry 5"));
  CHECK(contains(said("[1,2,3,4,5,5]"), "occurs twice"));
  CHECK(contains(said("[1,2,3,4,5,\"ab\"]"), "single bytes"));
}

TEST_CASE("lm card: another vocabulary is refused, and the difference is named") {
  const auto said = [](const Strings& corpus, const Strings& file) {
    return message_of([&] {
      check_same_vocabulary(vocabulary_of(corpus), "corpus", vocabulary_of(file), "file");
    });
  };
  CHECK(said({"the", "cat"}, {"the", "cat"}).empty());
  CHECK(contains(said({"the", "cat"}, {"the", "dog"}), "token 1 is 'dog' in the file, 'cat'"));
  CHECK(contains(said({"the", "cat"}, {"the"}), "token 1 is missing in the file, 'cat'"));
  CHECK(contains(said({"a"}, {"a", "\n"}), "token 1 is byte 10 in the file, missing"));
}

TEST_CASE("lm weights: tied ones must be equal in the file; a hint says what may be wrong") {
  const Context context({.threads = 1});
  const TempFolder temp;
  const std::string path = temp.path + "/m.safetensors";
  const SmallModel untied(6), tied(6, true, 2);
  save_safetensors(path, untied.model.named_tensors());
  const std::vector<float> before = tied.store.values().to_vector();
  CHECK(contains(message_of([&] { load_weights(WeightsFile(path), tied.model.named_tensors()); }),
                 "decoder.weight: expected the values of encoder.weight"));
  CHECK(tied.store.values().to_vector() == before);
  const SmallModel larger(7);
  CHECK(contains(
      message_of([&] {
        load_weights(WeightsFile(path), larger.model.named_tensors(), {{"encoder.", "oops"}});
      }),
      "expected shape (7, 6), found (6, 6) (oops)"));
}

TEST_CASE("evaluating: every token is predicted with all of its past, whatever the windows") {
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
  // A model that knows nothing.
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

TEST_CASE("generating: repeats by seed, and goes on from the whole prompt") {
  const Context context({.threads = 1});
  const SmallModel net(5);
  const std::vector<int32_t> prompt = some_text(130, 5);  // more than two windows
  const auto a = continue_text(net.model, prompt, {.tokens = 50, .seed = 3});
  CHECK(a.size() == 50);
  CHECK(a == continue_text(net.model, prompt, {.tokens = 50, .seed = 3}));
  CHECK(a != continue_text(net.model, prompt, {.tokens = 50, .seed = 4}));
  const auto shorter = continue_text(net.model, prompt, {.tokens = 20, .seed = 3});
  CHECK(shorter == std::vector<int32_t>(a.begin(), a.begin() + 20));
  // Arg-max goes on the same when its own words are given back to it as prompt.
  const auto greedy = continue_text(net.model, prompt, {.tokens = 20, .temperature = 0});
  std::vector<int32_t> further = prompt;
  further.insert(further.end(), greedy.begin(), greedy.begin() + 8);
  const auto rest = continue_text(net.model, further, {.tokens = 12, .temperature = 0});
  CHECK(rest == std::vector<int32_t>(greedy.begin() + 8, greedy.end()));
  // The first token follows upon the prompt as one piece, also where only one token of it is left
  // for the last window.
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
  CHECK(differing <= 1);  // rounding may move one share's end across u
  CHECK(continue_text(net.model, prompt, {}).empty());
  CHECK_FALSE(message_of([&] { continue_text(net.model, {}, {.tokens = 1}); }).empty());
}

TEST_CASE("prompts: open lines stay open; unknown words") {
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
  const Vocabulary closed = vocabulary_of({"the", "<eos>"});
  CHECK(contains(message_of([&] { encode("the dog", "word", closed); }), "dog"));
  const Vocabulary bytes = vocabulary_of({"\n", "a", "b"});
  CHECK(encode("ab", "char", bytes) == Tokens{1, 2});
  CHECK(contains(message_of([&] { encode("abc", "char", bytes); }), "--prompt"));
  CHECK(start_token(TextLevel::word, words) == 1);
  CHECK(start_token(TextLevel::character, bytes) == 0);
  CHECK(start_token(TextLevel::character, vocabulary_of({"x", "y"})) == 0);
}
