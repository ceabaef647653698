// The folder that holds the results of a run: config.toml (replayable with --config), run.json
// (program, build, machine), metrics.jsonl (first line: schema version) and the final
// model.safetensors. Whole files appear under their names complete or not at all; metrics grow line
// by line. A folder belongs to one run at a time, which holds a lock on its metrics. The first line
// of metrics.jsonl, or run.json, marks it as a run's. From the first step on, a file that cannot be
// written causes a warning and does not end the run.
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

// Used by one thread, except for methods marked "Any thread".
class RunFolder {
 public:
  // Makes `folder`, or runs/<name>-<time> if it is empty. Throws InputError if the folder is not
  // empty, Error if it cannot be made or written or another run is using it.
  static RunFolder create(const std::string& folder, const std::string& name);

  // Reopens a run's folder to continue in it, from begin() on, after the first `bytes` of
  // metrics.jsonl; 0: as if new. `locked` is called once no other run can be using the folder.
  // `known`: a checkpoint has
  // shown that the folder is a run's. Throws InputError for a folder that holds something but no
  // run of this program, and for a symbolic link in place of a run's file; Error otherwise, also if
  // another run is still using it after `timeout`, which allows for a run that is just ending.
  static RunFolder reopen(const std::string& folder, int64_t bytes,
                          const std::function<void()>& locked = {}, bool known = false,
                          std::chrono::milliseconds timeout = std::chrono::seconds(5));

  // Begins the run in a reopened folder: cuts its metrics after the first `bytes`, and removes
  // files that a killed process has left half written. Until then nothing in the folder is changed.
  // Does nothing in one that was created. Throws Error.
  void begin();

  // Returns whether a run is using the folder now.
  static bool in_use(const std::string& folder);
  // Returns whether a run in that folder is complete and has left its weights.
  static bool holds_finished_run(const std::string& folder);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Writes a whole file. Throws Error.
  void write(const std::string& name, const std::string& content) const;
  // Writes a file that a run can do without: warns if it cannot be written. Any thread.
  void write_optional(const std::string& name, const std::string& content) const;

  // Appends a line to metrics.jsonl.
  void metric(const nlohmann::ordered_json& line);
  // Calls the listener with each later line, too.
  void listen(std::function<void(const nlohmann::ordered_json&)> listener) {
    listener_ = std::move(listener);
  }
  // Hands the lines to the system; called at the end of an epoch and of the run, and before a
  // checkpoint. Returns the bytes of metrics.jsonl, including lines that could not be written yet.
  int64_t flush();

  // Removes what a run that does not begin has written, and the folder if it was made for it; does
  // nothing once a line was logged, and in a folder that held a run.
  void discard() const;

  // Records why a file is not complete; empty: it is. Warns once for each kind of file. Any thread.
  void note_trouble(const std::string& name, const std::string& why) const;
  // Sets where warnings go; empty: to stderr.
  void warn_by(std::function<void(const std::string&)> warn) { troubles_->warn = std::move(warn); }
  // Returns a line that names the files that are not complete, and why; empty if all are. Any
  // thread.
  std::string incomplete() const;

 private:
  struct Troubles {
    std::mutex mutex;
    std::map<std::string, std::string> why;  // by file
    std::set<std::string> warned;            // kinds of files
    std::function<void(const std::string&)> warn;
  };
  RunFolder(std::string path, std::chrono::milliseconds timeout);  // locks metrics.jsonl
  // Truncates metrics.jsonl to its first `bytes`; an empty one begins with its schema.
  void keep(int64_t bytes);

  std::string path_;
  bool fresh_ = false, made_ = false;  // it was empty, and no line was logged since; did not exist
  int64_t reopened_at_ = -1;           // the bytes that begin() keeps
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

// Returns the content of run.json: git revision and build, machine, arguments, seed, start time.
std::string describe_run(const RunFacts& facts);

}  // namespace heddle
