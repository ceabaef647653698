// train_lm: presets, precedence of flags, and the card of its weights.
#include <doctest/doctest.h>

#include <cmath>

#include "apps/cli/lm_options.h"
#include "apps/models/lm_card.h"
#include "apps/session/lm_setup.h"
#include "core/context.h"
#include "core/safetensors.h"
#include "layers/weights.h"
#include "tests/app_helpers.h"
#include "tests/small_lm.h"

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

TEST_CASE("lm presets: the learning rate falls as in TensorFlow's tutorial") {
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
  // In a longer run the rate continues to fall.
  const auto longer = parse({"--preset", "zaremba-small", "--epochs", "20"});
  CHECK(rate_in_epoch(longer, 20) == doctest::Approx(20 * std::pow(0.5, 16)));
}

TEST_CASE("lm plateau: a quarter of the rate after every epoch that is not the best") {
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

TEST_CASE("lm flags: a given flag overrides the preset, in any order") {
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
  // Another schedule or optimizer does not inherit the settings made for the recipe's own.
  const auto cosine = parse(with({"--lr-scheduler", "cosine"}));
  CHECK(cosine.lr_milestones.empty());
  CHECK(cosine.lr_gamma == 0.1);
  CHECK(parse(with({"--lr-scheduler", "plateau"})).lr_gamma == 0.25);
  CHECK(parse(with({"--optimizer", "adam"})).lr == 0.002);
  CHECK(parse({"--optimizer", "sgd"}).lr == 20);
  CHECK(parse(with({"--steps", "9"})).epochs == 0);
}

TEST_CASE("lm defaults depend on level and data") {
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
  CHECK(mentions(complaint({"--hidden", "3"}), {"--hidden"}));
}

TEST_CASE("lm: --generate needs weights, and trains only with --train") {
  CHECK(mentions(complaint({"--generate", "5"}), {"--generate", "--init"}));
  CHECK(!parse({"--generate", "5", "--init", "run"}).training);
  CHECK(parse({"--generate", "5", "--train"}).training);
  CHECK(parse({"--generate", "0"}).training);
  CHECK(parse({}).training);  // and writes a sample
}

TEST_CASE("lm: two steps of a huge epoch have a valid schedule of any kind") {
  for (const char* name : {"constant", "step", "multistep", "cosine", "onecycle", "plateau"}) {
    CAPTURE(name);
    CommonOptions o;
    o.lr = 1;
    o.lr_scheduler = name;
    CHECK(Schedule(schedule_options(o, {.steps_per_epoch = 5'000'000, .total_steps = 2})).lr(0) >
          0);
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

TEST_CASE("lm card: level, vocabulary and sizes are restored") {
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

TEST_CASE("lm card: missing and invalid cards") {
  const Context context({.threads = 1});
  const TempFolder temp;
  const std::string path = temp.path + "/m.safetensors";
  const SmallModel net(6);
  const auto complaint_about = [&](const std::map<std::string, std::string>& metadata) {
    save_safetensors(path, net.model.named_tensors(), metadata);
    return message_of([&] { read_lm_card(WeightsFile(path)); });
  };
  CHECK(complaint_about({}).empty());
  const LmCard card =
      read_lm_card(WeightsFile(path));  // as PyTorch's: the tensors determine the sizes
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
  CHECK(mentions(said("[1,2,3]"), {"6"}));
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
  CHECK(mentions(said({"the", "cat"}, {"the", "dog"}), {"token 1", "'dog'", "'cat'"}));
  CHECK(mentions(said({"the", "cat"}, {"the"}), {"token 1", "'cat'"}));
  CHECK(mentions(said({"a"}, {"a", "\n"}), {"token 1", "10"}));
}

TEST_CASE("lm weights: tied ones must be equal in the file; the error has a hint") {
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
