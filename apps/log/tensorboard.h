// TensorBoard event files, written without TensorFlow: a TFRecord for each event (length and data,
// each with a masked CRC-32C), in it a protocol buffer of type Event
// (tensorflow/core/util/event.proto and framework/summary.proto). A file takes the lines of
// metrics.jsonl as they are written, so both say the same, here rounded to float.
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

// CRC-32C (Castagnoli), and as TFRecords mask it.
uint32_t crc32c(const std::string& bytes);
uint32_t masked_crc32c(const std::string& bytes);

class EventFile {
 public:
  // Begins events.out.tfevents.<time>.<host>.<process> in the folder. Where there are such files
  // already, the run resumes an earlier one: viewers then drop what those hold from the
  // first step of this one on. Throws Error when it cannot be made.
  explicit EventFile(const std::string& folder);

  // Tags: loss/train, acc1/valid, lr, time/forward, bytes/sent, ratio/wire, quality/<layer>/cosine,
  // compress/<layer>/ratio; histograms over the layers: residual_norm, gradient_norm.
  void metric(const nlohmann::ordered_json& line);
  const std::string& path() const { return path_; }
  // Why not all events are in the file; empty when they are.
  std::string trouble() const { return file_->trouble(); }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void step_line(const nlohmann::ordered_json& line);
  void quality_line(const nlohmann::ordered_json& line);
  void ledger_line(const nlohmann::ordered_json& line);
  // One event; histograms are of the values given.
  void write(int64_t step, const Scalars& scalars,
             const std::map<std::string, std::vector<double>>& histograms = {});
  void record(const std::string& event);

  std::string path_;
  std::unique_ptr<AppendFile> file_;
  bool goes_on_ = false;
  nlohmann::ordered_json summary_;
  double flushed_at_ = 0;
};

// Writes every later line of the folder's metrics.jsonl to an event file in it, too. What cannot be
// written is worth a warning. The folder must not move in memory from now on.
void begin_events(RunFolder& folder);

}  // namespace heddle
