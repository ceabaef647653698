// Shows people the progress of a run, on stderr only. On a terminal: a bar with rate and remaining
// time that redraws itself. Elsewhere: one line every `print_freq` steps. NO_COLOR and TERM=dumb
// are obeyed; --quiet leaves only errors.
//
//   Progress progress({.total_steps = 9384, .print_freq = 50});
//   progress.step(1, 1, 2.31, 0.016, 128);
//   progress.note("epoch 1: ...");
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

namespace heddle {

struct ProgressOptions {
  int64_t total_steps = 0;
  int64_t print_freq = 50;
  bool quiet = false;
  const char* unit = "images";  // counted by step()
  FILE* out = nullptr;          // null: stderr
};

// Used by one thread.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows update number `step` (from 1), which used `samples` units.
  void step(int64_t step, int64_t epoch, double loss, double lr, int64_t samples);
  // Called before step(): bytes of dense exchanges in place of what was exchanged, and bytes sent;
  // seconds that the step waited for exchanges, and its length in seconds. The line then shows the
  // ratio and the share of waiting. These, the rate and the time that is left are means over some
  // fifty steps.
  void exchanged(int64_t dense, int64_t sent, double exposed_s, double step_s);
  // Called before step(): the privacy that the run has spent, which the line then shows.
  void spent(double epsilon) { epsilon_ = epsilon; }
  // Prints a line, above the bar if there is one.
  void note(const std::string& line);
  // Removes the bar until the next step.
  void clear();
  // Exclude the time in between, which is not training (validation), from the rate.
  void pause();
  void resume();

 private:
  std::string line(int64_t step, int64_t epoch, double loss, double lr, bool show_lr = true) const;

  ProgressOptions options_;
  bool bar_ = false, colour_ = false, drawn_ = false;
  double last_ = 0, paused_at_ = 0, drawn_at_ = 0;
  double epsilon_ = -1;  // none
  // Sums with decay.
  double steps_ = 0, samples_ = 0, seconds_ = 0;
  double dense_ = 0, sent_ = 0, exposed_s_ = 0, step_s_ = 0;
};

// Returns whether text on `out` can be redrawn: it is a terminal, and TERM is not dumb.
bool can_redraw(FILE* out);
// Returns the columns of the terminal; 80 for anything else.
int terminal_columns(FILE* out);

// Prints lines for people.
using Logger = std::function<void(const std::string&)>;
// Returns a logger that calls progress->note(), or an empty one for null: all ranks but the first.
Logger console_logger(Progress* progress);

}  // namespace heddle
