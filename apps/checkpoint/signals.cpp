#include "apps/checkpoint/signals.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

// Signals within this time count as one: timeout(1) signals its child and then its group, and a
// terminal signals every process of a group, some of which pass signals on.
constexpr auto kSameRequest = std::chrono::milliseconds(500);

std::atomic<bool> caught = false, received = false, reader_gone = false;
std::atomic<const char*> answer = "";

sigset_t set_of(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) sigaddset(&set, number);
  return set;
}

// Ends the process as if the signal had not been blocked.
void die_from(int number) {
  std::signal(number, SIG_DFL);
  const sigset_t one = set_of({number});
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  (void)std::raise(number);
}

// Writes to stderr if it takes the text at once: not through stdio, whose lock a thread may hold
// that waits for a full pipe.
void say(const char* text) {
  pollfd out{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0)
    (void)!write(STDERR_FILENO, text, std::strlen(text));
}

void receive_signals(sigset_t signals) {
  Clock::time_point first;
  for (;;) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (!caught) die_from(number);
    if (!received.exchange(true)) {
      first = Clock::now();
      say(answer);
    } else if (Clock::now() - first > kSameRequest) {
      _exit(128 + number);  // as a shell reports a death by signal
    }
  }
}

}  // namespace

void watch_signals() {
  sigset_t signals = set_of({SIGTERM, SIGINT, SIGUSR1});
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(receive_signals, signals).detach();
}

void catch_signals(const char* note) {
  answer = note;
  caught = true;
  // Comes to the thread that writes, and so to none that computes.
  std::signal(SIGPIPE, [](int) { reader_gone = true; });
}

bool signal_received() { return received || reader_gone; }

}  // namespace heddle
