// The folder that holds the results of a run: config.toml (replayable with --config), run.json
// (what ran, where, how it was built), metrics.jsonl (first line: schema version) and the final
// model.safetensors. Whole files appear under their names complete or not at all; metrics grow line
// by line. A folder belongs to one run at a time, which holds a lock on its metrics. The first line
// of metrics.jsonl, or run.json, marks it as a run's. From the first step on a file that cannot be
// written is worth a warning, and no reason for the run to end.
//
//   RunFolder folder = RunFolder::create(options.output_dir, "resnet20");
//   folder.write("config.toml", text);
//   folder.metric({{"step", 1}, {"loss", 2.3}});
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/log/append_file.h"

namespace heddle {

constexpr int kMetricsSchema = 1;  // of metrics.jsonl, in its first line

class RunFolder {
 public:
  // Makes `folder`, or runs/<name>-<time> when it is empty. Throws InputError when the folder holds
  // something already, Error when it cannot be made or written or another run is in it.
  static RunFolder create(const std::string& folder, const std::string& name);

  // Reopens a run's folder to continue in it: of metrics.jsonl the first `bytes` are kept; 0: as if
  // new. `locked` is called when no other run can be in it and nothing has been changed yet.
  // Removes what a killed process has left half written. Throws InputError where something is in
  // the folder and no run of this program (`known`: a checkpoint has shown that there is one), or
  // where a symbolic link has the name of what a run writes; Error otherwise, also when another
  // run is still in it after `patience`, which is for one that is just ending.
  static RunFolder reopen(const std::string& folder, int64_t bytes,
                          const std::function<void()>& locked = {}, bool known = false,
                          std::chrono::milliseconds patience = std::chrono::seconds(5));

  // Whether a run in that folder has come to its end, and left its weights.
  static bool holds_finished_run(const std::string& folder);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const;
  // The same for a file that a run can do without: warns where it cannot be written. Any thread.
  void write_optional(const std::string& name, const std::string& content) const;

  // Appends a line to metrics.jsonl.
  void metric(const nlohmann::ordered_json& line);
  // Calls the listener with each later line, too.
  void listen(std::function<void(const nlohmann::ordered_json&)> listener) {
    listener_ = std::move(listener);
  }
  // Hands the lines to the system; called at the end of an epoch and of the run, and before a
  // checkpoint. Returns the bytes of metrics.jsonl, with lines that the disk has yet to take.
  int64_t flush();

  // Why not all of a file is written; empty: all is. Warns once of files of a kind. Any thread.
  void note_trouble(const std::string& name, const std::string& why) const;
  // Where warnings go; stderr without it.
  void warn_by(std::function<void(const std::string&)> warn) { troubles_->warn = std::move(warn); }
  // One line on what is not complete for want of space or the like; empty when all is.
  std::string incomplete() const;

 private:
  struct Troubles {
    std::mutex mutex;
    std::map<std::string, std::string> why;  // by file
    std::set<std::string> warned;            // kinds of files
    std::function<void(const std::string&)> warn;
  };
  RunFolder(std::string path, std::chrono::milliseconds patience);  // locks metrics.jsonl
  // Truncates metrics.jsonl to its first `bytes`; an empty one begins with its schema.
  void keep(int64_t bytes);

  std::string path_;
  std::unique_ptr<AppendFile> metrics_;
  std::unique_ptr<Troubles> troubles_ = std::make_unique<Troubles>();
  std::function<void(const nlohmann::ordered_json&)> listener_;
  double flushed_at_ = 0;
};

struct RunFacts {
  std::vector<std::string> arguments = {};
  int64_t seed = 0;
  int threads = 0;
  std::string device = "cpu", precision = "fp32";
};

// The content of run.json: git revision and build, machine, arguments, seed, time of the start.
std::string describe_run(const RunFacts& facts);

}  // namespace heddle
