// Messages from rank to rank: what every collective is written over (comm/collectives.h). Threads
// of one process and processes under MPI differ in nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"

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
  // Lets every wait of every rank throw from now on, or ends the processes with the exit code.
  virtual void abort(const std::string& why, int exit_code) noexcept = 0;
  // Seconds of this rank's clock: the steady clock, or a model's (comm/net_model.h).
  virtual double now() const = 0;
};

}  // namespace heddle
