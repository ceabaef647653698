// The one thread that communicates. Every collective of a rank goes through its queue, in the order
// of posting, which is the program's and so the same on all ranks: the messages of two threads can
// never cross. Asynchrony lives here and nowhere else.
//
//   CommWorker worker(context);
//   worker.post([&] { comm.all_reduce(bucket); });
//   worker.drain();                     // done, or what the job threw
//
// On a GPU the thread has a stream of its own (core/streams.h): a job comes after what the poster's
// stream was given before, and what the poster starts after drain() comes after all jobs.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/context.h"
#include "core/streams.h"

namespace heddle {

class CommWorker {
 public:
  // The Context must outlive the worker, which computes with one thread.
  explicit CommWorker(Context& context);
  // Runs what is queued, unless a job has failed.
  ~CommWorker();
  CommWorker(const CommWorker&) = delete;
  CommWorker& operator=(const CommWorker&) = delete;

  // Rethrows what an earlier job has thrown.
  void post(std::function<void()> job);
  // Waits until the queue is empty. Rethrows the first exception of a job, and from then on always.
  void drain();

 private:
  void run(Context& context);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr failure_;
  Fence done_;  // behind the last job
  std::thread thread_;
};

}  // namespace heddle
