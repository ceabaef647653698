// CUDA graphs of the simulated GPU: a stream's recorded work, queued again at each launch.
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulated_gpu/device.h"

using namespace simulated;

struct CUgraph_st {
  std::shared_ptr<std::vector<Stream::Entry>> work;
  int device = 0;
};
struct CUgraphExec_st : CUgraph_st {};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr || s->recording != nullptr) return say(cudaErrorInvalidResourceHandle);
  s->recording = std::make_shared<std::vector<Stream::Entry>>();
  s->spoiled = false;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr) return say(cudaErrorInvalidResourceHandle);
  *status = s->recording == nullptr ? cudaStreamCaptureStatusNone
            : s->spoiled            ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto held = lock();
  *graph = nullptr;
  Stream* s = find(stream);
  if (s == nullptr || s->recording == nullptr) return say(cudaErrorInvalidResourceHandle);
  const auto work = std::exchange(s->recording, nullptr);
  if (s->spoiled) return say(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{work, s->device};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph,
                                          unsigned long long) {
  *made = new CUgraphExec_st{*graph};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr || s->device != graph->device) return say(cudaErrorInvalidResourceHandle);
  if (spoils(s)) return cudaErrorStreamCaptureUnsupported;
  for (const Stream::Entry& entry : *graph->work) s->queue.push_back(entry);
  changed().notify_all();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
