// Transport: point-to-point messages between ranks, on which every collective is built
// (comm/collectives.h). Threads of one process and processes under MPI differ only here.
//
//   const uint64_t in = transport.post_receive(previous, buffer, n);
//   transport.wait(transport.post_send(next, data, n));
//   transport.wait(in);
//
// All calls of one rank come from one thread at a time; abort() may come from any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/trace.h"

namespace heddle {

// Thrown when a rank does not answer within the timeout, or when another rank has failed.
class CommError : public Error {
 public:
  using Error::Error;
};

// Thrown after the timeout only: the other rank may just be slow.
class CommTimeout : public CommError {
 public:
  using CommError::CommError;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;

  // Posts a message of `bytes` bytes and returns its ticket without waiting. Until wait(ticket)
  // returns, the caller must not write to the memory of a send or touch that of a receive. Between
  // two ranks, receives match sends in the order of posting, with equal lengths.
  virtual uint64_t post_send(int peer, const void* data, size_t bytes) = 0;
  virtual uint64_t post_receive(int peer, void* data, size_t bytes) = 0;
  // Waits for a posted message, once. Throws CommTimeout after the timeout, and may then be called
  // again; CommError for a message of a different length, and when a rank has called abort().
  virtual void wait(uint64_t ticket) = 0;
  // Cancels this rank's pending messages after a failure, before their memory is freed.
  virtual void withdraw() noexcept = 0;
  // Makes every wait of every rank throw from now on, or ends the processes with the exit code.
  virtual void abort(const std::string& why, int exit_code) noexcept = 0;
  // Returns this rank's clock in seconds: the steady clock, or the network model's.
  virtual double now() const = 0;
  virtual bool virtual_time() const { return false; }
  // As in Communicator.
  virtual std::vector<int> hosts() { return std::vector<int>(to_size(size())); }
};

// Time without progress, for a caller that polls. A long gap between two polls counts only in part:
// the process was stopped or the machine asleep, and so were, most likely, the other ranks.
//
//   for (ProgressTimeout timeout(60); !ready();) {
//     sleep_for(timeout.poll_interval_s());
//     if (timeout.expired()) throw CommError("no answer");
//   }
class ProgressTimeout {
 public:
  explicit ProgressTimeout(double seconds) : left_s_(seconds), last_s_(steady_seconds()) {}
  // Returns how long the caller may sleep before its next poll, in seconds.
  double poll_interval_s() const { return std::clamp(left_s_, 1e-4, kPollInterval); }
  // Subtracts the time since the last call; true when none is left.
  bool expired() {
    const double now = steady_seconds();
    left_s_ -= std::min(now - last_s_, 2 * kPollInterval);
    last_s_ = now;
    return !(left_s_ > 0);  // NaN has expired
  }

 private:
  static constexpr double kPollInterval = 0.5;  // seconds
  double left_s_, last_s_;
};

}  // namespace heddle
