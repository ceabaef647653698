// Runs CUDA kernels on the CPU, so that their text is tested where no GPU is at hand. Blocks run
// one after the other; the threads of a block are fibers that take turns at __syncthreads. Include
// this first, then the .cu files: their functions come out in namespace heddle::emulated and work
// on host tensors. Kernels may use what core/launch.h says and nothing else.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define HEDDLE_EMULATED 1
#define __global__
#define __device__
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace heddle::emulation {

inline dim3 block_index, thread_index, grid_size, block_size;

class Fibers {
 public:
  // Calls thread(index) for every thread of a block; between two barriers in the order of indices.
  void run(size_t count, const std::function<void(size_t)>& thread) {
    thread_ = &thread;
    while (fibers_.size() < count) {
      fibers_.push_back(std::make_unique<Fiber>());
      fibers_.back()->stack.resize(kStack);
    }
    for (size_t i = 0; i < count; ++i) start(i);
    for (bool alive = true; alive;) {
      alive = false;
      for (size_t i = 0; i < count; ++i) {
        if (fibers_[i]->done) continue;
        current_ = i;
        swapcontext(&scheduler_, &fibers_[i]->context);
        alive = alive || !fibers_[i]->done;
      }
    }
  }
  // Ends the turn of the running fiber.
  void wait() {
    const size_t mine = current_;
    const dim3 thread = thread_index;
    swapcontext(&fibers_[mine]->context, &scheduler_);
    thread_index = thread;
  }
  static Fibers& instance() {
    static Fibers fibers;
    return fibers;
  }

 private:
  static constexpr size_t kStack = 65536;
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
  };
  static void enter() {
    Fibers& self = instance();
    const size_t i = self.current_;
    (*self.thread_)(i);
    self.fibers_[i]->done = true;
  }
  void start(size_t i) {
    Fiber& fiber = *fibers_[i];
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, enter, 0);
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  const std::function<void(size_t)>* thread_ = nullptr;
  ucontext_t scheduler_{};
  size_t current_ = 0;
};

}  // namespace heddle::emulation

#define blockIdx heddle::emulation::block_index
#define threadIdx heddle::emulation::thread_index
#define gridDim heddle::emulation::grid_size
#define blockDim heddle::emulation::block_size
#define __syncthreads() heddle::emulation::Fibers::instance().wait()

namespace heddle {

template <class... Params, class... Args>
void launch(const char*, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  using namespace emulation;
  grid_size = grid;
  block_size = block;
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      block_index = dim3(x, y);
      Fibers::instance().run(size_t{block.x} * block.y, [&](size_t i) {
        thread_index = dim3(static_cast<unsigned>(i) % block.x, static_cast<unsigned>(i) / block.x);
        kernel(static_cast<Params>(args)...);
      });
    }
}

inline uint32_t atomicAdd(uint32_t* to, uint32_t value) {
  const uint32_t before = *to;
  *to += value;
  return before;
}

inline void fetch(void* host, const void* device, size_t bytes) {
  std::memcpy(host, device, bytes);
}

}  // namespace heddle
