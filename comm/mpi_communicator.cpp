#include "comm/mpi_communicator.h"

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "comm/group.h"
#include "comm/launch.h"
#include "core/trace.h"

namespace heddle {
namespace {

void check_mpi(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw CommError(concat("MPI: ", what, ": ", std::string(text, to_size(length))));
}

// Guards a call that waits for every rank and that MPI can neither time out nor cancel: after the
// timeout the process exits, and the launcher ends the others.
class Deadline {
 public:
  Deadline(double timeout_s, const char* what) {
    watch_ = std::async(std::launch::async, [timeout_s, what, kept = done_.get_future()] {
      if (kept.wait_for(std::chrono::duration<double>(timeout_s)) == std::future_status::ready)
        return;
      std::fprintf(stderr,
                   "[rank %d] MPI: no %s after %g s (--comm-timeout): another rank hangs, is still "
                   "reading its data, or cannot be reached\n",
                   detect_launch().rank, what, timeout_s);
      _exit(to_int(ExitCode::runtime));
    });
  }

 private:
  std::future<void> watch_;
  std::promise<void> done_;  // destroyed before watch_, whose wait this ends
};

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(double timeout_s) : timeout_s_(timeout_s) {
    const Deadline deadline(timeout_s, "communicator");
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "duplicating the communicator");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiTransport() override {
    if (requests_.empty()) MPI_Comm_free(&comm_);  // else it would wait for open requests
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return "mpi"; }
  double now() const override { return steady_seconds(); }

  std::vector<int> hosts() override {
    const Deadline deadline(timeout_s_, "placement of ranks on hosts");
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
              "hosts");
    int first = rank_;  // the host's lowest rank stands for it
    check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, host), "hosts");
    MPI_Comm_free(&host);
    std::vector<int> firsts(to_size(size_));
    check_mpi(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, comm_), "hosts");
    return host_numbers(firsts);
  }

  void abort(const std::string& why, int exit_code) noexcept override {
    if (!why.empty()) std::fprintf(stderr, "[rank %d] %s\n", rank_, why.c_str());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }

  uint64_t post_send(int peer, const void* data, size_t bytes) override {
    MPI_Request request;
    check_mpi(MPI_Isend(data, count_of(bytes), MPI_BYTE, peer, 0, comm_, &request), "send");
    requests_[next_ticket_] = {request, peer, bytes, false};
    return next_ticket_++;
  }

  uint64_t post_receive(int peer, void* data, size_t bytes) override {
    MPI_Request request;
    check_mpi(MPI_Irecv(data, count_of(bytes), MPI_BYTE, peer, 0, comm_, &request), "receive");
    requests_[next_ticket_] = {request, peer, bytes, true};
    return next_ticket_++;
  }

  // Open MPI cannot cancel a message in progress; the processes are about to end anyway.
  void withdraw() noexcept override {}

  // Open MPI makes progress only inside its calls, so this polls: without pauses at first, because
  // most messages arrive soon, then with sleeps that leave the core to computation.
  void wait(uint64_t ticket) override {
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) throw Error("message: wait() was called twice");
    Open& open = found->second;
    constexpr int kPolls = 200;
    std::optional<ProgressTimeout> timeout;
    for (int polls = 0;; ++polls) {
      int done = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&open.request, &done, &status), "test");
      if (done != 0) {
        if (open.receive) check_length(open, status);
        break;
      }
      if (polls < kPolls) continue;
      if (!timeout) timeout.emplace(timeout_s_);
      if (timeout->expired())
        throw CommTimeout(concat("no answer from rank ", open.peer, " for ", timeout_s_, " s"));
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    requests_.erase(found);
  }

 private:
  struct Open {
    MPI_Request request;
    int peer;
    size_t bytes;
    bool receive;
  };

  static int count_of(size_t bytes) {
    check(bytes <= to_size(std::numeric_limits<int>::max()),
          "message: expected less than 2 GiB, found ", bytes, " bytes");
    return to_int(bytes);
  }

  static void check_length(const Open& open, const MPI_Status& status) {
    int found = 0;
    MPI_Get_count(&status, MPI_BYTE, &found);
    if (to_size(found) != open.bytes)
      throw CommError(
          concat("expected ", open.bytes, " bytes from rank ", open.peer, ", found ", found));
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  double timeout_s_;
  uint64_t next_ticket_ = 0;
  std::map<uint64_t, Open> requests_;
};

}  // namespace

MpiSession::MpiSession(double timeout_s) : timeout_s_(timeout_s) {
  // Over TCP, Open MPI splits a long message into fragments that the receiver requests one by one;
  // a ring over slow links is 4 to 5 % faster with whole messages (docs/benchmarks.md). A value
  // that the user has set is kept.
  setenv("OMPI_MCA_btl_tcp_flags", "1", 0);
  int provided = 0;
  const Deadline deadline(timeout_s, "start");
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "start");
  if (provided < MPI_THREAD_SERIALIZED)
    throw Error("MPI: expected MPI_THREAD_SERIALIZED, which this MPI library does not offer");
}

// A failed run ends by abort(): finalising would wait for ranks that no longer answer.
MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > 0) return;
  // The others wait without a deadline for what the first rank still does alone, such as writing a
  // long text; a rank that fails ends all.
  MPI_Request all_here = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &all_here);
  for (int done = 0; done == 0; std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    MPI_Test(&all_here, &done, MPI_STATUS_IGNORE);
  const Deadline deadline(timeout_s_, "end");
  MPI_Finalize();
}

std::unique_ptr<Communicator> MpiSession::make_communicator(const CollectiveOptions& options) {
  return std::make_unique<MessageCommunicator>(std::make_unique<MpiTransport>(timeout_s_), options);
}

}  // namespace heddle
