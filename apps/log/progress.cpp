#include "apps/log/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "apps/cli/format.h"
#include "core/error.h"
#include "core/scalar.h"
#include "core/trace.h"

namespace heddle {
namespace {

constexpr double kRedrawSeconds = 0.1, kKeep = 0.98;
constexpr int64_t kMinBarWidth = 6, kMaxBarWidth = 24;

}  // namespace

bool can_redraw(FILE* out) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(out)) && term != nullptr && *term && std::string_view(term) != "dumb";
}

int terminal_columns(FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Progress::Progress(const ProgressOptions& options) : options_(options), last_(steady_seconds()) {
  if (options_.out == nullptr) options_.out = stderr;
  bar_ = !options_.quiet && can_redraw(options_.out);
  const char* no_colour = std::getenv("NO_COLOR");
  colour_ = bar_ && (no_colour == nullptr || *no_colour == '\0');
}

Progress::~Progress() { clear(); }

std::string Progress::line(int64_t step, int64_t epoch, double loss, double lr,
                           bool show_lr) const {
  const double seconds = std::max(seconds_, 1e-9);
  const double left =
      seconds / steps_ * to_double(std::max<int64_t>(options_.total_steps - step, 0));
  std::string out = concat("epoch ", epoch, "  step ", step, "/", options_.total_steps, "  loss ",
                           decimals(loss, 4), show_lr ? "  lr " + significant(lr) : "", "  ",
                           decimals(samples_ / seconds, 0), " ", options_.unit, "/s  ",
                           format_duration(left), " left");
  if (dense_ > 0 && sent_ > 0)
    out += concat("  ratio ", significant(dense_ / sent_, 3), "  exposed ",
                  decimals(100 * exposed_s_ / std::max(step_s_, 1e-9), 0), " %");
  if (epsilon_ >= 0) out += "  epsilon " + significant(epsilon_, 3);
  return out;
}

void Progress::exchanged(int64_t dense, int64_t sent, double exposed_s, double step_s) {
  dense_ = kKeep * dense_ + to_double(dense);
  sent_ = kKeep * sent_ + to_double(sent);
  exposed_s_ = kKeep * exposed_s_ + exposed_s;
  step_s_ = kKeep * step_s_ + step_s;
}

void Progress::step(int64_t step, int64_t epoch, double loss, double lr, int64_t samples) {
  const double now = steady_seconds();
  steps_ = kKeep * steps_ + 1;
  samples_ = kKeep * samples_ + to_double(samples);
  seconds_ = kKeep * seconds_ + now - std::exchange(last_, now);
  if (options_.quiet) return;
  if (!bar_) {
    if (step % options_.print_freq == 0)
      std::fprintf(options_.out, "%s\n", line(step, epoch, loss, lr).c_str());
    return;
  }
  if (drawn_ && now - drawn_at_ < kRedrawSeconds && step < options_.total_steps) return;
  // The bar fills the rest of the line; a line that wraps could not be redrawn.
  const int64_t columns = terminal_columns(options_.out) - 1;
  std::string figures = line(step, epoch, loss, lr);
  if (std::ssize(figures) > columns) figures = line(step, epoch, loss, lr, false);
  const int64_t room = columns - static_cast<int64_t>(figures.size()) - 3;
  // A line that is too long loses whole figures.
  const size_t most = to_size(columns);
  std::string text = figures.size() <= most
                         ? figures
                         : figures.substr(0, std::min(most, figures.rfind("  ", most)));
  if (room >= kMinBarWidth) {
    const int64_t width = std::min<int64_t>(room, kMaxBarWidth);
    const int64_t total = std::max<int64_t>(options_.total_steps, 1);
    const int64_t filled = std::clamp<int64_t>(step * width / total, 0, width);
    const std::string done(static_cast<size_t>(filled), '=');
    text = concat("[", done, std::string(static_cast<size_t>(width - filled), ' '), "] ", figures);
  }
  const char* begin = colour_ ? "\033[36m" : "";
  const char* end = colour_ ? "\033[0m" : "";
  std::fprintf(options_.out, "\r%s%s%s\033[K", begin, text.c_str(), end);
  std::fflush(options_.out);
  drawn_ = true;
  drawn_at_ = now;
}

void Progress::note(const std::string& line) {
  if (options_.quiet) return;
  clear();
  std::fprintf(options_.out, "%s\n", line.c_str());
}

void Progress::clear() {
  if (drawn_) std::fprintf(options_.out, "\r\033[K");
  drawn_ = false;
}

void Progress::pause() { paused_at_ = steady_seconds(); }

void Progress::resume() { last_ += steady_seconds() - paused_at_; }

Logger console_logger(Progress* progress) {
  if (progress == nullptr) return {};
  return [progress](const std::string& line) { progress->note(line); };
}

}  // namespace heddle
