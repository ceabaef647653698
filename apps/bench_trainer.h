// What `bench` times: a network of one case, its optimizer and one batch of noise.
//
//   Trainer trainer(find_case("resnet20"), DType::f32, context.device());
//   float loss = trainer.step();
#pragma once

#include <functional>
#include <memory>

#include "apps/bench.h"
#include "core/tape.h"
#include "optim/data_parallel.h"

namespace heddle::bench {

class Trainer {
 public:
  // With a communicator, which must outlive this, as one of its learners.
  Trainer(const Case& c, DType dtype, Device device, Communicator* comm = nullptr);

  // Forward, loss, backward, update. on_final hears of every parameter's last contribution.
  float step(const std::function<void(Parameter&)>& on_final = {});

  // 10^9 operations of a step: backward multiplies twice as often as forward.
  double gflop() const;
  ParameterStore& store() { return store_; }
  int64_t batch() const { return batch_; }

 private:
  template <class AnyOptimizer>
  float step_with(AnyOptimizer& optimizer, const std::function<void(Parameter&)>& on_final);

  int64_t batch_;
  uint64_t steps_ = 0;
  ParameterStore store_;
  std::function<Var(Tape&)> loss_;        // forward; holds the model and the batch
  std::unique_ptr<Optimizer> optimizer_;  // one of the two
  std::unique_ptr<DataParallelOptimizer> parallel_;
};

}  // namespace heddle::bench
