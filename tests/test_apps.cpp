// Flags, configuration, run folder and progress, which all programs share; without a network.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/cli/process.h"
#include "apps/cli/resnet_options.h"
#include "apps/log/run_folder.h"
#include "core/error.h"
#include "core/names.h"
#include "tests/app_helpers.h"

using namespace heddle;

namespace {

TrainResnetOptions parse(const Strings& arguments, const Strings& environment = {}) {
  TrainResnetOptions options;
  FlagTable flags = resnet_flags(options);
  flags.parse(arguments, environment);
  resolve(options, flags, data_kind(options.data));
  return options;
}

std::string complaint(const Strings& arguments, const Strings& environment = {}) {
  return message_of([&] { parse(arguments, environment); });
}

}  // namespace

TEST_CASE("flags: HEDDLE_DATA is the folder of data sets, not a value of --data") {
  const TempFolder temp;
  std::filesystem::create_directory(temp.path + "/cifar");
  const char* before = std::getenv("HEDDLE_DATA");
  const std::string kept = before == nullptr ? "" : before;
  setenv("HEDDLE_DATA", temp.path.c_str(), 1);
  CHECK(find_data("cifar", "shapes") == temp.path + "/cifar");
  CHECK(find_data("cifar", "cifar") == "cifar");
  CHECK(find_data("none", "shapes") == "none");
  CHECK(find_data("/cifar", "shapes") == "/cifar");
  unsetenv("HEDDLE_DATA");
  CHECK(find_data("cifar", "shapes") == "cifar");
  if (before != nullptr) setenv("HEDDLE_DATA", kept.c_str(), 1);
  CHECK(parse({}, {"HEDDLE_DATA=" + temp.path}).data == parse({}, {}).data);
}

TEST_CASE("flags: a flag overrides environment, file and default, in this order") {
  const TempFolder temp;
  const std::string config = temp.write("c.toml", "batch-size = 3\nlr = 0.3\nmomentum = 0.3\n");
  const Strings environment = {"HEDDLE_BATCH_SIZE=2", "HEDDLE_LR=0.2", "PATH=/bin"};
  const auto o = parse({"--batch-size", "1", "--config", config}, environment);
  CHECK(o.batch_size == 1);
  CHECK(o.lr == 0.2);
  CHECK(o.momentum == 0.3);
  CHECK(o.accumulate == 1);
  Strings with_config = environment;
  with_config.push_back("HEDDLE_CONFIG=" + config);
  CHECK(parse({}, with_config).batch_size == 2);
  CHECK(parse({}, with_config).momentum == 0.3);
  CHECK(parse({}).momentum == 0.9);
}

TEST_CASE("flags: spellings of values") {
  CHECK(parse({"--lr=0.5"}).lr == 0.5);
  CHECK(parse({"--lr", "5e-1", "--lr", "0.25"}).lr == 0.25);
  CHECK_FALSE(parse({"--no-nesterov"}).nesterov);
  CHECK_FALSE(parse({"--nesterov=false"}).nesterov);
  CHECK_FALSE(parse({}, {"HEDDLE_NESTEROV=0"}).nesterov);
  const std::vector<int64_t> milestones = {80, 120};
  CHECK(parse({"--lr-scheduler", "multistep", "--lr-milestones", "80", "120"}).lr_milestones ==
        milestones);
  CHECK(parse({"--lr-milestones=80,120", "--lr-scheduler=multistep"}).lr_milestones == milestones);
  CHECK(parse({"--train", "--predict", "a.png", "b.png", "--seed", "4"}).predict ==
        Strings{"a.png", "b.png"});
  CHECK(parse({"--seed", "9223372036854775807"}).seed == INT64_MAX);
}

TEST_CASE("flags: an unknown name is refused, and the nearest one suggested") {
  CHECK(mentions(complaint({"--batchsize", "4"}), {"--batchsize", "--batch-size"}));
  CHECK(mentions(complaint({"--batch"}), {"--batch-size"}));
  CHECK(mentions(complaint({"--learnin-rate", "1"}), {"--learnin-rate"}));
  CHECK(mentions(complaint({"--epcohs", "4"}), {"--epcohs", "--epochs"}));
  CHECK(mentions(complaint({"--no-json-please"}), {"--no-json-please"}));
  CHECK(mentions(complaint({"--no-lr"}), {"--no-lr"}));
  CHECK(mentions(complaint({"resnet20"}), {"'resnet20'"}));
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("epcohs", "epochs") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);

  TrainResnetOptions options;
  FlagTable flags = resnet_flags(options);
  flags.parse({}, {"HEDDLE_BACH_SIZE=4", "HEDDLE_BUILD_FOLDER=x", "HOME=/"});
  REQUIRE(flags.warnings().size() == 1);
  CHECK(contains(flags.warnings()[0], "HEDDLE_BATCH_SIZE"));
}

TEST_CASE("flags: impossible values are refused, and the flag is named") {
  const Strings cases[] = {{"--batch-size", "0"},
                           {"--batch-size", "-1"},
                           {"--batch-size", "1.5"},
                           {"--batch-size", ""},
                           {"--batch-size", "1e3"},
                           {"--batch-size", "99999999999999999999"},
                           {"--batch-size", " 8"},
                           {"--lr", "nan"},
                           {"--lr", "-1"},
                           {"--lr", "inf"},
                           {"--lr", "0.1x"},
                           {"--lr", "1e400"},
                           {"--lr", "0x10"},
                           {"--lr="},
                           {"--lr=", "5"},
                           {"--batch-size", "12abc"},
                           {"--output-dir", "--json"},
                           {"--predict", "--json"},
                           {"--nesterov="},
                           {"--nesterov=2"},
                           {"--lr-milestones", "1", "x"},
                           {"--lr"},
                           {"--epochs", "-1"},
                           {"--epochs", "0"},
                           {"--steps", "0"},
                           {"--momentum", "1"},
                           {"--momentum", "-0.1"},
                           {"--weight-decay", "-1e-4"},
                           {"--label-smoothing", "1"},
                           {"--label-smoothing", "nan"},
                           {"--clip-grad-norm", "0"},
                           {"--accumulate", "0"},
                           {"--threads", "0"},
                           {"--workers", "-1"},
                           {"--image-size", "0"},
                           {"--image-size", "100000"},
                           {"--arch", "resnet21"},
                           {"--optimizer", "lamb"},
                           {"--precision", "fp16"},
                           {"--lr-gamma", "0"},
                           {"--nesterov=maybe"},
                           {"--print-freq", "0"},
                           {"--trace-steps", "3:1"},
                           {"--seed", "-1"},
                           {"--data", "/nonexistent"},
                           {"--lr-scheduler", "linear"},
                           {"--lr-milestones", "0"},
                           {"--name", "a/b"},
                           {"--lr", "--json"}};
  for (const Strings& arguments : cases) {
    const std::string said = complaint(arguments);
    const std::string flag = arguments[0].substr(0, arguments[0].find('='));
    CAPTURE(arguments[0] + " " + (arguments.size() > 1 ? arguments[1] : "") + " -> " + said);
    CHECK(contains(said, flag));
    CHECK_FALSE(contains(said, "\n"));
  }
  CHECK(mentions(complaint({}, {"HEDDLE_LR=nan"}), {"HEDDLE_LR:"}));
  CHECK(mentions(complaint({}, {"HEDDLE_JSON="}), {"HEDDLE_JSON:"}));
  CHECK(contains(complaint({}, {"HEDDLE_ARCH=vgg"}), "HEDDLE_ARCH: expected one of resnet20"));
}

TEST_CASE("flags: one without effect is refused, or causes a warning if harmless") {
  CHECK(mentions(complaint({"--dense-layers", "fc"}), {"--dense-layers", "--compress"}));
  CHECK(complaint({"--dense-layers", "fc", "--compress", "topk"}).empty());
  CHECK(mentions(complaint({"--lr-gamma", "0.5"}), {"step", "multistep", "plateau", "onecycle"}));
  CHECK(complaint({"--lr-gamma", "0.5", "--lr-scheduler", "step"}).empty());
  CHECK(mentions(complaint({"--clip-mode", "local"}), {"--clip-mode", "--clip-grad-norm"}));
  CHECK(mentions(complaint({"--tune", "--deterministic"}), {"--tune", "--deterministic"}));
  CHECK(mentions(complaint({"--evaluate", "--steps", "3"}), {"--evaluate"}));
  CHECK(contains(complaint({"--init", "a", "--predict", "b", "--epochs", "3"}), "--train"));
  // A file or the environment may contain flags for other runs.
  const TempFolder temp;
  const std::string config = temp.write("c.toml", "shadow = 3\nmomentum = 0.3\n");
  CHECK(complaint({"--config", config, "--optimizer", "adam"}, {"HEDDLE_LR_GAMMA=0.5"}).empty());

  const auto warnings = [](const Strings& arguments) {
    TrainResnetOptions options;
    FlagTable flags = resnet_flags(options);
    flags.parse(arguments, {});
    resolve(options, flags, DataKind::shapes);
    return flags.warnings();
  };
  CHECK(warnings({"--tf32", "--device", "cpu"}) == Strings{"--tf32 needs a GPU: it has no effect"});
  CHECK(warnings({"--tune", "--device", "cpu"}).size() == 1);
  CHECK(warnings({"--min-compress", "9"}).size() == 1);
  CHECK(warnings({"--no-tune", "--no-tf32", "--device", "cpu"}).empty());
}

TEST_CASE("flags: --predict needs weights, and trains only with --train") {
  CHECK(mentions(complaint({"--predict", "a.png"}), {"--predict", "--init"}));
  CHECK(!parse({"--predict", "a.png", "--init", "run"}).training);
  CHECK(parse({"--predict", "a.png", "--init", "run", "--train"}).training);
  CHECK(parse({"--predict", "a.png", "--resume", "run"}).training);
  CHECK(parse({}).training);
  CHECK(!parse({"--evaluate"}).training);
  CHECK(contains(complaint({"--predict", "a.png", "--train", "--dry-run"}), "predicts nothing"));
  CHECK(mentions(complaint({"--evaluate", "--train"}), {"--train", "--evaluate"}));
}

TEST_CASE("flags: -h is --help") {
  TrainResnetOptions options;
  FlagTable flags = resnet_flags(options);
  flags.parse({"-h"}, {});
  CHECK(options.help);
  CHECK(contains(flags.help(), "--help  "));
}

TEST_CASE("flags: incompatible ones are refused") {
  CHECK(contains(complaint({"--optimizer", "adam", "--momentum", "0.9"}), "--momentum"));
  CHECK(contains(complaint({"--momentum", "0"}), "--nesterov"));
  CHECK(complaint({"--momentum", "0", "--no-nesterov"}).empty());
  CHECK(contains(complaint({"--lr-milestones", "4"}), "multistep"));
  CHECK(contains(complaint({"--lr-step-size", "4"}), "--lr-scheduler step"));
  CHECK(contains(complaint({"--trace-steps", "1:2"}), "--trace"));
  CHECK(mentions(complaint({"--headroom-net", "1gbit,1ms"}), {"--headroom-net", "--headroom"}));
  const Strings measured = {"--learners", "2", "--headroom", "1", "--headroom-net"};
  CHECK(
      contains(complaint({measured[0], measured[1], measured[2], measured[3], measured[4], "fast"}),
               "--headroom-net fast"));
}

TEST_CASE("flags: a global batch is divided among learners and accumulated batches") {
  const TempFolder temp;
  const Strings divided = {"--global-batch-size", "96", "--learners", "4", "--accumulate", "3"};
  CHECK(parse(divided).batch_size == 8);
  CHECK(parse({"--global-batch-size", "96"}).batch_size == 96);
  CHECK(mentions(complaint({"--global-batch-size", "96", "--learners", "5"}), {" 5", "96"}));
  CHECK(mentions(complaint({"--global-batch-size", "96", "--batch-size", "8"}), {"--batch-size"}));
  CHECK(contains(complaint({"--global-batch-size", "0"}), "--global-batch-size"));
  CHECK(mentions(complaint({"--global-batch-size", "2000000"}), {"1048576"}));
  // The stronger source counts, and a dumped configuration keeps the global batch.
  CHECK(parse({"--batch-size", "7"}, {"HEDDLE_GLOBAL_BATCH_SIZE=64"}).batch_size == 7);
  CHECK(parse({"--batch-size", "7"}, {"HEDDLE_GLOBAL_BATCH_SIZE=64"}).global_batch_size == 0);
  const std::string config = temp.write("c.toml", "batch-size = 24\nglobal-batch-size = 96\n");
  CHECK(parse({"--config", config, "--learners", "2"}).batch_size == 48);
  CHECK(parse({"--config", config, "--batch-size", "7"}).batch_size == 7);
  CHECK(parse({"--config", config, "--global-batch-size", "32"}).batch_size == 32);
}

TEST_CASE("configuration: errors name file and line") {
  const TempFolder temp;
  auto said = [&](const std::string& text) {
    return complaint({"--config", temp.write("c.toml", text)});
  };
  CHECK(mentions(said("lr = 0.1\nbatch_size = 4\n"), {"c.toml:2:", "batch_size"}));
  CHECK(mentions(said("batch_size = 4\n"), {"batch_size", "batch-size"}));
  CHECK(contains(said("lr = \"fast\"\n"), "c.toml:1: lr: expected a number"));
  CHECK(contains(said("lr = 1\nlr = 2\n"), "c.toml:2: "));
  CHECK(contains(said("[train]\n"), "c.toml:1: "));
  CHECK(contains(said("lr 0.1\n"), "c.toml:1: "));
  CHECK(contains(said("name = \"open\n"), "c.toml:1: "));
  CHECK(contains(said("lr = [0.1, 0.2]\n"), "expected one value, found 2"));
  CHECK(contains(said("lr = 0.1 0.2\n"), "c.toml:1: "));
  CHECK(mentions(said("output-dir = \"x\"\n"), {"output-dir"}));
  CHECK(contains(said(std::string(2 << 20, ' ')), "1 MiB"));
  std::string deep = "a";
  for (int i = 0; i < 400'000; ++i) deep += ".a";
  CHECK(contains(said(deep + " = 1"), "dots"));
  CHECK(contains(said("a" + deep.substr(1, 1800) + " = 1"), "c.toml:1: a is not a known key"));
  CHECK(contains(said("lr = " + std::string(100'000, '[')), "c.toml:1: "));
  CHECK(contains(said("name = \"a\\u0000b\""), "name"));
  CHECK(contains(complaint({"--config", temp.path + "/none"}), "No such file"));
  CHECK(contains(complaint({"--config", temp.path}), "expected a file"));
  CHECK(said("# only a comment\r\n\n  lr = 0.5 # why\r\n").empty());
}

TEST_CASE("configuration: strings and arrays") {
  const TempFolder temp;
  auto read_config = [&](const std::string& text, const Strings& environment = {}) {
    return parse({"--config", temp.write("c.toml", text)}, environment);
  };
  auto said = [&](const std::string& text) { return message_of([&] { read_config(text); }); };
  using Milestones = std::vector<int64_t>;
  const std::string multistep = "lr-scheduler = \"multistep\"\nlr-milestones = ";
  CHECK(read_config(multistep + "[8, 16]  # epochs\n").lr_milestones == Milestones{8, 16});
  CHECK(read_config(multistep + "[ 8,16, ]").lr_milestones == Milestones{8, 16});
  CHECK(read_config(multistep + "[8, 16]", {"HEDDLE_LR_MILESTONES=4,5"}).lr_milestones ==
        Milestones{4, 5});
  for (const char* bad : {"[8, 16", "8, 16", "8 16", "[8,, 16]", "[]", "[8, \"-x\"]", "[8, [16]"}) {
    CHECK_MESSAGE(contains(said(multistep + bad), "c.toml:2: "), bad);
  }
  CHECK(read_config("name = \"a # b, \\\" \\\\ \\u00e9\" # c").name == "a # b, \" \\ \u00e9");
  CHECK(read_config("name = 'a # \\n \"'").name == "a # \\n \"");
  CHECK(read_config("name = \"[x]\"").name == "[x]");
  for (const char* bad :
       {"\"a\" \"b\"", "\"a\"b", "\"\\q\"", "a b", "", "\"a\\\"", "\1", "[\"a\", \"b\"]"}) {
    CHECK_MESSAGE(contains(said(concat("name = ", bad)), "c.toml:1: "), bad);
  }
  CHECK(contains(said("nesterov = \"maybe\""), "c.toml:1: nesterov: expected true or false"));
  CHECK(contains(said("a.lr = 1"), "a is not a known key"));
}

TEST_CASE("configuration: a dump read back dumps the same") {
  const TempFolder temp;
  auto dump = [](const Strings& arguments) {
    TrainResnetOptions o;
    FlagTable flags = resnet_flags(o);
    flags.parse(arguments, {});
    resolve(o, flags, data_kind(o.data));
    return flags.dump("default");
  };
  const Strings cases[] = {
      {},
      {"--lr", "0.1", "--name", "quote \" and \\ # sign", "--no-nesterov", "--steps", "7"},
      {"--lr-scheduler", "multistep", "--lr-milestones", "1", "2", "--lr", "0.30000000000000004"},
      {"--optimizer", "adamw", "--label-smoothing", "0.1", "--data", temp.path}};
  for (const Strings& arguments : cases) {
    const std::string first = dump(arguments);
    const std::string second = dump({"--config", temp.write("c.toml", first)});
    CHECK(without_remarks(first) == without_remarks(second));
    CHECK_FALSE(contains(second, "# default"));
  }
  CHECK(contains(dump({}), "lr = 0.1  # default"));
  CHECK(contains(dump({"--lr", "0.1"}), "lr = 0.1\n"));
  CHECK(contains(dump({"--global-batch-size", "96", "--learners", "4"}), "\nbatch-size = 24\n"));
}

TEST_CASE("defaults follow the data set and the optimizer") {
  const TempFolder cifar, folder;
  cifar.write("data_batch_1.bin", "");
  const auto c = parse({"--data", cifar.path});
  CHECK(c.arch == "resnet20");
  CHECK(c.batch_size == 64);
  CHECK(c.epochs == 24);
  CHECK(c.lr == 0.1);
  CHECK(c.weight_decay == 5e-4);
  CHECK(c.augment == "standard");
  const auto f = parse({"--data", folder.path});
  CHECK(f.arch == "resnet18");
  CHECK(f.image_size == 224);
  CHECK(parse({"--optimizer", "adamw"}).lr == 0.001);
  CHECK(parse({"--optimizer", "adamw"}).weight_decay == 0.01);
  CHECK(parse({"--optimizer", "adam"}).weight_decay == 0);
  CHECK(parse({"--steps", "7"}).epochs == 0);
}

TEST_CASE("help names every flag and its default") {
  TrainResnetOptions o;
  const std::string help = resnet_flags(o).help();
  for (const char* part : {"--batch-size N", "--momentum X", "(default: 0.9)", "--predict IMAGE...",
                           "Recipes", "onecycle)", "none)"}) {
    CHECK_MESSAGE(contains(help, part), part);
  }
  std::istringstream in(help);
  for (std::string line; std::getline(in, line);) CHECK_MESSAGE(line.size() <= 100, line);
}

TEST_CASE("json: numbers read back exactly, text is escaped, NaN is null") {
  const std::string text = json_line({{"i", int64_t{1} << 60},
                                      {"x", 0.1},
                                      {"f", 0.1f},
                                      {"b", true},
                                      {"nan", std::nan("")},
                                      {"inf", -INFINITY},
                                      {"text", "a\"b\\c\n"},
                                      {"bytes", "\xff"},
                                      {"list", Strings{"x", "y"}}});
  CHECK(text == R"({"i":1152921504606846976,"x":0.1,"f":0.10000000149011612,"b":true,"nan":null,)"
                R"("inf":null,"text":"a\"b\\c\n","bytes":"�","list":["x","y"]})"
                "\n");
}

TEST_CASE("run folder: new or empty folders only, metrics line by line") {
  const TempFolder temp;
  const std::string path = temp.path + "/a/b";
  {
    RunFolder folder = RunFolder::create(path, "x");
    folder.metric({{"step", 1}, {"loss", 0.5}});
    folder.write("config.toml", "lr = 1\n");
    folder.write("run.json", describe_run({.arguments = {"train_resnet"}, .seed = 3}));
  }
  CHECK(contains(read(path + "/metrics.jsonl"), "{\"schema\":1"));
  CHECK(contains(read(path + "/metrics.jsonl"), "\n{\"step\":1,\"loss\":0.5}\n"));
  CHECK(read(path + "/config.toml") == "lr = 1\n");
  for (const char* key : {"git_revision", "compiler", "flags", "cpu", "cores", "memory_bytes",
                          "argv", "seed", "start_time"}) {
    CHECK_MESSAGE(contains(read(path + "/run.json"), concat("\"", key, "\":")), key);
  }
  CHECK(mentions(message_of([&] { RunFolder::create(path, "x"); }), {"empty"}));
  temp.write("file", "");
  CHECK(contains(message_of([&] { RunFolder::create(temp.path + "/file", "x"); }), "found a file"));
  CHECK_THROWS_AS(RunFolder::create("/proc/none", "x"), Error);
  CHECK_THROWS_AS(RunFolder::create(temp.path + "/file/below", "x"), Error);
}

TEST_CASE("run folder: one run at a time") {
  const TempFolder temp;
  const std::string path = temp.path + "/run";
  const auto reopen = [&](int64_t bytes) { RunFolder::reopen(path, bytes, {}, false, {}).begin(); };
  int64_t bytes = 0;
  {
    RunFolder folder = RunFolder::create(path, "x");
    folder.metric({{"step", 1}});
    bytes = folder.flush();
    folder.metric({{"step", 2}});
    folder.flush();
    std::string refusal;
    try {
      reopen(0);
    } catch (const InputError&) {
      refusal = "bad input, which ./run supervise does not try again";
    } catch (const Error& error) {
      refusal = error.what();
    }
    CHECK_MESSAGE(contains(refusal, "another run is writing there"), refusal);
    CHECK(contains(read(path + "/metrics.jsonl"), "{\"step\":2}\n"));  // and nothing was cut
  }
  reopen(bytes);
  CHECK(contains(read(path + "/metrics.jsonl"), "{\"step\":1}\n"));
  CHECK_FALSE(contains(read(path + "/metrics.jsonl"), "{\"step\":2}"));
  reopen(0);
  CHECK_FALSE(contains(read(path + "/metrics.jsonl"), "step"));
}

TEST_CASE("process figures are plausible") {
  CHECK(seconds_since_process_start() > 0);
  CHECK(seconds_since_process_start() < 3600);
  CHECK(peak_rss_bytes() > 1 << 20);
}
