// Checkpoints on disk: everything written is restored, no incomplete checkpoint is ever used, old
// ones are removed.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "apps/checkpoint/checkpoint.h"
#include "core/context.h"
#include "core/error.h"
#include "core/files.h"
#include "core/safetensors.h"

using namespace heddle;
namespace fs = std::filesystem;

namespace {

struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/heddle-checkpoint-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::string at(int64_t step) const { return concat(path, "/checkpoints/step-", step); }
};

std::string state_text(int64_t step, double valid_loss) {
  return nlohmann::json{{"version", kCheckpointVersion}, {"step", step}, {"valid_loss", valid_loss}}
      .dump();
}

// Returns the part of one rank in a checkpoint whose tensors hold its step.
CheckpointFiles files_of(int rank, int64_t step, double valid_loss = 1) {
  const Tensor x = Tensor::from(std::vector<float>(100, static_cast<float>(step + rank)), {100});
  CheckpointFiles files{.tensors = {{concat("rank-", rank, ".safetensors"), {{"x", x}}}}};
  if (rank == 0) {
    files.tensors["model.safetensors"] = {{"w", x}};
    files.texts["state.json"] = state_text(step, valid_loss);
  }
  return files;
}

void save(CheckpointWriter& writer, int64_t step, double valid_loss = 1) {
  writer.begin(step, files_of(0, step, valid_loss));
  REQUIRE(writer.wait() == Writing::written);
  writer.commit();
  REQUIRE(writer.finish());
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::string why_not(const std::string& path) {
  try {
    (void)open_checkpoint(path);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

// An unreadable checkpoint is not a broken one: a search must not continue to an older one.
TEST_CASE("checkpoint: an unreadable one is an error and is not skipped") {
  Context context;
  const Folder run;
  {
    CheckpointWriter writer(run.path, 0);
    save(writer, 1);
    save(writer, 2);
  }
  const auto cannot = [](const auto& look) {
    try {
      look();
    } catch (const InputError& error) {
      return concat("input: ", error.what());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was said");
  };
  const auto says = [](const std::string& what, const char* part) {
    CHECK_MESSAGE((!what.starts_with("input: ") && what.find(part) != std::string::npos), what);
  };
  // All descriptors are in use: none is left for files or folders.
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const std::string file = cannot([&] { (void)open_checkpoint(run.at(2)); }),
                    folder = cannot([&] { (void)find_checkpoint(run.path); }),
                    writer = cannot([&] { (void)CheckpointWriter(run.path, 0); });
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  says(file, "Too many open files");
  says(folder, "Too many open files");
  says(writer, "Too many open files");
  // A file that cannot be read: reading its first page fails.
  std::array<std::byte, 8> bytes;
  says(cannot([&] { InputFile("/proc/self/mem").read(0, bytes); }), "cannot read: Input/output");
  const std::string model = run.at(2) + "/model.safetensors", kept = model + ".kept";
  fs::rename(model, kept);
  // A folder in place of a file is invalid content, and skipped.
  fs::create_directory(model);
  CHECK(find_checkpoint(run.path).newest->step == 1);
  fs::remove(model);
  fs::rename(kept, model);
  CHECK(find_checkpoint(run.path).newest->step == 2);
}

TEST_CASE("checkpoint: two ranks write, the first seals, everything is restored") {
  Context context;
  const Folder run;
  std::vector<std::string> events;
  CheckpointWriter first(run.path, 0, {.on_event = [&](const auto& e) { events.push_back(e); }});
  CheckpointWriter second(run.path, 1);
  CHECK(first.progress() == Writing::nothing);
  first.begin(40, files_of(0, 40));
  second.begin(40, files_of(1, 40));
  CHECK(first.wait() == Writing::written);
  CHECK(second.wait() == Writing::written);
  CHECK(first.progress() == Writing::written);
  CHECK(!find_checkpoint(run.path).newest);  // not yet under its name
  second.commit();
  first.commit();
  CHECK(first.step() == -1);
  REQUIRE(first.finish());
  CHECK(events == std::vector<std::string>{"model.safetensors", "rank-0.safetensors", "state.json",
                                           "manifest.json", "renamed"});
  CHECK(names_in(run.path + "/checkpoints") == std::vector<std::string>{"step-40"});

  const FoundCheckpoint found = find_checkpoint(run.path);
  REQUIRE(found.newest);
  CHECK(found.skipped.empty());
  CHECK(found.newest->step == 40);
  CHECK(found.newest->path == run.at(40));
  for (int rank : {0, 1}) {
    const auto file =
        SafetensorsFile::open(found.newest->file(concat("rank-", rank, ".safetensors")));
    CHECK(file.load("x").to_vector() == std::vector<float>(100, static_cast<float>(40 + rank)));
  }
}

TEST_CASE("checkpoint: an invalid one is named and skipped for an older one") {
  Context context;
  const Folder run;
  CheckpointWriter writer(run.path, 0, {.keep = 9});
  for (const int64_t step : {10, 20}) save(writer, step);
  const std::string broken = run.at(20);
  const auto expect_skipped = [&](const std::string& word) {
    CAPTURE(word);
    CHECK(why_not(broken).find(word) != std::string::npos);
    const FoundCheckpoint found = find_checkpoint(run.path);
    REQUIRE(found.newest);
    CHECK(found.newest->step == 10);
    REQUIRE(found.skipped.size() == 1);
    CHECK(found.skipped[0].find(word) != std::string::npos);
  };
  CHECK(find_checkpoint(run.path).newest->step == 20);
  for (const std::string& name : names_in(broken)) {
    CAPTURE(name);
    const std::string path = broken + "/" + name, content = read_text_file(path);
    for (const size_t at : {size_t{0}, content.size() / 2, content.size() - 2}) {
      std::string flipped = content;
      flipped[at] = static_cast<char>(flipped[at] ^ 1);
      write_file_atomically(path, flipped);
      CHECK(why_not(broken).find(broken) == 0);
      CHECK(find_checkpoint(run.path).newest->step == 10);
    }
    write_file_atomically(path, content.substr(0, content.size() / 2));
    expect_skipped(broken);
    fs::remove(path);
    expect_skipped(name);
    write_file_atomically(path, content);
    CHECK(find_checkpoint(run.path).newest->step == 20);
  }
  const std::string manifest = read_text_file(broken + "/manifest.json");
  std::string text = manifest;
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 9");
  write_file_atomically(broken + "/manifest.json", text);
  expect_skipped("version 9");
  for (const char* nonsense :
       {"", "[]", "{\"version\":1}", "{\"version\":1,\"files\":{\"../x\":{}}}",
        "{\"version\":1,\"files\":{}}", "{\"version\":\"a\"}", "\xff{"}) {
    write_file_atomically(broken + "/manifest.json", nonsense);
    expect_skipped(broken);
  }
  CHECK(why_not(run.at(30)).find("no such folder") != std::string::npos);
}

TEST_CASE("checkpoint: the newest and the best are kept, incomplete ones are removed") {
  Context context;
  const Folder run;
  const std::string left = run.path + "/checkpoints/step-5.part";
  fs::create_directories(left);
  std::ofstream(left + "/.model.tmp-1") << "half";
  CheckpointWriter writer(run.path, 0, {.keep = 2});
  CHECK(!fs::exists(left));
  const std::vector<double> losses = {3, 1, 2, 1, 4, 5};
  for (size_t i = 0; i < losses.size(); ++i) save(writer, static_cast<int64_t>(i), losses[i]);
  CHECK(names_in(run.path + "/checkpoints") ==
        std::vector<std::string>{"step-1", "step-4", "step-5"});
  save(writer, 5, 7);  // again, by a run that resumed from an earlier step
  CHECK(find_checkpoint(run.path).newest->state.at("valid_loss") == 7);
}

TEST_CASE("checkpoint: files that a rank has written elsewhere are reported missing") {
  Context context;
  const Folder here, there;
  CheckpointWriter first(here.path, 0, {.ranks = 2}), second(there.path, 1, {.ranks = 2});
  first.begin(3, files_of(0, 3));
  second.begin(3, files_of(1, 3));
  CHECK(first.wait() == Writing::written);
  CHECK(second.wait() == Writing::written);
  second.commit();
  first.commit();
  CHECK(!first.finish());
  CHECK(first.error().find("rank-1.safetensors is missing") != std::string::npos);
  CHECK(!find_checkpoint(here.path).newest);
}

TEST_CASE("checkpoint: resuming from an older one renames later ones to .aside") {
  Context context;
  const Folder run;
  {
    CheckpointWriter writer(run.path, 0, {.keep = 9});
    for (const int64_t step : {2, 4, 6}) save(writer, step);
  }
  const CheckpointWriter other(run.path, 1, {.begin = 2});  // not the first rank's
  CHECK(find_checkpoint(run.path).newest->step == 6);
  CheckpointWriter writer(run.path, 0, {.keep = 9, .begin = 2});
  CHECK(names_in(run.path + "/checkpoints") ==
        std::vector<std::string>{"step-2", "step-4.aside", "step-6.aside"});
  CHECK(find_checkpoint(run.path).newest->step == 2);
  save(writer, 3);
  CHECK(find_checkpoint(run.path).newest->step == 3);
  CHECK(open_checkpoint(run.at(6) + ".aside").step == 6);
}

TEST_CASE("checkpoint: remains of a killed process are removed on resume") {
  Context context;
  const Folder run;
  {
    CheckpointWriter writer(run.path, 0, {.keep = 9});
    for (const int64_t step : {2, 4, 6, 8}) save(writer, step);
  }
  const auto left = [&] { return names_in(run.path + "/checkpoints"); };
  const std::vector<std::string> all = left();
  const CheckpointWriter other(run.path, 1, {.keep = 1, .begin = 8});  // not the first rank's
  CHECK(left() == all);
  const CheckpointWriter writer(run.path, 0, {.keep = 2, .begin = 8});
  CHECK(left() == all);  // until the run makes progress: it may still be refused
  other.remove_old();
  CHECK(left() == all);
  writer.remove_old();
  // Among equals the oldest counts as the best and is kept.
  CHECK(left() == std::vector<std::string>{"step-2", "step-6", "step-8"});
}

TEST_CASE("checkpoint: a failed save is reported, leaves no files, and the next succeeds") {
  Context context;
  const Folder run;
  CheckpointWriter writer(run.path, 0);
  std::ofstream(run.path + "/checkpoints") << "in the way";
  writer.begin(1, files_of(0, 1));
  CHECK(writer.wait() == Writing::failed);
  CHECK(writer.error().find("cannot create the folder") != std::string::npos);
  writer.abandon();
  CHECK(writer.progress() == Writing::nothing);
  fs::remove(run.path + "/checkpoints");
  CHECK(!find_checkpoint(run.path).newest);
  save(writer, 2);
  writer.begin(3, files_of(0, 3));  // another rank has failed
  writer.abandon();
  CHECK(names_in(run.path + "/checkpoints") == std::vector<std::string>{"step-2"});
  writer.begin(4, files_of(0, 4));
  CHECK_THROWS_AS(writer.begin(5, files_of(0, 5)), Error);
}

TEST_CASE("checkpoint: a manifest that cannot be written is a failed save") {
  Context context;
  const Folder run;
  const std::string part = run.at(3) + ".part";
  CheckpointWriter writer(run.path, 0);
  save(writer, 2);
  writer.begin(3, files_of(0, 3));
  REQUIRE(writer.wait() == Writing::written);
  fs::create_directories(part + "/manifest.json/in the way");
  writer.commit();
  CHECK_FALSE(writer.finish());
  CHECK(writer.error().find("manifest.json: cannot rename") != std::string::npos);
  CHECK(names_in(run.path + "/checkpoints") == std::vector<std::string>{"step-2"});
  save(writer, 4);
  CHECK(find_checkpoint(run.path).newest->step == 4);
}
