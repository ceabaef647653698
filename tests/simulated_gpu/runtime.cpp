// The simulated GPU's CUDA runtime.
#include <cuda_profiler_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tests/simulated_gpu/machine.h"

namespace simulated {

// Never destroyed: other static objects may give memory back late.
Machine& machine() {
  static Machine& one = *new Machine;
  return one;
}

namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
constexpr size_t kHugePage = size_t{2} << 20, kAlign = 256;

size_t number_of(const char* variable, size_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoul(text, nullptr, 10);
}

int devices() { return static_cast<int>(number_of("SIMULATED_GPUS", 2)); }
size_t device_bytes() { return number_of("SIMULATED_GPU_MIB", 4096) << 20; }

void set_rights(const Allocation& a, int rights) {
  if (mprotect(a.mapped, a.usable, rights) != 0) std::abort();
}

// With as many allocations as there are without a pool it would take too long.
bool guarded() { return std::getenv("HEDDLE_NO_POOL") == nullptr; }

// While one lives, the devices' memory can be read and written.
class Rights {
 public:
  Rights() {
    Machine& m = machine();
    if (m.open++ == 0 && guarded())
      for (const auto& [p, a] : m.memory) set_rights(a, PROT_READ | PROT_WRITE);
  }
  ~Rights() {
    Machine& m = machine();
    if (--m.open == 0 && guarded())
      for (const auto& [p, a] : m.memory) set_rights(a, PROT_NONE);
  }
  Rights(const Rights&) = delete;
  Rights& operator=(const Rights&) = delete;
};

thread_local int chosen_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

std::unique_lock<std::mutex> lock() { return std::unique_lock(machine().mutex); }
std::condition_variable& changed() { return machine().changed; }
int current_device() { return chosen_device; }

cudaError_t say(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

bool spoils(Stream* stream) {
  if (stream->recording == nullptr) return false;
  stream->spoiled = true;
  (void)say(cudaErrorStreamCaptureUnsupported);
  return true;
}

void pass_time(int64_t events) { machine().time += events; }

Stream* find(cudaStream_t stream) {
  auto* s = reinterpret_cast<Stream*>(stream);
  return machine().streams.contains(s) ? s : nullptr;
}

std::atomic<int64_t> work_started = 0, waits = 0;

static void put(Stream* stream, Stream::Entry entry) {
  ++work_started;
  if (stream->recording != nullptr) return stream->recording->push_back(std::move(entry));
  stream->queue.push_back(std::move(entry));
  changed().notify_all();
}

void put(Stream* stream, Work work) { put(stream, Stream::Entry{std::move(work), false}); }

void put_done(Stream* stream, std::function<void()> work) {
  const auto done = [work = std::move(work)] {
    work();
    return true;
  };
  put(stream, Stream::Entry{done, true});
}

void advance(Stream* stream, const Point* until) {
  if (stream->running || stream->queue.empty()) return;
  std::optional<Rights> rights;
  const uint64_t before = machine().done;
  stream->running = true;
  while (!stream->queue.empty() && !(until != nullptr && until->done)) {
    const Stream::Entry& next = stream->queue.front();
    if (next.touches && !rights) rights.emplace();
    if (!next.work()) break;
    stream->queue.pop_front();
    ++machine().done;
  }
  stream->running = false;
  if (machine().done != before) changed().notify_all();
}

void with_rights(const std::function<void()>& call) {
  const Rights rights;
  call();
}

bool advance_all() {
  const uint64_t before = machine().done;
  const std::vector<Stream*> all(machine().streams.begin(), machine().streams.end());
  for (Stream* s : all) advance(s);
  return machine().done != before;
}

void finish(Stream* stream, std::unique_lock<std::mutex>& held) {
  const auto left = [&] { return machine().streams.contains(stream) && !stream->queue.empty(); };
  while (left()) {
    advance(stream);
    if (left() && !advance_all() && left()) changed().wait(held);
  }
}

bool on_device(const void* p, size_t bytes, int device) {
  const auto& memory = machine().memory;
  auto* begin = static_cast<char*>(const_cast<void*>(p));
  auto next = memory.upper_bound(begin);
  if (next == memory.begin()) return false;
  --next;
  return next->second.device == device && begin + bytes <= next->first + next->second.bytes;
}

void put_kernel(Stream* stream, std::function<void(bool)> run) {
  put_done(stream, [run = std::move(run)] { run(machine().backwards = !machine().backwards); });
}

}  // namespace simulated

using namespace simulated;

// ---------------------------------------------------------------------------------------- devices
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return say(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return say(cudaErrorInvalidDevice);
  chosen_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= devices()) return say(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    default:
      return say(cudaErrorInvalidValue);
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  if (device < 0 || device >= devices()) return say(cudaErrorInvalidDevice);
  std::snprintf(name, static_cast<size_t>(length), "simulated:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = devices() > 0 ? CUDART_VERSION : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "another error";
  }
}

// ----------------------------------------------------------------------------------------- memory
cudaError_t cudaMalloc(void** p, size_t bytes) {
  const auto held = lock();
  Machine& m = machine();
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  size_t& used = m.used[chosen_device];
  Allocation a;
  a.bytes = (bytes + kAlign - 1) / kAlign * kAlign;
  if (bytes > device_bytes() || used + a.bytes > device_bytes())
    return say(cudaErrorMemoryAllocation);
  // Large ones in huge pages, whose rights change faster.
  const size_t page = a.bytes >= kHugePage ? kHugePage : kPage;
  a.usable = (a.bytes + page - 1) / page * page;
  a.mapped_bytes = a.usable + 2 * page;
  a.device = chosen_device;
  void* mapped = mmap(nullptr, a.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return say(cudaErrorMemoryAllocation);
  const size_t skipped = page - reinterpret_cast<size_t>(mapped) % page;
  munmap(mapped, skipped);
  a.mapped = static_cast<char*>(mapped) + skipped;
  a.mapped_bytes -= skipped;
  if (page == kHugePage) (void)madvise(a.mapped, a.usable, MADV_HUGEPAGE);
  set_rights(a, PROT_READ | PROT_WRITE);
  std::memset(a.mapped, 0xff, a.usable);
  char* begin = a.mapped + a.usable - a.bytes;  // it ends where a page ends
  used += a.bytes;
  m.memory.emplace(begin, a);
  if (m.open == 0 && guarded()) set_rights(a, PROT_NONE);
  *p = begin;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  auto held = lock();
  if (p == nullptr) return cudaSuccess;
  Machine& m = machine();
  auto found = m.memory.find(static_cast<char*>(p));
  if (found == m.memory.end()) return say(cudaErrorInvalidValue);
  const std::vector<Stream*> all(m.streams.begin(), m.streams.end());
  for (Stream* s : all)
    if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
  // Waits for the whole device first, as CUDA's runtime does.
  for (Stream* s : all)
    if (m.streams.contains(s) && s->device == found->second.device) finish(s, held);
  m.used[found->second.device] -= found->second.bytes;
  munmap(found->second.mapped, found->second.mapped_bytes);
  m.memory.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  const auto held = lock();
  *p = nullptr;
  if (bytes <= number_of("SIMULATED_PINNED_MIB", 4096) << 20)
    *p = std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  if (*p == nullptr) return say(cudaErrorMemoryAllocation);
  machine().pinned.emplace(static_cast<char*>(*p), bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* p) {
  const auto held = lock();
  if (machine().pinned.erase(static_cast<char*>(p)) == 0) return say(cudaErrorInvalidValue);
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* left, size_t* all) {
  const auto held = lock();
  *all = device_bytes();
  *left = *all - machine().used[chosen_device];
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr) return say(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  const auto somewhere = [&](const void* p) {
    for (int d = 0; d < devices(); ++d)
      if (on_device(p, bytes, d)) return true;
    return false;
  };
  const bool to_host = !somewhere(to), from_host = !somewhere(from);
  const bool wrong_way = (kind == cudaMemcpyDeviceToHost && (!to_host || from_host)) ||
                         (kind == cudaMemcpyHostToDevice && (to_host || !from_host)) ||
                         (kind == cudaMemcpyDeviceToDevice && (to_host || from_host));
  if ((to_host && from_host) || wrong_way) return say(cudaErrorInvalidValue);
  if ((to_host || from_host) && spoils(s)) return cudaErrorStreamCaptureUnsupported;
  // Reads host memory when its turn comes, which CUDA may do for pageable memory, too.
  put_done(s, [to, from, bytes] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr) return say(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!on_device(p, bytes, s->device)) return say(cudaErrorInvalidValue);
  put_done(s, [p, value, bytes] { std::memset(p, value, bytes); });
  return cudaSuccess;
}
