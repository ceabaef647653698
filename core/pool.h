// A caching memory pool. Freed blocks stay with the pool and merge with adjacent free blocks, so
// that a training step allocates nothing from the system after the first one. Best fit, 256-byte
// aligned. CPU segments are 2 MiB aligned and marked for huge pages: page faults and TLB misses
// otherwise cost a third of the speed of Winograd convolutions. Thread-safe.
//
//   segment   |  used  |   free   | used |      free       |    32 MiB or more from the system
//   release             |  free merged with both neighbours |    never across two segments
//
// With HEDDLE_NO_POOL in the environment every block is allocated by the system and returned to it,
// so that AddressSanitizer and compute-sanitizer see where each begins and ends; slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/device.h"

namespace heddle {

// Returns the bytes of memory, swap included, that programs of this machine can still get; the
// largest number if the system does not say. A control group's limit is not considered.
int64_t available_memory();

class Pool {
 public:
  // pinned: host memory that GPUs read at full speed, in a build with CUDA.
  explicit Pool(Device device, bool caching = keeps_blocks(), bool pinned = false);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  static bool keeps_blocks();  // unless HEDDLE_NO_POOL is set

  // Returns at least `bytes` bytes, 256-byte aligned and uninitialised, never null. Throws Error
  // when memory is exhausted, on a CPU also for more than the machine has left. On a GPU the
  // block may still be in use by earlier work of the same stream.
  void* allocate(size_t bytes);
  void release(void* block) noexcept;  // a block of allocate(), once
  // Returns segments without a used block to the system.
  void trim();

  Device device() const { return device_; }
  bool pinned() const { return pinned_; }
  size_t bytes_in_use() const { return read(in_use_); }
  size_t peak_bytes_in_use() const { return read(peak_); }
  size_t bytes_reserved() const { return read(reserved_); }  // from the system
  void reset_peak();

 private:
  using Block = std::pair<size_t, char*>;  // size, address: best fit is lower_bound

  size_t read(const size_t& counter) const;  // under the lock
  void* take(size_t bytes) const;
  void give_back(void* p, size_t bytes) const noexcept;
  void grow(size_t bytes);
  [[noreturn]] void refuse(size_t bytes) const;

  Device device_;
  bool caching_, pinned_;
  mutable std::mutex mutex_;
  std::set<Block> free_by_size_;
  std::map<char*, size_t> free_by_address_;
  std::map<char*, size_t> used_;
  std::vector<std::pair<void*, size_t>> segments_;
  std::set<char*> segment_starts_;
  size_t in_use_ = 0, peak_ = 0, reserved_ = 0;
};

}  // namespace heddle
