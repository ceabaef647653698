// CommWorker: the one thread of a rank that communicates. Every collective, including those the
// main thread requests, goes through its queue and runs in the order of posting, which is the same
// on all ranks, so that the messages of two threads can never be confused. Asynchrony lives here
// and nowhere else.
//
//   CommWorker worker(context);
//   worker.post([&] { comm.all_reduce(bucket); });
//   worker.drain();                     // the sum has arrived; rethrows a job's exception
//
// On a GPU the thread has a stream of its own (core/streams.h): a job runs after the work that the
// poster's stream held when it was posted, and work that starts after drain() runs after all jobs.
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
  // Starts the thread, in this Context, which must outlive the worker. Jobs compute with one OpenMP
  // thread, because the learner's other threads are busy with backward.
  explicit CommWorker(Context& context);
  // Finishes the queue, unless a job has failed, and joins the thread.
  ~CommWorker();
  CommWorker(const CommWorker&) = delete;
  CommWorker& operator=(const CommWorker&) = delete;

  // Queues a job and returns at once. Rethrows what an earlier job has thrown. For one thread only.
  void post(std::function<void()> job);
  // Waits until the queue is empty and no job runs. Rethrows the first exception of a job, in every
  // call from then on; later jobs are dropped. For the thread that posts.
  void drain();

 private:
  void run(Context& context);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr failure_;
  Fence done_;  // after the last job, on the worker's stream
  std::thread thread_;
};

}  // namespace heddle
