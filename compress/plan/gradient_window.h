// Sums of gradients over a window of steps, from which a planner computes the error of each setting
// (layer_planner.h), and the time that each exchange of these steps took. All tensors are on the
// host.
//
//   recorder.open({.compensated = false, .alone = true});  // between steps
//   ...                                                    // steps: reduce() records each bucket
//   const GradientWindow window = recorder.close();
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/ledger.h"
#include "compress/reducer.h"

namespace heddle {

// An exchange of one bucket.
struct TimedExchange {
  int64_t bytes;   // of payload, counted once
  double seconds;  // in collectives
};

// Returns the cost of one more byte in an exchange: b of the least-squares line seconds = a + b *
// bytes, so that the fixed cost of every exchange (latency, waiting for other ranks) is left out.
// Returns total seconds over total bytes if all sizes are equal or the line is impossible for a
// network (b <= 0 or a < 0), and 0 if there are no bytes.
double seconds_per_byte(const std::vector<TimedExchange>& exchanges);

// The record of a window. Layers whose buckets were all rejected are missing.
struct GradientWindow {
  std::map<std::string, Tensor> compensated;  // by layer, (n) f32: gradients with residuals
  std::map<std::string, Tensor> alone;        // by layer, (n) f32: gradients without them
  std::vector<TimedExchange> exchanges;       // one per accepted bucket
};

class WindowRecorder {
 public:
  // Selects what a window sums.
  struct Sums {
    bool compensated, alone;
  };

  // Between steps. Starts an empty window.
  void open(Sums sums);
  // Ends the window and returns it; returns an empty one where none is open.
  GradientWindow close();
  // The open window, for a checkpoint: its tensors are views that still change. Null: none is open.
  const GradientWindow* window() const { return window_ ? &*window_ : nullptr; }
  // Replaces the open window by what an earlier process had recorded of it.
  void restore(GradientWindow window) { window_ = std::move(window); }

  // Called in this order for each bucket, from the thread that runs reduce(). Copies are added to
  // the window only if the bucket is accepted. Without an open window they do nothing.
  void begin(const Ledger& ledger);
  void see_alone(const std::string& layer, const Tensor& x);        // before its residual is added
  void see_compensated(const std::string& layer, const Tensor& x);  // gradient plus residual
  void accept(const Ledger& ledger);

 private:
  std::optional<GradientWindow> window_;
  Sums sums_{};
  NamedTensors alone_, compensated_;  // of the bucket in progress
  TimedExchange start_{};             // the ledger's totals before it
};

}  // namespace heddle
