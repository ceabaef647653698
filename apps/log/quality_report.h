// Reports the samples of --shadow N, which compare compressed with dense sums: a line of metrics
// for each sample, and the means over the run as a table for people.
//
//   QualityReport report(warn);
//   if (report.add(step, optimizer.take_quality())) folder.metric(report.json());
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compress/plan/quality_meter.h"

namespace heddle {

// The key of the correlation in metrics.jsonl.
constexpr const char* kCorrelationKey = "alike";  // check_words: quoted

class QualityReport {
 public:
  // `warn` is called once, if the learners' gradients have not been correlated over the last
  // samples (at least three, at most ten). It may be empty.
  explicit QualityReport(std::function<void(const std::string&)> warn) : warn_(std::move(warn)) {}

  // Returns false if this step was not sampled.
  bool add(int64_t step, const std::vector<LayerQuality>& layers);
  // Returns the last sample: {"step": n, "quality": {layer: {"contraction": …, …}}, and the
  // correlation over all layers}.
  nlohmann::ordered_json json() const;
  // Returns the means over the samples, by layer; empty without any.
  std::string table() const;

 private:
  std::function<void(const std::string&)> warn_;
  int64_t step_ = 0, samples_ = 0;
  double correlation_ = 0, correlation_sum_ = 0;  // over all layers, weighted by their energy
  std::array<double, 10> recent_{};               // of correlation_
  std::vector<LayerQuality> last_;
  struct Sum {
    LayerQuality layer;
    int64_t samples = 0;
  };
  std::vector<Sum> sums_;
};

}  // namespace heddle
