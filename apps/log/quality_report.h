// The samples of --shadow N, which compare compressed with dense sums: a line of metrics for each
// sample, and the means over the run as a table for people.
//
//   QualityReport report(note);
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

class QualityReport {
 public:
  // `warn` is told once when what the learners would send has had nothing in common over the last
  // samples (at least three, at most ten).
  explicit QualityReport(std::function<void(const std::string&)> warn) : warn_(std::move(warn)) {}

  // Returns false if this step was not sampled.
  bool add(int64_t step, const std::vector<LayerQuality>& layers);
  // Returns the last sample: {"step": n, "quality": {layer: {"contraction": …, …}}, "alike": …}.
  nlohmann::ordered_json json() const;
  // Returns the means over the samples, by layer; empty without any.
  std::string table() const;

 private:
  std::function<void(const std::string&)> warn_;
  int64_t step_ = 0, looks_ = 0;
  double alike_ = 0, alike_sum_ = 0;  // over all layers, by their energy
  std::array<double, 10> recent_{};   // of alike_
  std::vector<LayerQuality> last_;
  struct Mean {
    LayerQuality sum;
    int64_t looks = 0;
  };
  std::vector<Mean> means_;
};

}  // namespace heddle
