#include "layers/lstm_cudnn.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "core/kernels.h"
#include "core/plan_cache.h"

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

struct Sizes {
  int64_t steps, batch, in, hidden;
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
  bool wins = false;
};

Tensor bytes_on_device(size_t bytes) { return Tensor::empty({to_int64(bytes)}, DType::u8); }

// Asks cuDNN where each bias and each gate's rows of a matrix lie. It numbers gates i, f, g, o of
// the input matrix 0 to 3, those of the recurrent one 4 to 7, in the order of the rows here.
std::vector<Span> find_weights(const LstmPlan& plan, const Sizes& n) {
  const Tensor space = bytes_on_device(plan.weights);
  const auto matrix = make_descriptor<TensorDescriptor>(cudnnCreateTensorDescriptor);
  const auto bias = make_descriptor<TensorDescriptor>(cudnnCreateTensorDescriptor);
  std::vector<Span> spans;
  const auto add = [&](Parameter* LstmWeights::*parameter, int64_t from, const void* address,
                       int64_t count) {
    const int64_t to = (static_cast<const char*>(address) - static_cast<char*>(space.raw())) / 4;
    check(to >= 0 && to_size(to + count) * 4 <= plan.weights,
          "cuDNN: a weight of the LSTM lies outside the weight space");
    if (!spans.empty()) {
      Span& last = spans.back();
      if (last.parameter == parameter && last.from + last.count == from &&
          last.to + last.count == to) {
        last.count += count;
        return;
      }
    }
    spans.push_back({parameter, from, to, count});
  };
  for (const bool biases : {false, true})
    for (int id = 0; id < 8; ++id) {
      void *rows = nullptr, *shift = nullptr;
      check_cudnn(cudnnGetRNNWeightParams(cudnn_handle(), plan.rnn.get(), 0, plan.weights,
                                          space.raw(), id, matrix.get(), &rows, bias.get(), &shift),
                  "cudnnGetRNNWeightParams");
      const bool input = id < 4;
      const int64_t gate = id % 4, width = input ? n.in : n.hidden;
      if (biases)
        add(input ? &LstmWeights::bias_ih : &LstmWeights::bias_hh, gate * n.hidden, shift,
            n.hidden);
      else
        add(input ? &LstmWeights::ih : &LstmWeights::hh, gate * n.hidden * width, rows,
            n.hidden * width);
    }
  return spans;
}

SequenceDescriptor describe_sequence(const Sizes& n, int64_t width) {
  auto out = make_descriptor<SequenceDescriptor>(cudnnCreateRNNDataDescriptor);
  const std::vector<int> lengths(to_size(n.batch), to_int(n.steps));
  // All sequences are equally long: packed, they lie as (T, B, width).
  check_cudnn(cudnnSetRNNDataDescriptor(out.get(), CUDNN_DATA_FLOAT,
                                        CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, to_int(n.steps),
                                        to_int(n.batch), to_int(width), lengths.data(), nullptr),
              "cudnnSetRNNDataDescriptor");
  return out;
}

std::optional<LstmPlan> make_plan(const Sizes& n) {
  LstmPlan plan;
  plan.dropout = make_descriptor<DropoutDescriptor>(cudnnCreateDropoutDescriptor);
  check_cudnn(cudnnSetDropoutDescriptor(plan.dropout.get(), cudnn_handle(), 0, nullptr, 0, 0),
              "cudnnSetDropoutDescriptor");
  plan.rnn = make_descriptor<RnnDescriptor>(cudnnCreateRNNDescriptor);
  const bool tf32 = Context::current().options().tf32;
  const auto hidden = static_cast<int32_t>(n.hidden);
  const bool supported =
      cudnnSetRNNDescriptor_v8(
          plan.rnn.get(), CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, CUDNN_RNN_DOUBLE_BIAS,
          CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
          tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH, static_cast<int32_t>(n.in), hidden, hidden, 1,
          plan.dropout.get(), CUDNN_RNN_PADDED_IO_DISABLED) == CUDNN_STATUS_SUCCESS &&
      cudnnGetRNNWeightSpaceSize(cudnn_handle(), plan.rnn.get(), &plan.weights) ==
          CUDNN_STATUS_SUCCESS;
  if (!supported) return std::nullopt;
  plan.x = describe_sequence(n, n.in);
  plan.y = describe_sequence(n, n.hidden);
  if (cudnnGetRNNTempSpaceSizes(cudnn_handle(), plan.rnn.get(), CUDNN_FWD_MODE_TRAINING,
                                plan.x.get(), &plan.workspace,
                                &plan.reserve) != CUDNN_STATUS_SUCCESS)
    return std::nullopt;
  plan.state = make_descriptor<TensorDescriptor>(cudnnCreateTensorDescriptor);
  const int extents[] = {1, to_int(n.batch), hidden};
  const int strides[] = {to_int(n.batch) * hidden, hidden, 1};
  check_cudnn(cudnnSetTensorNdDescriptor(plan.state.get(), CUDNN_DATA_FLOAT, 3, extents, strides),
              "cudnnSetTensorNdDescriptor");
  const Tensor lengths = Tensor::empty_on(Device{}, {n.batch}, DType::i32);
  std::fill_n(lengths.data<int32_t>(), n.batch, static_cast<int32_t>(n.steps));
  plan.lengths = lengths.to(Context::current().device());
  plan.spans = find_weights(plan, n);
  size_t used = 0;
  for (const Span& span : plan.spans) used += to_size(span.count) * 4;
  plan.gaps = used < plan.weights;
  return plan;
}

Sizes sizes_of(const Tensor& x, const LstmWeights& w) {
  return {x.shape()[0], x.shape()[1], x.shape()[2], w.hh->shape()[1]};
}

Tensor part(const Tensor& x, int64_t begin, int64_t count) {
  return x.reshape({x.size()}).slice(begin, begin + count);
}

struct Forwarded {
  Tensor y, h, c, weights, reserve;
};

// Returns the status of the library's call. Shapes as in lstm_layer().
cudnnStatus_t run_forward(const LstmPlan& plan, const Tensor& x, const LstmWeights& w,
                          const Tensor& h, const Tensor& c, Forwarded& out) {
  const int64_t steps = x.shape()[0], batch = x.shape()[1], hidden = w.hh->shape()[1];
  out.weights = Tensor::empty({to_int64(plan.weights / 4)});
  if (plan.gaps) out.weights.fill_zero();
  for (const Span& s : plan.spans)
    part(out.weights, s.to, s.count).copy_from(part((w.*s.parameter)->value, s.from, s.count));
  out.y = Tensor::empty({steps, batch, hidden});
  out.h = Tensor::empty_like(h);
  out.c = Tensor::empty_like(c);
  out.reserve = bytes_on_device(plan.reserve);
  const Tensor workspace = bytes_on_device(plan.workspace);
  return cudnnRNNForward(cudnn_handle(), plan.rnn.get(), CUDNN_FWD_MODE_TRAINING,
                         plan.lengths.data<int32_t>(), plan.x.get(), x.raw(), plan.y.get(),
                         out.y.raw(), plan.state.get(), h.raw(), out.h.raw(), plan.state.get(),
                         c.raw(), out.c.raw(), plan.weights, out.weights.raw(), plan.workspace,
                         workspace.raw(), plan.reserve, out.reserve.raw());
}

// Makes a plan and times it against `own`; none where cuDNN does not support it.
std::optional<LstmPlan> make_timed_plan(const Tensor& x, const LstmWeights& w, const Tensor& h,
                                        const Tensor& c, const std::function<void()>& own) {
  std::optional<LstmPlan> plan;
  try {
    plan = make_plan(sizes_of(x, w));
    const auto cudnn = [&] {
      Forwarded out;
      check_cudnn(run_forward(*plan, x, w, h, c, out), "cudnnRNNForward");
    };
    if (plan) {
      cudnn();
      own();
      float best = 0, best_own = 0;
      for (int i = 0; i < 3; ++i) {
        const float ms = stream_milliseconds(cudnn), ms_own = stream_milliseconds(own);
        best = i == 0 ? ms : std::min(best, ms);
        best_own = i == 0 ? ms_own : std::min(best_own, ms_own);
      }
      plan->wins = best <= best_own;
    }
  } catch (const Error&) {  // refused, or no memory for it: layers/lstm.cpp computes the layer
    plan.reset();
  }
  (void)cudaGetLastError();  // of refused calls: the next kernel would report it
  return plan;
}

// Returns the plan for a layer's sizes, which make() makes at their first use.
template <class Make>
const std::optional<LstmPlan>& lstm_plan(const Tensor& x, const LstmWeights& w, const Make& make) {
  return cached_plan<std::optional<LstmPlan>>(plan_key(x.shape(), w.hh->shape()[1]), make);
}

}  // namespace

bool cudnn_lstm_wins(const Tensor& x, const LstmWeights& w, const Tensor& h, const Tensor& c,
                     const std::function<void()>& own) {
  const ContextOptions& options = Context::current().options();
  if (!options.tune || options.deterministic || x.dtype() != DType::f32) return false;
  const auto& plan = lstm_plan(x, w, [&] { return make_timed_plan(x, w, h, c, own); });
  return plan && plan->wins;
}

Var cudnn_lstm_layer(Tape& tape, const Var& x, const LstmWeights& w, Tensor& h, Tensor& c) {
  const LstmPlan& plan = lstm_plan(x.value(), w, [] { return std::optional<LstmPlan>(); }).value();
  Forwarded out;
  check_cudnn(run_forward(plan, x.value(), w, h, c, out), "cudnnRNNForward");
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
  w.ih->uses_per_sample = w.hh->uses_per_sample = to_double(x.shape()[0]);
  return y;
}

}  // namespace heddle::cuda
