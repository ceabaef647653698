// Messages from rank to rank: what every collective is written over (comm/collectives.h). Threads
// of one process and processes under MPI differ in nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/trace.h"

namespace heddle {

// A rank that does not answer, or another rank's failure that brings this one down.
class CommError : public Error {
 public:
  using Error::Error;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;

  // Starts a message; returns at once. The memory must stay as it is (a send's) or be left alone (a
  // receive's) until wait() has returned for this ticket. Between two ranks, messages meet receives
  // in the order of posting, and both sides must name the same number of bytes.
  virtual uint64_t post_send(int peer, const void* data, size_t bytes) = 0;
  virtual uint64_t post_receive(int peer, void* data, size_t bytes) = 0;
  // Throws CommError after a time without an answer, or when a rank has called abort().
  virtual void wait(uint64_t ticket) = 0;
  // After a failure: the memory of messages that are still open is about to go, nobody may touch
  // it.
  virtual void withdraw() noexcept = 0;
  // Lets every wait of every rank throw from now on, or ends the processes with the exit code.
  virtual void abort(const std::string& why, int exit_code) noexcept = 0;
  // Seconds of this rank's clock: the steady clock, or a model's (comm/net_model.h).
  virtual double now() const = 0;
  virtual bool virtual_time() const { return false; }
};

// Counts the seconds without progress of one who looks again and again. A stretch in which nobody
// looked counts for little: the whole process was stopped, or the machine asleep.
class Patience {
 public:
  explicit Patience(double seconds) : left_s_(seconds), last_s_(steady_seconds()) {}
  double nap_s() const { return std::clamp(left_s_, 1e-4, kLookEvery); }
  bool over() {
    const double now = steady_seconds();
    left_s_ -= std::min(now - last_s_, 2 * kLookEvery);
    last_s_ = now;
    return left_s_ <= 0;
  }

 private:
  static constexpr double kLookEvery = 0.5;
  double left_s_, last_s_;
};

}  // namespace heddle
