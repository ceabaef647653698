#include "core/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "core/error.h"

#ifdef HEDDLE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace heddle {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMinSegment = size_t{32} << 20;

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

#ifdef HEDDLE_CUDA
// Allocates device memory or pinned host memory. Returns null when there is none left.
void* cuda_allocate(bool on_device, size_t bytes) {
  void* p = nullptr;
  const cudaError_t status = on_device ? cudaMalloc(&p, bytes) : cudaMallocHost(&p, bytes);
  if (status == cudaSuccess) return p;
  (void)cudaGetLastError();
  return nullptr;
}

void cuda_release(bool on_device, void* p) { (void)(on_device ? cudaFree(p) : cudaFreeHost(p)); }
#endif

// Allocates huge pages from the system: bytes is a multiple of kHugePage. Returns null when there
// are none.
void* map_pages(size_t bytes) {
  // Map one huge page more than needed and return the unaligned ends.
  void* mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(begin), kHugePage));
  if (aligned > begin) munmap(begin, aligned - begin);
  const size_t tail = kHugePage - (aligned - begin);
  if (tail > 0) munmap(aligned + bytes, tail);
  (void)madvise(aligned, bytes, MADV_HUGEPAGE);  // advice: refusal costs speed only
  return aligned;
}

// Returns what is left, and how to need less.
std::string advice(Device device) {
#ifdef HEDDLE_CUDA
  size_t left = 0, all = 0;
  if (device.is_cuda() && cudaMemGetInfo(&left, &all) == cudaSuccess)
    return concat("; ", left >> 20, " of the card's ", all >> 20,
                  " MiB are free: lower --batch-size, or use --precision bf16");
#endif
  return device.is_cuda() ? ""
                          : concat("; ", available_memory() >> 20,
                                   " MiB are left on this machine: lower --batch-size, or train "
                                   "with fewer learners here");
}

}  // namespace

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  int64_t kib = 0, available = -1, swap = 0;
  for (std::string name, unit; file >> name >> kib && std::getline(file, unit);) {
    if (name == "MemAvailable:") available = kib;
    if (name == "SwapFree:") swap = kib;
  }
  return available >= 0 ? (available + swap) << 10 : std::numeric_limits<int64_t>::max();
}

Pool::Pool(Device device, bool caching, bool pinned)
    : device_(device), caching_(caching), pinned_(pinned) {}

bool Pool::keeps_blocks() {
  static const bool keeps = std::getenv("HEDDLE_NO_POOL") == nullptr;
  return keeps;
}

Pool::~Pool() {
  for (auto [p, bytes] : segments_) give_back(p, bytes);
}

// Allocates a segment or, without caching, a block. Returns null when there is no memory.
void* Pool::take(size_t bytes) const {
#ifdef HEDDLE_CUDA
  if (device_.is_cuda() || pinned_) return cuda_allocate(device_.is_cuda(), bytes);
#endif
  if (bytes >= kMinSegment && bytes > static_cast<size_t>(available_memory())) return nullptr;
  if (caching_) return map_pages(bytes);
  void* p = nullptr;
  return posix_memalign(&p, kAlign, bytes) == 0 ? p : nullptr;
}

void Pool::give_back(void* p, size_t bytes) const noexcept {
#ifdef HEDDLE_CUDA
  if (device_.is_cuda() || pinned_) return cuda_release(device_.is_cuda(), p);
#endif
  if (caching_)
    munmap(p, bytes);
  else
    std::free(p);
}

void Pool::refuse(size_t bytes) const {
  throw Error(concat("out of memory on ", to_string(device_), ": asked for ", bytes >> 20,
                     " MiB with ", reserved_ >> 20, " MiB in the pool", advice(device_)));
}

void Pool::grow(size_t bytes) {
  const size_t size = round_up(std::max(bytes, kMinSegment), kHugePage);
  void* p = take(size);
  if (p == nullptr) refuse(size);
  segments_.emplace_back(p, size);
  segment_starts_.insert(static_cast<char*>(p));
  reserved_ += size;
  free_by_size_.emplace(size, static_cast<char*>(p));
  free_by_address_.emplace(static_cast<char*>(p), size);
}

void* Pool::allocate(size_t bytes) {
  if (bytes > (size_t{1} << 48)) throw Error(concat("out of memory: asked for ", bytes, " bytes"));
  std::lock_guard lock(mutex_);
  if (!caching_) {
    void* p = take(std::max<size_t>(bytes, 1));
    if (p == nullptr) refuse(bytes);
    used_.emplace(static_cast<char*>(p), bytes);
    reserved_ = in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return p;
  }
  const size_t size = round_up(std::max<size_t>(bytes, 1), kAlign);
  auto best = free_by_size_.lower_bound({size, nullptr});
  if (best == free_by_size_.end()) {
    grow(size);
    best = free_by_size_.lower_bound({size, nullptr});
  }
  auto [block_size, p] = *best;
  free_by_size_.erase(best);
  free_by_address_.erase(p);
  if (block_size > size) {
    free_by_size_.emplace(block_size - size, p + size);
    free_by_address_.emplace(p + size, block_size - size);
  }
  used_.emplace(p, size);
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  return p;
}

void Pool::release(void* block) noexcept {
  std::lock_guard lock(mutex_);
  auto found = used_.find(static_cast<char*>(block));
  if (found == used_.end()) return;
  char* p = found->first;
  size_t size = found->second;
  used_.erase(found);
  in_use_ -= size;
  if (!caching_) {
    reserved_ = in_use_;
    give_back(p, size);
    return;
  }
  // Join with the free neighbours, but never across segments.
  auto next = free_by_address_.lower_bound(p);
  if (next != free_by_address_.end() && p + size == next->first &&
      !segment_starts_.contains(next->first)) {
    free_by_size_.erase({next->second, next->first});
    size += next->second;
    next = free_by_address_.erase(next);
  }
  if (next != free_by_address_.begin() && !segment_starts_.contains(p)) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == p) {
      free_by_size_.erase({previous->second, previous->first});
      p = previous->first;
      size += previous->second;
      free_by_address_.erase(previous);
    }
  }
  free_by_size_.emplace(size, p);
  free_by_address_.emplace(p, size);
}

void Pool::trim() {
  std::lock_guard lock(mutex_);
  std::erase_if(segments_, [&](const auto& segment) {
    auto [p, bytes] = segment;
    const auto found = free_by_address_.find(static_cast<char*>(p));
    if (found == free_by_address_.end() || found->second != bytes) return false;
    free_by_size_.erase({bytes, found->first});
    segment_starts_.erase(found->first);
    free_by_address_.erase(found);
    reserved_ -= bytes;
    give_back(p, bytes);
    return true;
  });
}

size_t Pool::read(const size_t& counter) const {
  std::lock_guard lock(mutex_);
  return counter;
}

void Pool::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_ = in_use_;
}

}  // namespace heddle
