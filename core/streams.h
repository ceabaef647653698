// Streams beside a Context's own: what a thread starts there on a GPU runs at high priority and is
// ordered with the first stream by fences only. Tensors come from a pool of each stream's own, so
// that memory is handed out again in the order of the stream that used it, and cuBLAS is there for
// each; cuDNN stays with the first stream. Without CUDA, and on the CPU, nothing of this does
// anything.
//
//   Fence written;                       // on the Context's thread
//   written.record();                    // behind what it has started so far
//   SideStream side(StreamUse::exchange);  // on another thread, after its ContextScope
//   written.wait();                      // what this thread starts from now on comes after that
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace heddle {

// main: a Context's own stream; the others work beside it.
enum class StreamUse : uint8_t { main, exchange, copy };
constexpr size_t kStreamUses = 3;

StreamUse stream_use();  // of the calling thread

// While one lives, the calling thread is on that stream of its Context.
class SideStream {
 public:
  explicit SideStream(StreamUse use);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

 private:
  StreamUse previous_;
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
