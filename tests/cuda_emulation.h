// Runs CUDA kernels on the CPU, so that their code is tested without a GPU. Blocks run one after
// the other; the threads of a block are fibers that switch at __syncthreads. Include this first,
// then the .cu files: their functions end up in namespace heddle::emulated and work on host
// tensors. Kernels may use what core/launch.h allows and nothing else.
//
// With HEDDLE_SIMULATED_GPU the functions end up in heddle::cuda instead, and a kernel is queued on
// the stream of a simulated GPU (tests/simulated_gpu), which runs it when its turn comes.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#ifdef HEDDLE_SIMULATED_GPU
#include <vector_types.h>  // dim3, and these words as attributes
#undef __global__
#undef __device__
#undef __shared__
#define HEDDLE_EMULATED cuda
#else
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define HEDDLE_EMULATED emulated
#endif
#define __global__
#define __device__
#define __shared__ static

namespace heddle::emulation {

inline dim3 block_index, thread_index, grid_size, block_size;

class Fibers {
 public:
  // Calls thread(index) for every thread of a block; between two barriers in the order of indices,
  // or in the opposite order: a kernel must not care.
  void run(size_t count, bool backwards, const std::function<void(size_t)>& thread) {
    thread_ = &thread;
    while (fibers_.size() < count) {
      fibers_.push_back(std::make_unique<Fiber>());
      fibers_.back()->stack.resize(kStack);
    }
    for (size_t i = 0; i < count; ++i) start(i);
    for (bool alive = true; alive;) {
      alive = false;
      for (size_t turn = 0; turn < count; ++turn) {
        const size_t i = backwards ? count - 1 - turn : turn;
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

// Calls thread() with the indices set for each thread of each block.
inline void run_kernel(dim3 grid, dim3 block, bool backwards, bool barriers,
                       const std::function<void()>& thread) {
  grid_size = grid;
  block_size = block;
  const size_t blocks = size_t{grid.x} * grid.y, threads = size_t{block.x} * block.y;
  const auto run = [&](size_t i) {
    thread_index = dim3(static_cast<unsigned>(i) % block.x, static_cast<unsigned>(i) / block.x);
    thread();
  };
  for (size_t turn = 0; turn < blocks; ++turn) {
    const auto b = static_cast<unsigned>(backwards ? blocks - 1 - turn : turn);
    block_index = dim3(b % grid.x, b / grid.x);
    if (barriers)
      Fibers::instance().run(threads, backwards, run);
    else
      for (size_t i = 0; i < threads; ++i) run(backwards ? threads - 1 - i : i);
  }
}

#ifdef HEDDLE_SIMULATED_GPU
// Puts a kernel on the stream of the current Context; throws Error for a shape that no GPU takes.
void enqueue(const char* name, dim3 grid, dim3 block, std::function<void(bool backwards)> run);
#endif

}  // namespace heddle::emulation

#define blockIdx heddle::emulation::block_index
#define threadIdx heddle::emulation::thread_index
#define gridDim heddle::emulation::grid_size
#define blockDim heddle::emulation::block_size
#define __syncthreads() heddle::emulation::Fibers::instance().wait()

namespace heddle {
// A program may hold the same functions for a GPU, too.
inline namespace emulated_launches {

#ifdef HEDDLE_SIMULATED_GPU
void fetch(void* host, const void* device, size_t bytes);
#endif

template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  // for_each has no barriers, and fibers are slow.
  const bool barriers = std::strcmp(name, "for_each") != 0;
  const auto run = [=](bool backwards) {
    emulation::run_kernel(grid, block, backwards, barriers,
                          [&] { kernel(static_cast<Params>(args)...); });
  };
#ifdef HEDDLE_SIMULATED_GPU
  emulation::enqueue(name, grid, block, run);
#else
  static bool backwards = false;
  run(backwards = !backwards);
#endif
}

inline uint32_t atomicAdd(uint32_t* to, uint32_t value) {
  const uint32_t before = *to;
  *to += value;
  return before;
}

#ifndef HEDDLE_SIMULATED_GPU
inline void fetch(void* host, const void* device, size_t bytes) {
  std::memcpy(host, device, bytes);
}
#endif

}  // namespace emulated_launches
}  // namespace heddle
