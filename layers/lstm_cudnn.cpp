#include "layers/lstm_cudnn.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "core/kernels.h"
#include "core/plan_cache.h"
#include "core/step_graph.h"
#include "core/trace.h"

namespace heddle::cuda {
namespace {

using RnnDescriptor = std::unique_ptr<cudnnRNNStruct, Destroy<cudnnDestroyRNNDescriptor>>;
using SequenceDescriptor =
    std::unique_ptr<cudnnRNNDataStruct, Destroy<cudnnDestroyRNNDataDescriptor>>;
using TensorDescriptor = std::unique_ptr<cudnnTensorStruct, Destroy<cudnnDestroyTensorDescriptor>>;
using DropoutDescriptor =
    std::unique_ptr<cudnnDropoutStruct, Destroy<cudnnDestroyDropoutDescriptor>>;

// Elements [from, from + count) of a parameter lie at `to` in cuDNN's weight space.
struct Span {
  Parameter* LstmWeights::*parameter;
  int64_t from, to, count;
};

struct LstmPlan {
  DropoutDescriptor dropout;
  RnnDescriptor rnn;
  SequenceDescriptor x, y;
  TensorDescriptor state;
  size_t weights = 0, workspace = 0, reserve = 0;  // bytes
  Tensor lengths;                                  // i32 (B), each T
  std::vector<Span> spans;
  bool gaps = false;  // the spans do not cover all of the weight space
};

Tensor bytes_on_device(size_t bytes) { return Tensor::empty({to_int64(bytes)}, DType::u8); }

// Asks cuDNN where each bias and each gate's rows of a matrix lie. It numbers gates i, f, g, o of
// the input matrix 0 to 3, those of the recurrent one 4 to 7, in the order of the rows here.
std::vector<Span> find_weights(const LstmPlan& plan, int64_t in, int64_t hidden) {
  const Tensor space = bytes_on_device(plan.weights);
  const auto matrix = make_descriptor<TensorDescriptor>(cudnnCreateTensorDescriptor);
  const auto bias = make_descriptor<TensorDescriptor>(cudnnCreateTensorDescriptor);
  std::vector<Span> spans;
  const auto add = [&](Parameter* LstmWeights::*parameter, int64_t from, const void* address,
                       int64_t count) {
    const int64_t to = (static_cast<const char*>(address) - static_cast<char*>(space.raw())) / 4;
    check(to >= 0 && to_size(to + count) * 4 <= plan.weights,
          "cuDNN: a weight of the LSTM lies outside the weight space");
    Span* last = spans.empty() ? nullptr : &spans.back();
    if (last != nullptr && last->parameter == parameter && last->from + last->count == from &&
        last->to + last->count == to)
      last->count += count;
    else
      spans.push_back({parameter, from, to, count});
  };
  for (const bool biases : {false, true})
    for (int id = 0; id < 8; ++id) {
      void *rows = nullptr, *shift = nullptr;
      check_cudnn(cudnnGetRNNWeightParams(cudnn_handle(), plan.rnn.get(), 0, plan.weights,
                                          space.raw(), id, matrix.get(), &rows, bias.get(), &shift),
                  "cudnnGetRNNWeightParams");
      const bool input = id < 4;
      const int64_t gate = id % 4, width = input ? in : hidden;
      if (biases)
        add(input ? &LstmWeights::bias_ih : &LstmWeights::bias_hh, gate * hidden, shift, hidden);
      else
        add(input ? &LstmWeights::ih : &LstmWeights::hh, gate * hidden * width, rows,
            hidden * width);
    }
  return spans;
}

SequenceDescriptor describe_sequence(const Shape& x, int64_t width) {
  auto out = make_descriptor<SequenceDescriptor>(cudnnCreateRNNDataDescriptor);
  const std::vector<int> lengths(to_size(x[1]), to_int(x[0]));
  // All sequences are equally long: packed, they lie as (T, B, width).
  check_cudnn(
      cudnnSetRNNDataDescriptor(out.get(), CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
                                to_int(x[0]), to_int(x[1]), to_int(width), lengths.data(), nullptr),
      "cudnnSetRNNDataDescriptor");
  return out;
}

// Throws where cuDNN does not support the layer.
LstmPlan make_plan(const Shape& x, int64_t units, cudnnRNNAlgo_t algorithm) {
  LstmPlan plan;
  plan.dropout = make_descriptor<DropoutDescriptor>(cudnnCreateDropoutDescriptor);
  check_cudnn(cudnnSetDropoutDescriptor(plan.dropout.get(), cudnn_handle(), 0, nullptr, 0, 0),
              "cudnnSetDropoutDescriptor");
  plan.rnn = make_descriptor<RnnDescriptor>(cudnnCreateRNNDescriptor);
  const auto hidden = static_cast<int32_t>(units);
  const auto math = Context::current().options().tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
  check_cudnn(cudnnSetRNNDescriptor_v8(plan.rnn.get(), algorithm, CUDNN_LSTM, CUDNN_RNN_DOUBLE_BIAS,
                                       CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT,
                                       CUDNN_DATA_FLOAT, math, static_cast<int32_t>(x[2]), hidden,
                                       hidden, 1, plan.dropout.get(), CUDNN_RNN_PADDED_IO_DISABLED),
              "cudnnSetRNNDescriptor_v8");
  check_cudnn(cudnnGetRNNWeightSpaceSize(cudnn_handle(), plan.rnn.get(), &plan.weights),
              "cudnnGetRNNWeightSpaceSize");
  plan.x = describe_sequence(x, x[2]);
  plan.y = describe_sequence(x, units);
  check_cudnn(cudnnGetRNNTempSpaceSizes(cudnn_handle(), plan.rnn.get(), CUDNN_FWD_MODE_TRAINING,
                                        plan.x.get(), &plan.workspace, &plan.reserve),
              "cudnnGetRNNTempSpaceSizes");
  plan.state = make_descriptor<TensorDescriptor>(cudnnCreateTensorDescriptor);
  const int extents[] = {1, to_int(x[1]), hidden};
  const int strides[] = {to_int(x[1]) * hidden, hidden, 1};
  check_cudnn(cudnnSetTensorNdDescriptor(plan.state.get(), CUDNN_DATA_FLOAT, 3, extents, strides),
              "cudnnSetTensorNdDescriptor");
  const std::vector<int32_t> lengths(to_size(x[1]), static_cast<int32_t>(x[0]));
  plan.lengths = Tensor::from_integers(lengths).to(Context::current().device());
  plan.spans = find_weights(plan, x[2], units);
  size_t used = 0;
  for (const Span& span : plan.spans) used += to_size(span.count) * 4;
  plan.gaps = used < plan.weights;
  return plan;
}

Tensor part(const Tensor& x, int64_t begin, int64_t count) {
  return x.reshape({x.size()}).slice(begin, begin + count);
}

struct Forwarded {
  Tensor y, h, c, weights, reserve;
};

// Shapes as in lstm_layer().
Forwarded run_forward(const LstmPlan& plan, const Tensor& x, const LstmWeights& w, const Tensor& h,
                      const Tensor& c) {
  Forwarded out;
  out.weights = Tensor::empty({to_int64(plan.weights / 4)});
  if (plan.gaps) out.weights.fill_zero();
  for (const Span& s : plan.spans)
    part(out.weights, s.to, s.count).copy_from(part((w.*s.parameter)->value, s.from, s.count));
  out.y = Tensor::empty({x.shape()[0], x.shape()[1], h.shape()[1]});
  out.h = Tensor::empty_like(h);
  out.c = Tensor::empty_like(c);
  out.reserve = bytes_on_device(plan.reserve);
  const Tensor workspace = bytes_on_device(plan.workspace);
  check_cudnn(cudnnRNNForward(cudnn_handle(), plan.rnn.get(), CUDNN_FWD_MODE_TRAINING,
                              plan.lengths.data<int32_t>(), plan.x.get(), x.raw(), plan.y.get(),
                              out.y.raw(), plan.state.get(), h.raw(), out.h.raw(), plan.state.get(),
                              c.raw(), out.c.raw(), plan.weights, out.weights.raw(), plan.workspace,
                              workspace.raw(), plan.reserve, out.reserve.raw()),
              "cudnnRNNForward");
  return out;
}

// Does the same as lstm_layer(). The plan must outlive the tape.
Var layer_by_plan(const LstmPlan& plan, Tape& tape, const Var& x, const LstmWeights& w, Tensor& h,
                  Tensor& c) {
  const Forwarded out = run_forward(plan, x.value(), w, h, c);
  Var y(out.y, x.needs_grad() || any_trained({w.ih, w.hh, w.bias_ih, w.bias_hh}));
  auto backward = [x, w, out, &plan, h_before = h, c_before = c](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dx = Tensor::empty_like(x.value());
    const Tensor workspace = bytes_on_device(plan.workspace);
    check_cudnn(
        cudnnRNNBackwardData_v8(
            cudnn_handle(), plan.rnn.get(), plan.lengths.data<int32_t>(), plan.y.get(), out.y.raw(),
            dy.raw(), plan.x.get(), dx.raw(), plan.state.get(), h_before.raw(), nullptr, nullptr,
            plan.state.get(), c_before.raw(), nullptr, nullptr, plan.weights, out.weights.raw(),
            plan.workspace, workspace.raw(), plan.reserve, out.reserve.raw()),
        "cudnnRNNBackwardData_v8");
    const Tensor dw = Tensor::empty_like(out.weights);
    dw.fill_zero();  // cuDNN adds
    check_cudnn(cudnnRNNBackwardWeights_v8(
                    cudnn_handle(), plan.rnn.get(), CUDNN_WGRAD_MODE_ADD,
                    plan.lengths.data<int32_t>(), plan.x.get(), x.value().raw(), plan.state.get(),
                    h_before.raw(), plan.y.get(), out.y.raw(), plan.weights, dw.raw(),
                    plan.workspace, workspace.raw(), plan.reserve, out.reserve.raw()),
                "cudnnRNNBackwardWeights_v8");
    for (auto parameter :
         {&LstmWeights::hh, &LstmWeights::ih, &LstmWeights::bias_ih, &LstmWeights::bias_hh}) {
      Parameter& p = *(w.*parameter);
      if (p.frozen) continue;
      const bool first = p.next_beta() == 0.0f;
      for (const Span& s : plan.spans) {
        if (s.parameter != parameter) continue;
        const Tensor from = part(dw, s.to, s.count), to = part(p.grad, s.from, s.count);
        if (first)
          to.copy_from(from);
        else
          add_to(from, to);
      }
      pass.contributed(p);
    }
    x.add_grad(dx);
  };
  tape.record(w.ih->name, y, {w.ih, w.hh, w.bias_ih, w.bias_hh}, std::move(backward));
  h = out.h;
  c = out.c;
  return y;
}

// Returns the milliseconds of a layer's forward and backward pass, the least of five, as a CUDA
// graph or not. Weights and gradients are the trial's own. Throws where the layer cannot run, or
// not be recorded.
float trial_milliseconds(const LstmLayer& layer, bool recorded, const Var& x, const Tensor& h,
                         const Tensor& c) {
  const int64_t hidden = h.shape()[1];
  ParameterStore store;
  const LstmWeights weights =
      add_recurrent_weights(store, "trial", 0, 4 * hidden, x.shape()[2], hidden, 0.1f);
  store.finalize(0);
  StepGraph graph(store, [](const std::string& why) { throw Error(why); });
  const auto work = [&](const std::vector<Tensor>& in) {
    Tape tape;
    Tensor state = h, cell = c;
    const Var y = layer(tape, Var(in[0], x.needs_grad()), weights, state, cell);
    const Var end(Tensor::empty({1}), true);
    tape.record("trial", end, {}, [&](BackwardPass&) { y.add_grad(y.value()); });
    tape.backward(end);
    return std::vector<Tensor>{y.value()};
  };
  const auto step = [&] {
    store.begin_step();
    recorded ? graph.run({x.value()}, work) : work({x.value()});
  };
  step();
  while (recorded && !graph.recorded()) step();
  float best = stream_milliseconds(step);
  for (int i = 0; i < 4; ++i) best = std::min(best, stream_milliseconds(step));
  return best;
}

// Returns the fastest plan of cuDNN's, or none where the project's own layer is faster.
std::optional<LstmPlan> fastest_plan(bool recorded, const Var& x, const Tensor& h, const Tensor& c,
                                     const LstmLayer& own) {
  std::optional<LstmPlan> fastest;
  float best = std::numeric_limits<float>::infinity();
  mute_trace(true);  // a trace may wait for the GPU, which cannot be recorded
  const cudnnRNNAlgo_t algorithms[] = {CUDNN_RNN_ALGO_STANDARD, CUDNN_RNN_ALGO_PERSIST_STATIC,
                                       CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H};
  // A persistent kernel needs all its blocks on the GPU at once, which the kernels of another
  // learner might prevent; recorded steps are those of one learner. Ours is the last.
  const int tried = recorded ? 3 : 1;
  for (int i = 0; i <= tried; ++i) {
    try {
      std::optional<LstmPlan> plan;
      if (i < tried) plan = make_plan(x.shape(), h.shape()[1], algorithms[i]);
      const float ms = trial_milliseconds(
          plan ? std::bind_front(layer_by_plan, std::cref(*plan)) : own, recorded, x, h, c);
      if (ms >= best) continue;
      best = ms;
      fastest = std::move(plan);
    } catch (const std::exception&) {  // not supported, not to be recorded, or no memory for it
      (void)cudaGetLastError();        // the next kernel would report it
    }
  }
  mute_trace(false);
  return fastest;
}

}  // namespace

Var fastest_lstm_layer(Tape& tape, const Var& x, const LstmWeights& w, Tensor& h, Tensor& c,
                       const LstmLayer& own) {
  const ContextOptions& options = Context::current().options();
  // Ours skips the products of frozen weights, cuDNN does not.
  if (!options.tune || options.deterministic || x.value().dtype() != DType::f32 || w.ih->frozen ||
      w.hh->frozen || w.bias_ih->frozen || w.bias_hh->frozen)
    return own(tape, x, w, h, c);
  const bool recorded = tape.options().counters.defined();
  const auto& plan = cached_plan<std::optional<LstmPlan>>(
      plan_key(x.shape(), h.shape()[1], recorded, x.needs_grad()),
      [&] { return stream_is_recorded() ? std::nullopt : fastest_plan(recorded, x, h, c, own); });
  return plan ? layer_by_plan(*plan, tape, x, w, h, c) : own(tape, x, w, h, c);
}

}  // namespace heddle::cuda
