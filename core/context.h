// Context: owns what would otherwise be global (memory pools, library handles, plan caches, the
// trace). It is made in main, one per learner, installs itself for the thread that made it, and is
// destroyed before main returns.
//
//   Context context({.device = parse_device("auto"), .threads = 2});
//   Tensor x = Tensor::empty({8, 8});   // from the pool of Context::current()
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/pool.h"
#include "core/streams.h"
#include "core/trace.h"

namespace heddle {

struct ContextOptions {
  Device device = {};
  int threads = 0;             // compute threads of this learner; 0: OpenMP's default
  bool tune = false;           // CUDA: times algorithms of convolutions and LSTMs, uses the fastest
  bool deterministic = false;  // algorithms by rule only, and reductions in a fixed order
  bool tf32 = false;           // CUDA: fp32 products may round their factors to 10 bits
};

class Context {
 public:
  // Becomes current on this thread until it is destroyed, on the same thread and before those that
  // were made earlier.
  explicit Context(const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The Context of the calling thread; throws Error when it has none.
  static Context& current();

  Device device() const { return options_.device; }
  int threads() const { return options_.threads; }
  const ContextOptions& options() const { return options_; }
  // Returns the pool of the host, or of this Context's GPU for the calling thread's stream. Throws
  // Error for any other device.
  std::shared_ptr<Pool> pool(Device device);
  // Host memory; pinned if this Context has a GPU.
  std::shared_ptr<Pool> pinned_pool() {
    return pinned_pool_ == nullptr ? host_pool_ : pinned_pool_;
  }
  // Sets the pool of device tensors of this Context's own thread and returns the previous one.
  std::shared_ptr<Pool> replace_device_pool(std::shared_ptr<Pool> pool) {
    const std::lock_guard lock(mutex_);
    return std::exchange(device_pools_[0], std::move(pool));
  }
  Trace& trace() { return trace_; }
  void trace_memory();  // records what the pools hold now

  // Returns the state of a backend or a layer (library handles, plan caches), made at first use and
  // destroyed with the Context, in reverse order of creation. Thread-safe.
  template <class T>
  T& state() {
    std::lock_guard lock(mutex_);
    auto& slot = states_[std::type_index(typeid(T))];
    if (slot == nullptr) {
      auto made = std::make_shared<T>();
      order_.push_back(made);
      slot = made.get();
    }
    return *static_cast<T*>(slot);
  }

 private:
  friend class ContextScope;
  ContextOptions options_;
  Context* previous_ = nullptr;
  int previous_threads_;
  std::shared_ptr<Pool> host_pool_, pinned_pool_;
  std::array<std::shared_ptr<Pool>, kStreamUses> device_pools_;  // by stream, made at first use
  Trace trace_;
  std::mutex mutex_;
  std::map<std::type_index, void*> states_;
  std::vector<std::shared_ptr<void>> order_;
};

// Makes a Context current on another thread for the lifetime of this object.
class ContextScope {
 public:
  explicit ContextScope(Context& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  Context* previous_;
  int previous_threads_;
};

}  // namespace heddle
