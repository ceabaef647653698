#include "comm/threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <thread>

#include "core/trace.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

// A send that has not been received yet, in the receiver's mailbox.
struct Message {
  const void* data;
  size_t bytes;
  double arrival;                            // by the network model, seconds
  std::shared_ptr<std::atomic<bool>> taken;  // set once the receiver has copied it
};

// The state that the ranks share.
struct World {
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int, std::deque<Message>> from;  // by sender
  };

  World(int size, const ThreadsOptions& options)
      : options_(options), net_(options.net, size), boxes_(to_size(size)) {}

  Mailbox& box(int rank) { return boxes_[to_size(rank)]; }

  void abort(const std::string& why) {
    {
      std::lock_guard lock(why_mutex_);
      if (why_.empty()) why_ = why;
    }
    aborted_ = true;
    for (Mailbox& box : boxes_) {
      std::lock_guard lock(box.mutex);
      box.changed.notify_all();
    }
  }
  void check_alive() {
    if (!aborted_) return;
    std::lock_guard lock(why_mutex_);
    throw CommError("stopped because of another rank: " + why_);
  }

  const ThreadsOptions options_;
  NetClock net_;

 private:
  std::vector<Mailbox> boxes_;
  std::atomic<bool> aborted_ = false;
  std::mutex why_mutex_;
  std::string why_;
};

class ThreadsTransport : public Transport {
 public:
  ThreadsTransport(std::shared_ptr<World> world, int rank, int size)
      : world_(std::move(world)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return size_ == 1 ? "solo" : "threads"; }
  bool virtual_time() const override { return world_->options_.net.virtual_time; }
  double now() const override { return virtual_time() ? virtual_now_ : steady_seconds(); }
  std::vector<int> hosts() override {
    std::vector<int> out(to_size(size_));
    const NetModel& net = world_->options_.net;
    for (int r = 0; r < size_ && net.active(); ++r) out[to_size(r)] = net.host_of(r, size_);
    return out;
  }
  void abort(const std::string& why, int) noexcept override { world_->abort(why); }

  uint64_t post_send(int peer, const void* data, size_t bytes) override {
    world_->check_alive();
    Request& request = requests_[next_ticket_];
    request.peer = peer;
    request.taken = std::make_shared<std::atomic<bool>>(false);
    if (world_->options_.net.active())
      request.arrival = world_->net_.arrival(rank_, peer, bytes, now());
    World::Mailbox& box = world_->box(peer);
    {
      std::lock_guard lock(box.mutex);
      box.from[rank_].push_back({data, bytes, request.arrival, request.taken});
    }
    box.changed.notify_all();
    return next_ticket_++;
  }

  uint64_t post_receive(int peer, void* data, size_t bytes) override {
    requests_[next_ticket_] = {.peer = peer, .data = data, .bytes = bytes};
    waiting_[peer].push_back(next_ticket_);
    return next_ticket_++;
  }

  void wait(uint64_t ticket) override {
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) throw Error("message: wait() was called twice");
    Request& request = found->second;
    if (request.taken != nullptr)
      wait_taken(request);
    else
      while (!request.done) receive_next(request.peer);
    requests_.erase(found);
  }

  void withdraw() noexcept override {
    for (auto& [ticket, request] : requests_) {
      if (request.taken == nullptr) continue;
      World::Mailbox& box = world_->box(request.peer);
      std::lock_guard lock(box.mutex);
      const auto mine = [taken = request.taken](const Message& m) { return m.taken == taken; };
      std::erase_if(box.from[rank_], mine);
    }
    requests_.clear();
    waiting_.clear();
  }

 private:
  struct Request {
    int peer = 0;
    void* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<std::atomic<bool>> taken = nullptr;  // of a send
    double arrival = 0;                                  // of a send, by the network model
    bool done = false;                                   // of a receive
  };

  // Completes the oldest open receive from this peer. Copies under the mailbox's lock, so that a
  // sender that fails can withdraw messages that nobody has read.
  void receive_next(int peer) {
    World::Mailbox& box = world_->box(rank_);
    const Request open = requests_.at(waiting_[peer].front());
    Message message;
    {
      std::unique_lock lock(box.mutex);
      std::deque<Message>& queue = box.from[peer];
      do {  // while this rank sleeps, the sender may fail and withdraw its messages
        await(box, lock, peer, [&] { return !queue.empty(); });
        if (!world_->options_.net.virtual_time)
          sleep_until(box, lock, queue.front().arrival, [&] { return queue.empty(); });
      } while (queue.empty());
      world_->check_alive();
      message = queue.front();
      queue.pop_front();
      if (open.bytes != message.bytes)
        throw CommError(
            concat("expected ", open.bytes, " bytes from rank ", peer, ", found ", message.bytes));
      if (message.bytes > 0) std::memcpy(open.data, message.data, message.bytes);
    }
    virtual_now_ = std::max(virtual_now_, message.arrival);
    requests_.at(waiting_[peer].front()).done = true;
    waiting_[peer].pop_front();
    World::Mailbox& sender = world_->box(peer);
    {
      std::lock_guard lock(sender.mutex);
      *message.taken = true;
    }
    sender.changed.notify_all();
  }

  void wait_taken(const Request& request) {
    World::Mailbox& box = world_->box(rank_);
    std::unique_lock lock(box.mutex);
    // The receiver sleeps until the modelled arrival; that time must not count towards the timeout.
    if (!world_->options_.net.virtual_time)
      sleep_until(box, lock, request.arrival, [&] { return request.taken->load(); });
    await(box, lock, request.peer, [&] { return request.taken->load(); });
  }

  template <class Ready>
  void await(World::Mailbox& box, std::unique_lock<std::mutex>& lock, int peer, Ready ready) {
    ProgressTimeout timeout(world_->options_.timeout_s);
    while (!ready()) {
      world_->check_alive();
      box.changed.wait_for(lock, std::chrono::duration<double>(timeout.poll_interval_s()));
      if (timeout.expired() && !ready())
        throw CommTimeout(
            concat("no answer from rank ", peer, " for ", world_->options_.timeout_s, " s"));
    }
  }

  // Sleeps until the modelled arrival or until done() holds.
  template <class Done>
  void sleep_until(World::Mailbox& box, std::unique_lock<std::mutex>& lock, double arrival,
                   Done done) {
    const auto when = Clock::time_point(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrival)));
    while (!done() && Clock::now() < when) {
      world_->check_alive();
      box.changed.wait_until(lock, when);
    }
  }

  std::shared_ptr<World> world_;
  int rank_, size_;
  double virtual_now_ = 0;
  uint64_t next_ticket_ = 0;
  std::map<uint64_t, Request> requests_;
  std::map<int, std::deque<uint64_t>> waiting_;  // tickets of open receives, by peer
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_threads(int size, const ThreadsOptions& options) {
  check(size > 0, "learners: expected at least 1, found ", size);
  const auto world = std::make_shared<World>(size, options);
  std::vector<std::unique_ptr<Communicator>> out;
  out.reserve(to_size(size));
  for (int rank = 0; rank < size; ++rank)
    out.push_back(std::make_unique<MessageCommunicator>(
        std::make_unique<ThreadsTransport>(world, rank, size), options.collectives));
  return out;
}

void run_threads(int ranks, const std::function<void(Communicator&)>& body,
                 const ThreadsOptions& options) {
  const auto comms = make_threads(ranks, options);
  std::vector<std::exception_ptr> failures(comms.size());
  const auto run_rank = [&](size_t r) {
    try {
      body(*comms[r]);
    } catch (const std::exception& error) {
      failures[r] = std::current_exception();
      comms[r]->abort(concat("rank ", r, ": ", error.what()));
    }
  };
  std::vector<std::thread> threads;
  try {
    for (size_t r = 0; r < comms.size(); ++r) threads.emplace_back(run_rank, r);
  } catch (const std::exception& error) {  // the system has no more threads
    failures.back() = std::current_exception();
    comms[0]->abort(error.what());
  }
  for (std::thread& thread : threads) thread.join();
  // The ranks that were aborted throw CommError, which says less than the cause.
  std::exception_ptr aborted;
  for (const std::exception_ptr& failure : failures) {
    if (failure == nullptr) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const CommError&) {
      if (aborted == nullptr) aborted = failure;
    }
  }
  if (aborted != nullptr) std::rethrow_exception(aborted);
}

std::unique_ptr<Communicator> make_solo() { return std::move(make_threads(1).front()); }

}  // namespace heddle
