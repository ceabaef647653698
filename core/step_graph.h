// StepGraph: a step's work on a GPU, recorded once as a CUDA graph and then started with one call,
// so that a small network does not wait for the host to start its kernels one by one. The same
// kernels run in the same order: recorded steps yield the same bits.
//
//   StepGraph graph(store);
//   optimizer.begin_step(lr);
//   Tensor loss = graph.run({images, labels}, [&](const std::vector<Tensor>& in) {
//     Tape tape;
//     Var loss = softmax_cross_entropy(tape, model.forward(tape, Var(in[0])), in[1]);
//     tape.backward(loss);
//     return std::vector<Tensor>{loss.value()};
//   })[0];
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "core/pool.h"

namespace heddle {

class StepGraph {
 public:
  // Receives the inputs on the device and returns the results of the step. It may neither wait for
  // the GPU nor read from it, and must begin with unwritten gradients (begin_step); everything that
  // changes from step to step has to be an input (see TapeOptions::counters).
  using Work = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

  // The store holds the parameters whose gradients the work writes, and must outlive the graph.
  // Without a GPU, every run just calls the work. on_failure is called once with the reason if the
  // work cannot be recorded; it may throw.
  explicit StepGraph(ParameterStore& store,
                     std::function<void(const std::string&)> on_failure = {});
  // Waits for the work that is still running.
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Calls the work until inputs have had the same shapes, types and layouts three times in a row,
  // since plans are made at their first use; the third time it is recorded. Later runs with inputs
  // of other shapes call it again, with memory of their own. Inputs may lie on the host. Returned
  // tensors stay valid until the next run, which overwrites them; they may be its inputs.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs, const Work& work);

  bool recorded() const { return executable_ != nullptr; }
  // Returns the bytes reserved for the graph.
  size_t bytes() const { return pool_ == nullptr ? 0 : pool_->bytes_reserved(); }
  // Returns why recording has failed, in which case every run calls the work; empty otherwise.
  const std::string& failure() const { return failure_; }

 private:
  static constexpr int kWarmUp = 2;

  void record(const std::vector<Tensor>& inputs, const Work& work);

  ParameterStore& store_;
  std::function<void(const std::string&)> on_failure_;
  std::vector<Form> forms_;  // of the last inputs; once recorded, of inputs_
  int repeated_ = -1;        // runs with these before the last
  std::string failure_;
  std::vector<Tensor> inputs_, outputs_;  // where the recorded work reads and writes
  std::vector<Parameter*> written_;       // whose gradients it writes
  // The graph's memory; declared before the graph, so that it is destroyed after it.
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<void> executable_;
};

}  // namespace heddle
