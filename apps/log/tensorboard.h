// Writes TensorBoard event files without TensorFlow: a TFRecord for each event (length and data,
// each with a masked CRC-32C) that holds a protocol buffer of type Event
// (tensorflow/core/util/event.proto and framework/summary.proto). A file receives the lines of
// metrics.jsonl as they are written, so both report the same values, here rounded to float.
//
//   EventFile events(folder);
//   events.metric({{"step", 1}, {"split", "train"}, {"loss", 2.3}});  // tag loss/train
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/log/append_file.h"
#include "apps/log/run_folder.h"

namespace heddle {

// Return the CRC-32C (Castagnoli) of the bytes, plain and as TFRecords mask it.
uint32_t crc32c(const std::string& bytes);
uint32_t masked_crc32c(const std::string& bytes);

class EventFile {
 public:
  // Creates events.out.tfevents.<time>.<host>.<process> in the folder. If there are such files
  // already, the run resumes an earlier one: viewers then ignore the earlier files' events from the
  // first step of the new file on. Throws Error if the file cannot be made.
  explicit EventFile(const std::string& folder);

  // Writes a line's events. Tags: loss/train, acc1/valid, lr, time/forward, bytes/sent, ratio/wire,
  // quality/<layer>/cosine, compress/<layer>/ratio; histograms over the layers: residual_norm,
  // gradient_norm.
  void metric(const nlohmann::ordered_json& line);
  const std::string& path() const { return path_; }
  // Returns why not all events are in the file; empty if all are.
  std::string trouble() const { return file_->trouble(); }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void step_line(const nlohmann::ordered_json& line);
  void quality_line(const nlohmann::ordered_json& line);
  void ledger_line(const nlohmann::ordered_json& line);
  // Writes one event; each histogram is of the values given.
  void write(int64_t step, const Scalars& scalars,
             const std::map<std::string, std::vector<double>>& histograms = {});
  void record(const std::string& event);

  std::string path_;
  std::unique_ptr<AppendFile> file_;
  bool resumes_ = false;  // and nothing is written yet
  nlohmann::ordered_json summary_;
  double flushed_at_ = 0;
};

// Also writes every later line of the folder's metrics.jsonl to an event file in the folder. If
// that fails, the folder warns. The RunFolder object must not be moved from now on.
void begin_events(RunFolder& folder);

}  // namespace heddle
