// Run folders: whose they are, what is removed from them, and disks that are full for a while.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/log/append_file.h"
#include "apps/log/run_folder.h"
#include "apps/log/tensorboard.h"
#include "core/error.h"
#include "core/files.h"
#include "tests/app_helpers.h"

using namespace heddle;
namespace fs = std::filesystem;

namespace {

// While it lives, files cannot grow beyond this many bytes, as on a full disk.
struct FullDisk {
  rlimit before{};
  void (*handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit{bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before);
    (void)std::signal(SIGXFSZ, handler);
  }
};

void make_run(const std::string& path) {
  RunFolder folder = RunFolder::create(path, "x");
  folder.write("run.json", describe_run({}));
}

// Resumes in a folder; returns "", or why that is refused.
std::string refusal(const std::string& path, bool known = false) {
  return message_of([&] { RunFolder::reopen(path, 0, {}, known, {}).begin(); });
}

}  // namespace

TEST_CASE("a file that is written does not replace a device or pipe, nor one that a link names") {
  const TempFolder temp;
  const std::string pipe = temp.path + "/pipe", link = temp.path + "/link";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink(pipe, link);
  for (const std::string& path : {pipe, link})
    CHECK_THROWS_AS(write_file_atomically(path, ""), Error);
  CHECK(fs::is_fifo(link));
}

TEST_CASE("run folder: only a run's own folder is resumed") {
  const TempFolder temp;
  const std::string path = temp.path + "/run", metrics = path + "/metrics.jsonl";
  CHECK(refusal(path).empty());  // new
  CHECK(refusal(path).empty());
  fs::remove_all(path);
  fs::create_directory(path);  // empty
  CHECK(refusal(path).empty());
  make_run(temp.path + "/whole");
  const std::string first_line = read_text_file(temp.path + "/whole/metrics.jsonl");
  // Killed while writing the first line, and right after it.
  for (const size_t bytes : {size_t{0}, size_t{3}, first_line.size()}) {
    write_file_atomically(metrics, first_line.substr(0, bytes));
    CHECK_MESSAGE(refusal(path).empty(), bytes);
    CHECK(read_text_file(metrics) == first_line);
  }
  write_file_atomically(path + "/config.toml", "lr = 1\n");
  CHECK(refusal(path).empty());
  // Older versions could be killed with metrics that were cut to nothing.
  write_file_atomically(metrics, "");
  CHECK(mentions(refusal(path), {"empty"}));
  write_file_atomically(path + "/run.json", describe_run({}));
  CHECK(refusal(path).empty());

  const std::string others = temp.path + "/others";
  fs::create_directories(others + "/checkpoints");
  for (const char* name : {"config.toml", "model.safetensors", ".mail.tmp-box", "run.json",
                           "metrics.jsonl", "checkpoints/important.part"})
    write_file_atomically(others + "/" + name, "{\"program\":\"other\"}\n");
  CHECK(mentions(refusal(others), {"6"}));
  for (const char* name : {"config.toml", ".mail.tmp-box", "metrics.jsonl"})
    CHECK(read_text_file(others + "/" + name) == "{\"program\":\"other\"}\n");
  CHECK(refusal(others, true).empty());  // a checkpoint has shown whose it is
  CHECK(fs::exists(others + "/.mail.tmp-box"));
}

TEST_CASE("run folder: only files of runs are removed, links are not followed") {
  const TempFolder temp;
  const std::string path = temp.path + "/run";
  make_run(path);
  const std::vector<std::string> ours = {".config.toml.tmp-12-0", ".plan-50.json.tmp-7-12",
                                         ".seen-by-all.tmp-0123abcd",
                                         "..seen-by-all.tmp-0123abcd.tmp-9-1"};
  const std::vector<std::string> others = {".mail.tmp-box", ".config.toml.tmp-12", "x.tmp-1-2",
                                           ".config.toml.tmp-12-0.txt", ".plan-.json.tmp-7-12"};
  for (const auto* names : {&ours, &others})
    for (const std::string& name : *names) temp.write("run/" + name, "x");
  CHECK(refusal(path).empty());
  for (const std::string& name : ours) CHECK_MESSAGE(!fs::exists(path + "/" + name), name);
  for (const std::string& name : others) CHECK_MESSAGE(fs::exists(path + "/" + name), name);

  // A run folder may be a link; the files in it may not.
  fs::create_directory_symlink(path, temp.path + "/link");
  CHECK(refusal(temp.path + "/link").empty());
  temp.write("precious", "");
  fs::create_symlink(temp.path + "/precious", path + "/config.toml");
  { RunFolder::reopen(path, 0).write("config.toml", "lr = 1\n"); }
  CHECK(read_text_file(temp.path + "/precious").empty());
  fs::create_directory(temp.path + "/elsewhere");
  fs::create_directory_symlink(temp.path + "/elsewhere", path + "/checkpoints");
  CHECK(mentions(refusal(path), {"checkpoints", "link"}));
  fs::remove(path + "/checkpoints");
  fs::rename(path + "/metrics.jsonl", temp.path + "/metrics");
  fs::create_symlink(temp.path + "/metrics", path + "/metrics.jsonl");
  CHECK(mentions(refusal(path), {"metrics.jsonl", "link"}));
}

TEST_CASE("run folder: a disk that is full for a while loses nothing") {
  const TempFolder temp;
  const std::string path = temp.path + "/run", metrics = path + "/metrics.jsonl";
  std::vector<std::string> warnings;
  RunFolder folder = RunFolder::create(path, "x");
  folder.warn_by([&](const std::string& line) { warnings.push_back(line); });
  EventFile events(path);
  folder.metric({{"step", 1}});
  const int64_t bytes = folder.flush();
  {
    const FullDisk full(static_cast<rlim_t>(bytes) + 5);  // in the middle of a line
    for (int step = 2; step < 100; ++step) folder.metric({{"step", step}});
    CHECK(folder.flush() > bytes + 98 * 10);
    folder.write_optional("plan-50.json", std::string(1000, 'x'));
    folder.write_optional("plan-60.json", std::string(1000, 'x'));
    for (int step = 0; step < 100; ++step)
      events.metric({{"step", step}, {"split", "train"}, {"loss", 1.5}});
    events.metric({{"summary", "done"}});
    CHECK(contains(events.trouble(), "File too large"));
    CHECK(fs::file_size(metrics) == static_cast<uintmax_t>(bytes) + 5);
  }
  REQUIRE(warnings.size() == 2);  // once about metrics, once about plans
  CHECK(mentions(warnings[0], {"metrics.jsonl", "File too large"}));
  CHECK(contains(warnings[1], "plan-50.json"));
  CHECK(mentions(folder.incomplete(), {"metrics.jsonl"}));
  // There is room again: what was cut off is completed, and nothing is missing.
  folder.metric({{"step", 100}});
  folder.flush();
  events.metric({{"summary", "done"}});
  CHECK(events.trouble().empty());
  CHECK_FALSE(contains(folder.incomplete(), "metrics"));
  CHECK(contains(folder.incomplete(), "plan-50.json"));
  std::istringstream lines(read_text_file(metrics));
  std::string line;
  int step = 0;
  for (; std::getline(lines, line); ++step)
    if (step > 0) CHECK(nlohmann::json::parse(line).at("step") == step);
  CHECK(step == 101);

  // A disk that stays full: what is kept is bounded, and what is dropped is counted.
  AppendFile file(temp.path + "/file", AppendFile::Start::fresh);
  const std::string megabyte(1 << 20, 'x');
  {
    const FullDisk full(0);
    for (int i = 0; i < 18; ++i) file.write(megabyte), (void)file.flush();
    CHECK(mentions(file.trouble(), {"File too large", "2"}));
  }
  CHECK(file.flush() == 16 << 20);
  CHECK(mentions(file.trouble(), {"2"}));
}
