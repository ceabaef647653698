// A simulated GPU, for tests on machines without one: CUDA's runtime, cuBLAS, cuDNN and NCCL as far
// as heddle calls them, on host memory. In a build with HEDDLE_SIMULATED_GPU the programs and the
// tests are linked with this instead of NVIDIA's libraries, and the .cu files are compiled by the
// C++ compiler (tests/cuda_emulation.h). NVIDIA's headers declare what is defined here, so every
// call is checked against them.
//
// It is as unfavourable as a GPU may be. A stream executes its work as late as possible: when the
// host waits for it, when another stream waits for a point on it (up to there), or when nothing
// else can continue. Kernels run with their threads and blocks forwards and backwards in turn.
// Device memory has no access rights while no work is executed, so that a host that follows such a
// pointer is stopped. It is filled with NaN when it is allocated (not when a pool reuses it), and
// more than 255 bytes after its end nothing can be accessed: with HEDDLE_NO_POOL this holds for
// each tensor, and then the host can access device memory, since changing the rights would take
// too long. Two ranks need two devices for NCCL. Copies from the host read it when the stream
// reaches them. While a graph is recorded
// on a stream, waiting for the stream, copies from or to the host and events invalidate the graph.
//
//   SIMULATED_GPUS=N     number of devices (default 2)
//   SIMULATED_GPU_MIB=N  memory of each (default 4096)
//   SIMULATED_GPU_BUSY=1 cudaEventQuery() finds no unfinished work finished
//   SIMULATED_CONVOLUTIONS_SPOIL=1  cuDNN's convolutions cannot be recorded
#pragma once

#include <cuda_runtime_api.h>
#include <atomic>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace simulated {

// Everything below is used with this held.
std::unique_lock<std::mutex> lock();
// Notified whenever something has been put on a stream or has been done.
std::condition_variable& changed();

// Work on a stream. True: done. False: it waits for something, and is to be tried again.
using Work = std::function<bool()>;

struct Stream {
  int device = 0;
  struct Entry {
    Work work;
    bool touches;  // the devices' memory
  };
  std::deque<Entry> queue;
  bool running = false;  // its first work is being done, further up the stack
  // While a graph is recorded, what is put on the stream goes there; what a recording does not
  // allow spoils it.
  std::shared_ptr<std::vector<Entry>> recording = {};
  bool spoiled = false;
};

struct Point {  // of a stream, as an event has recorded it
  Stream* stream = nullptr;
  bool done = false;
  int64_t time = 0;  // virtual: one more for each event
};

// Queues work that touches memory only within with_rights(). A graph's may be done more than once.
extern std::atomic<int64_t> work_started;      // kernels, copies, events, calls of libraries
extern std::atomic<int64_t> waits;             // of the host, for all work of a stream
extern std::atomic<int64_t> fast_products;     // by the fastest of cuBLASLt's algorithms
extern std::atomic<int64_t> fast_engines_run;  // the fastest of cuDNN's graph API
void put(Stream* stream, Work work);
void put_done(Stream* stream, std::function<void()> work);  // for work that never waits
// Calls it while the devices' memory can be read and written.
void with_rights(const std::function<void()>& call);
// Tells `run` whether threads and blocks are to run in the opposite order.
void put_kernel(Stream* stream, std::function<void(bool)> run);
// Does what can be done on the stream, at most until the point is reached, and on others as far as
// it waits for them.
void advance(Stream* stream, const Point* until = nullptr);
// The same on every stream; true when something was done.
bool advance_all();
// Advances until nothing is left on the stream, or it is gone.
void finish(Stream* stream, std::unique_lock<std::mutex>& held);
// Returns the stream of a handle; null if there is none.
Stream* find(cudaStream_t stream);

cudaError_t say(cudaError_t status);  // returns the status, kept for cudaGetLastError
// For a call that a recording does not allow. If the stream's work is being recorded, spoils the
// recording and returns true: the call is to return cudaErrorStreamCaptureUnsupported.
bool spoils(Stream* stream);
void pass_time(int64_t events);  // called by work: later events are later by this many
int current_device();
// Whether [p, p + bytes) lies in one allocation on this device.
bool on_device(const void* p, size_t bytes, int device);

}  // namespace simulated
