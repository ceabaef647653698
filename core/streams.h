// Additional streams of a Context: work that a thread starts there on a GPU runs at high priority
// and is ordered with the main stream by fences only. Each stream has a memory pool of its own, so
// that memory is reused in the order of the stream that used it, and a cuBLAS handle; cuDNN works
// on the main stream only. Without CUDA, and on the CPU, all of this does nothing.
//
//   Fence written;                       // on the Context's thread
//   written.record();                    // after everything started up to now
//   SideStream side(StreamUse::exchange);  // on another thread, after its ContextScope
//   written.wait();                      // work that this thread starts from now on comes after it
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace heddle {

// main: a Context's own stream; exchange: communication; copy: batches on their way to the GPU.
enum class StreamUse : uint8_t { main, exchange, copy };
constexpr size_t kStreamUses = 3;

StreamUse stream_use();  // of the calling thread

// Puts the calling thread on that stream of its Context for the lifetime of this object.
class SideStream {
 public:
  explicit SideStream(StreamUse use);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

 private:
  StreamUse previous_;
};

// Blocks the calling thread until its stream has finished.
void wait_for_stream();

// A point in the work of a GPU. Copies are the same point.
class Fence {
 public:
  // Marks the point after all work that is on the calling thread's stream at this time.
  void record();
  // Makes the calling thread's stream wait for that point; the thread itself does not block.
  void wait() const;
  // Returns whether the GPU has reached that point; true before the first record().
  bool passed() const;

 private:
  std::shared_ptr<void> event_;
};

}  // namespace heddle
