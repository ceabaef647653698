#include "apps/signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <ctime>

#include "core/error.h"

namespace heddle {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};

// timeout(1) signals its child and then its group, a terminal every process of a group that may
// pass signals on: what comes together counts once.
constexpr int64_t kTogetherMs = 500;

std::atomic<int64_t> first_ms = 0;  // when the first came; 0: none has
static_assert(std::atomic<int64_t>::is_always_lock_free, "set by a signal handler");

void handle(int number) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1000000 + 1;
  int64_t none = 0;
  if (first_ms.compare_exchange_strong(none, now)) return;
  if (now - first_ms > kTogetherMs) _exit(128 + number);  // as a shell reports a death by signal
}

std::array<struct sigaction, kSignals.size()> before;

}  // namespace

SignalScope::SignalScope() {
  first_ms = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (sigaction(kSignals[i], &action, &before[i]) != 0) throw Error("signals cannot be caught");
}

SignalScope::~SignalScope() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

bool signal_received() { return first_ms > 0; }

}  // namespace heddle
