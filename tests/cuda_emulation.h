// Runs CUDA kernels on the CPU, so that their code is tested without a GPU. Blocks run one after
// the other; the threads of a block are fibers that switch at __syncthreads. Include this first,
// then the .cu files: their functions end up in namespace heddle::emulated and work on host
// tensors. Kernels may use what core/launch.h allows and nothing else.
//
// With HEDDLE_SIMULATED_GPU the functions end up in heddle::cuda instead, and a kernel is queued on
// the stream of a simulated GPU (tests/simulated_gpu), which runs it when its turn comes.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#ifdef HEDDLE_SIMULATED_GPU
#include <vector_types.h>  // dim3, and the words below as attributes
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
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __global__
#define __device__
#define __shared__ static

namespace heddle::emulation {

inline dim3 block_index, thread_index, grid_size, block_size;

// Where a fiber, or its scheduler, resumes.
struct Place {
  ucontext_t context{};
#ifdef HEDDLE_SIMULATED_GPU
  jmp_buf saved{};
  bool left = false;
#endif
};

inline void go(Place& from, Place& to) {
#ifdef HEDDLE_SIMULATED_GPU
  // swapcontext makes a system call for the signal mask each time, which takes longer than all
  // else that a kernel does here. Sanitizers and _FORTIFY_SOURCE reject longjmp between stacks.
  from.left = true;
  if (_setjmp(from.saved) != 0) return;
  if (to.left) _longjmp(to.saved, 1);
  setcontext(&to.context);
#else
  swapcontext(&from.context, &to.context);
#endif
}

class Fibers {
 public:
  // Calls thread(index) for every thread of a block; between two barriers in the order of indices,
  // or in the opposite order: a kernel must not care.
  void run(size_t count, bool backwards, const std::function<void(size_t)>& thread) {
    thread_ = &thread;
    while (fibers_.size() < count) add();
    for (size_t i = 0; i < count; ++i) fibers_[i]->done = false;
    for (bool alive = true; alive;) {
      alive = false;
      for (size_t turn = 0; turn < count; ++turn) {
        const size_t i = backwards ? count - 1 - turn : turn;
        if (fibers_[i]->done) continue;
        current_ = i;
        go(scheduler_, fibers_[i]->place);
        alive = alive || !fibers_[i]->done;
      }
    }
  }
  // Ends the turn of the running fiber.
  void wait() {
    const dim3 thread = thread_index;
    go(fibers_[current_]->place, scheduler_);
    thread_index = thread;
  }
  static Fibers& instance() {
    static Fibers fibers;
    return fibers;
  }

 private:
  static constexpr size_t kStack = 65536;
  struct Fiber {
    Place place;
    std::vector<char> stack;
    bool done = false;
  };
  // A fiber runs the thread of its index in one block after another.
  static void enter() {
    Fibers& self = instance();
    for (const size_t i = self.current_;;) {
      (*self.thread_)(i);
      self.fibers_[i]->done = true;
      go(self.fibers_[i]->place, self.scheduler_);
    }
  }
  void add() {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    fiber.stack.resize(kStack);
    getcontext(&fiber.place.context);
    fiber.place.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.place.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.place.context, enter, 0);
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  const std::function<void(size_t)>* thread_ = nullptr;
  Place scheduler_;
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
// Queues a kernel on the current Context's stream; throws Error for a shape that no GPU accepts.
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
