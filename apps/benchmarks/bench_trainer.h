// The training step that `bench` times: the network of one case, its optimizer and a random batch.
//
//   Trainer trainer(find_case("resnet20"), DType::f32, context.device());
//   float loss = trainer.step();
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "apps/benchmarks/bench.h"
#include "core/step_graph.h"
#include "core/tape.h"
#include "optim/data_parallel.h"

namespace heddle::bench {

class Trainer {
 public:
  // A communicator, which must outlive the trainer, makes it one of its learners.
  Trainer(const Case& c, DType dtype, Device device, Communicator* comm = nullptr);

  // Runs forward, loss, backward and update, and returns the loss. on_final is called when a
  // parameter's gradient is final. On a GPU, with neither a communicator nor on_final, the step is
  // recorded as a CUDA graph.
  float step(const std::function<void(Parameter&)>& on_final = {});

  // Returns a step's operations in units of 10^9: backward multiplies twice as often as forward.
  double gflop() const;
  ParameterStore& store() { return store_; }
  int64_t batch() const { return size_; }
  // Returns the GPU memory of the recorded step.
  size_t graph_bytes() const { return graph_.bytes(); }

 private:
  // Returns the loss of a batch, which holds all inputs of a step, on the device. Replaces the
  // network's state in it, if there is one, by the state after the step.
  using Forward = std::function<Var(Tape&, std::vector<Tensor>& batch)>;

  Forward make_images(const Case& c, DType dtype);
  Forward make_text(const Case& c, DType dtype);
  template <class AnyOptimizer>
  float step_with(AnyOptimizer& optimizer, const std::function<void(Parameter&)>& on_final);

  int64_t size_;
  int64_t steps_ = 0;
  ParameterStore store_;
  Forward forward_;  // holds the model
  std::vector<Tensor> batch_;
  std::unique_ptr<Optimizer> optimizer_;  // one of the two
  std::unique_ptr<DataParallelOptimizer> parallel_;
  StepGraph graph_{store_};
};

}  // namespace heddle::bench
