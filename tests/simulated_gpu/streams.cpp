// Streams and events of the simulated GPU's runtime.
#include <cstdlib>
#include <memory>
#include <utility>

#include "tests/simulated_gpu/machine.h"

using namespace simulated;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const auto held = lock();
  auto* made = new Stream;
  made->device = current_device();
  machine().streams.insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr) return say(cudaErrorInvalidResourceHandle);
  finish(s, held);
  machine().streams.erase(s);
  delete s;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr) return say(cudaErrorInvalidResourceHandle);
  if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
  ++waits;
  finish(s, held);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr) return say(cudaErrorInvalidResourceHandle);
  if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
  advance(s);
  if (!s->queue.empty()) advance_all();
  return say(s->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

struct CUevent_st {
  std::shared_ptr<Point> point;
  int device = 0;
  unsigned flags = 0;
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{nullptr, current_device(), flags};
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr || s->device != event->device) return say(cudaErrorInvalidResourceHandle);
  if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
  auto point = std::make_shared<Point>(Point{s});
  event->point = point;
  put_done(s, [point] {
    point->done = true;
    point->time = ++machine().time;
  });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr) return say(cudaErrorInvalidResourceHandle);
  if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
  if (event->point == nullptr) return cudaSuccess;
  put(s, [point = event->point] {
    if (!point->done && machine().streams.contains(point->stream))
      advance(point->stream, point.get());
    return point->done;
  });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  auto held = lock();
  const auto point = event->point;
  if (point == nullptr) return cudaSuccess;
  while (!point->done) {
    if (machine().streams.contains(point->stream)) advance(point->stream, point.get());
    if (!point->done && !advance_all()) changed().wait(held);
  }
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto held = lock();
  const auto point = event->point;
  if (point == nullptr || point->done) return cudaSuccess;
  if (std::getenv("SIMULATED_GPU_BUSY") != nullptr) return say(cudaErrorNotReady);
  if (machine().streams.contains(point->stream)) advance(point->stream, point.get());
  return say(point->done ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  const auto held = lock();
  if (begin->point == nullptr || end->point == nullptr ||
      ((begin->flags | end->flags) & cudaEventDisableTiming) != 0)
    return say(cudaErrorInvalidResourceHandle);
  if (!begin->point->done || !end->point->done) return say(cudaErrorNotReady);
  *ms = 0.01f * static_cast<float>(end->point->time - begin->point->time);
  return cudaSuccess;
}
