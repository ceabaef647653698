// A second stream for a thread that works beside its Context's own: what it starts on a GPU runs at
// high priority and is ordered with the first stream by fences only. Its tensors come from a pool
// of their own, so that memory is handed out again in the order of the stream that used it, and
// cuBLAS is there twice; cuDNN stays with the first stream. Without CUDA, and on the CPU, nothing
// of this does anything.
//
//   Fence written;                       // on the Context's thread
//   written.record();                    // behind what it has started so far
//   SideStream side;                     // on the other thread, after its ContextScope
//   written.wait();                      // what this thread starts from now on comes after that
#pragma once

#include <memory>

namespace heddle {

// While one lives, the calling thread is on the side stream of its Context.
class SideStream {
 public:
  SideStream();
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  static bool active();  // for the calling thread
};

// The calling thread waits until its stream has done all that it was given.
void wait_for_stream();

// A point in the work of a GPU. Copies are the same point.
class Fence {
 public:
  // The point behind all that the calling thread's stream was given so far.
  void record();
  // The calling thread's stream goes on when the point is reached; the thread itself does not wait.
  void wait() const;

 private:
  std::shared_ptr<void> event_;
};

}  // namespace heddle
