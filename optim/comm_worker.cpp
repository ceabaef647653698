#include "optim/comm_worker.h"

#include <omp.h>

#include <optional>

namespace heddle {

CommWorker::CommWorker(Context& context) : thread_([this, &context] { run(context); }) {}

CommWorker::~CommWorker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CommWorker::post(std::function<void()> job) {
  Fence written;
  written.record();
  {
    std::lock_guard lock(mutex_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    jobs_.push_back([written, job = std::move(job)] {
      written.wait();
      job();
    });
  }
  changed_.notify_all();
}

void CommWorker::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ != nullptr || (jobs_.empty() && !busy_); });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  done_.wait();
}

void CommWorker::run(Context& context) {
  std::optional<ContextScope> scope;
  std::optional<SideStream> side;
  std::unique_lock lock(mutex_);
  try {
    scope.emplace(context);
    side.emplace(StreamUse::exchange);
  } catch (...) {  // a GPU that cannot be used from here
    failure_ = std::current_exception();
    changed_.notify_all();
    return;
  }
  omp_set_num_threads(1);  // the learner's threads are busy with backward
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      job();
      done_.record();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (failure != nullptr) {
      failure_ = failure;
      jobs_.clear();
    }
    changed_.notify_all();
  }
}

}  // namespace heddle
