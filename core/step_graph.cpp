#include "core/step_graph.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/context.h"
#include "core/streams.h"

#ifdef HEDDLE_CUDA
#include "core/cuda.h"
#endif

namespace heddle {

StepGraph::StepGraph(ParameterStore& store, std::function<void(const std::string&)> on_failure)
    : store_(store), on_failure_(std::move(on_failure)) {}

#ifdef HEDDLE_CUDA
namespace {

// Makes tensors on the device come from a pool during the lifetime of this object.
class PoolScope {
 public:
  explicit PoolScope(const std::shared_ptr<Pool>& pool)
      : previous_(Context::current().replace_device_pool(pool)) {}
  ~PoolScope() { Context::current().replace_device_pool(previous_); }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  std::shared_ptr<Pool> previous_;
};

// Records the work that the calling thread puts on its stream, instead of doing it, until finish();
// without finish() the destructor ends the recording and discards it.
class Capture {
 public:
  // Relaxed: the pool may ask for memory.
  Capture() : stream_(cuda_stream()) {
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
               "cudaStreamBeginCapture");
  }
  ~Capture() {
    if (!open_) return;
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();  // clears the error of the failed work, or of the capture it ended
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  std::shared_ptr<void> finish() {
    open_ = false;
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t made = nullptr;
    const cudaError_t status = cudaGraphInstantiateWithFlags(&made, graph, 0);
    (void)cudaGraphDestroy(graph);
    check_cuda(status, "cudaGraphInstantiate");
    return {made, [](void* g) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)); }};
  }

 private:
  cudaStream_t stream_;
  bool open_ = true;
};

}  // namespace

StepGraph::~StepGraph() {
  if (recorded()) (void)cudaStreamSynchronize(cuda_stream());
}

void StepGraph::record(const std::vector<Tensor>& inputs, const Work& work) {
  const Device device = Context::current().device();
  for (const Parameter& p : store_.parameters())
    check(!p.written, "step graph: ", p.name, " has a gradient before the step");
  try {
    // The steps so far have left about as much memory in the Context's pool as the graph needs.
    Context::current().pool(device)->trim();
    pool_ = std::make_shared<Pool>(device, true);
    const PoolScope scope(pool_);
    for (const Tensor& x : inputs) inputs_.push_back(x.to(device).clone());
    Capture capture;
    outputs_ = work(inputs_);
    executable_ = capture.finish();
    for (Parameter& p : store_.parameters())
      if (p.written) written_.push_back(&p);
  } catch (const std::exception& e) {
    (void)cudaGetLastError();
    failure_ = e.what();
    inputs_.clear();
    outputs_.clear();
    pool_.reset();
    for (Parameter& p : store_.parameters()) p.written = false;
    if (on_failure_) on_failure_(failure_);
  }
}

std::vector<Tensor> StepGraph::run(const std::vector<Tensor>& inputs, const Work& work) {
  const Device device = Context::current().device();
  std::vector<Form> forms;
  forms.reserve(inputs.size());
  for (const Tensor& x : inputs) forms.push_back(x.form());
  if (device.is_cuda() && !recorded() && failure_.empty()) {
    repeated_ = forms == std::exchange(forms_, forms) ? repeated_ + 1 : 0;
    if (repeated_ == kWarmUp) record(inputs, work);
  }
  if (!recorded() || forms != forms_) {
    std::vector<Tensor> here;
    here.reserve(inputs.size());
    for (const Tensor& x : inputs) here.push_back(x.to(device));
    return work(here);
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].raw() != inputs_[i].raw()) inputs_[i].copy_from(inputs[i]);
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_.get()), cuda_stream()),
             "cudaGraphLaunch");
  for (Parameter* p : written_) p->written = true;
  return outputs_;
}
#else
StepGraph::~StepGraph() = default;

std::vector<Tensor> StepGraph::run(const std::vector<Tensor>& inputs, const Work& work) {
  return work(inputs);
}
#endif

}  // namespace heddle
