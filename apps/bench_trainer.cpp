#include "apps/bench_trainer.h"

#include "core/kernels.h"
#include "core/parallel.h"
#include "core/random.h"
#include "layers/loss.h"
#include "layers/lstm_lm.h"
#include "layers/resnet.h"

namespace heddle::bench {
namespace {

constexpr double kRate = 0.01;

std::function<Var(Tape&)> make_images(const Case& c, DType dtype, Device device,
                                      ParameterStore& store) {
  const auto model = std::make_shared<ResNet>(
      store, ResNetOptions{.arch = c.arch, .classes = c.classes, .stem = c.stem});
  const Philox noise(1, stream_id(Stream::sample));
  const Tensor host = Tensor::empty_on(Device{}, {c.batch, 3, c.image_size, c.image_size});
  const Tensor labels = Tensor::empty_on(Device{}, {c.batch}, DType::i32);
  float* x = host.data<float>();
  parallel_for(host.size(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] = noise.normal(static_cast<uint64_t>(i));
  });
  for (int64_t i = 0; i < c.batch; ++i)
    labels.data<int32_t>()[i] = static_cast<int32_t>(i % c.classes);
  return [model, dtype, labels, images = host.to(device)](Tape& tape) {
    const Var x(converted(images, dtype, Layout::plain));
    return softmax_cross_entropy(tape, model->forward(tape, x), labels);
  };
}

// The state goes on from step to step, as in training.
std::function<Var(Tape&)> make_text(const Case& c, DType dtype, ParameterStore& store) {
  const auto model = std::make_shared<LstmLm>(store, LstmLmOptions{.vocabulary = c.vocabulary,
                                                                   .emsize = c.emsize,
                                                                   .nhid = c.nhid,
                                                                   .nlayers = c.nlayers,
                                                                   .dropout = c.dropout,
                                                                   .dtype = dtype});
  auto tokens = [&](uint64_t key) {
    const Philox noise(1, stream_id(Stream::sample, key));
    const Tensor out = Tensor::empty_on(Device{}, {c.bptt, c.batch}, DType::i32);
    for (int64_t i = 0; i < out.size(); ++i)
      out.data<int32_t>()[i] = static_cast<int32_t>(
          noise.below(static_cast<uint64_t>(i), static_cast<uint32_t>(c.vocabulary)));
    return out;
  };
  const auto state = std::make_shared<LstmState>();
  return [model, state, inputs = tokens(0), targets = tokens(1)](Tape& tape) {
    if (!state->h.defined()) *state = model->zero_state(inputs.shape()[1]);
    const Var logits = model->forward(tape, inputs, *state);
    return softmax_cross_entropy(tape, logits, targets, {.overwrite_logits = true});
  };
}

}  // namespace

Trainer::Trainer(const Case& c, DType dtype, Device device, Communicator* comm) : batch_(c.batch) {
  loss_ = c.is_text() ? make_text(c, dtype, store_) : make_images(c, dtype, device, store_);
  store_.finalize(1);
  const SgdOptions rule{.momentum = c.momentum, .weight_decay = c.weight_decay};
  const OptimizerOptions options{.clip_grad_norm = c.clip};
  if (comm != nullptr)
    parallel_ = std::make_unique<DataParallelOptimizer>(store_, make_sgd(rule), *comm, options);
  else
    optimizer_ = std::make_unique<Optimizer>(store_, make_sgd(rule), options);
}

float Trainer::step(const std::function<void(Parameter&)>& on_final) {
  return parallel_ != nullptr ? step_with(*parallel_, on_final) : step_with(*optimizer_, on_final);
}

template <class AnyOptimizer>
float Trainer::step_with(AnyOptimizer& optimizer, const std::function<void(Parameter&)>& on_final) {
  Tape tape({.seed = 1, .step = steps_++});
  const Var loss = loss_(tape);
  const float value = loss.value().item();
  optimizer.begin_step(kRate);
  tape.backward(
      loss,
      [&](Parameter& p) {
        if (on_final) on_final(p);
        optimizer.ready(p);
      },
      [&](Parameter& p) { optimizer.weights_free(p); });
  optimizer.finish_step();
  return value;
}

double Trainer::gflop() const {
  double multiply_adds = 0;
  for (const Parameter& p : store_.parameters())
    multiply_adds += p.uses_per_sample * static_cast<double>(p.size());
  return 3 * 2e-9 * multiply_adds * static_cast<double>(batch_);
}

}  // namespace heddle::bench
