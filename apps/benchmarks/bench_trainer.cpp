#include "apps/benchmarks/bench_trainer.h"

#include <algorithm>

#include "core/kernels.h"
#include "core/parallel.h"
#include "core/random.h"
#include "layers/loss.h"
#include "layers/lstm_lm.h"
#include "layers/resnet.h"

namespace heddle::bench {
namespace {

constexpr double kRate = 0.01;

}  // namespace

Trainer::Forward Trainer::make_images(const Case& c, DType dtype) {
  const auto model = std::make_shared<ResNet>(
      store_, ResNetOptions{.arch = c.arch, .classes = c.classes, .stem = c.stem});
  const Philox noise(1, stream_id(Stream::sample));
  const Tensor host = Tensor::empty_on(Device{}, {c.batch, 3, c.image_size, c.image_size});
  const Tensor labels = Tensor::empty_on(Device{}, {c.batch}, DType::i32);
  float* x = host.data<float>();
  parallel_for(host.size(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] = noise.normal(static_cast<uint64_t>(i));
  });
  for (int64_t i = 0; i < c.batch; ++i)
    labels.data<int32_t>()[i] = static_cast<int32_t>(i % c.classes);
  batch_ = {host, labels};
  return [model, dtype](Tape& tape, const std::vector<Tensor>& batch) {
    const Var x(converted(batch[0], dtype, Layout::plain));
    return softmax_cross_entropy(tape, model->forward(tape, x), batch[1]);
  };
}

// The network's state is carried from step to step, as in training.
Trainer::Forward Trainer::make_text(const Case& c, DType dtype) {
  const auto model = std::make_shared<LstmLm>(store_, LstmLmOptions{.vocabulary = c.vocabulary,
                                                                    .emsize = c.emsize,
                                                                    .nhid = c.nhid,
                                                                    .nlayers = c.nlayers,
                                                                    .dropout = c.dropout,
                                                                    .dtype = dtype});
  auto tokens = [&](uint64_t key) {
    const Philox noise(1, stream_id(Stream::sample, key));
    Tensor out = Tensor::empty_on(Device{}, {c.bptt, c.batch}, DType::i32);
    for (int64_t i = 0; i < out.size(); ++i)
      out.data<int32_t>()[i] = static_cast<int32_t>(
          noise.below(static_cast<uint64_t>(i), static_cast<uint32_t>(c.vocabulary)));
    return out;
  };
  const Shape state = {c.nlayers, c.batch, c.nhid};
  batch_ = {tokens(0), tokens(1), Tensor::zeros(state), Tensor::zeros(state)};
  return [model](Tape& tape, std::vector<Tensor>& batch) {
    LstmState now{batch[2], batch[3]};
    const Var logits = model->forward(tape, batch[0], now);
    batch[2] = now.h;
    batch[3] = now.c;
    return softmax_cross_entropy(tape, logits, batch[1], {.overwrite_logits = true});
  };
}

Trainer::Trainer(const Case& c, DType dtype, Device device, Communicator* comm) : size_(c.batch) {
  forward_ = c.is_text() ? make_text(c, dtype) : make_images(c, dtype);
  for (Tensor& x : batch_) x = x.to(device);
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
  const auto pass = [&](const std::vector<Tensor>& in) {
    std::vector<Tensor> out = in;
    Tape tape({.seed = 1, .counters = in.back()});
    const Var loss = forward_(tape, out);
    tape.backward(
        loss,
        [&](Parameter& p) {
          if (on_final) on_final(p);
          optimizer.ready(p);
        },
        [&](Parameter& p) { optimizer.weights_free(p); });
    out.back() = loss.value();
    return out;
  };
  const Tensor counters = Tensor::empty_on(Device{}, {2}, DType::i64);
  counters.data<int64_t>()[0] = steps_++;
  counters.data<int64_t>()[1] = 0;
  std::vector<Tensor> in = batch_;
  in.push_back(counters.to(store_.values().device()));
  optimizer.begin_step(kRate);
  const std::vector<Tensor> out =
      parallel_ == nullptr && !on_final ? graph_.run(in, pass) : pass(in);
  std::copy_n(out.begin(), batch_.size(), batch_.begin());
  const float value = out.back().item();
  optimizer.finish_step();
  return value;
}

double Trainer::gflop() const {
  double multiply_adds = 0;
  for (const Parameter& p : store_.parameters())
    multiply_adds += p.uses_per_sample * to_double(p.size());
  return 3 * 2e-9 * multiply_adds * to_double(size_);
}

}  // namespace heddle::bench
