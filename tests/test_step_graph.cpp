// Steps that are recorded as a CUDA graph, on the device of HEDDLE_TEST_DEVICE; on the CPU the work
// is called each time, which shows no more than that these tests run.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels.h"
#include "core/step_graph.h"
#include "core/streams.h"
#include "layers/activation.h"
#include "layers/loss.h"
#include "layers/lstm_lm.h"
#include "layers/resnet.h"
#include "optim/optimizer.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

using Work = StepGraph::Work;
using Runner = std::function<std::vector<Tensor>(const std::vector<Tensor>&, const Work&)>;

Tensor counters(int64_t step, int64_t first_sample) {
  const Tensor out = Tensor::empty_on(Device{}, {2}, DType::i64);
  out.data<int64_t>()[0] = step;
  out.data<int64_t>()[1] = first_sample;
  return out;
}

// The loss of each step, then everything that a weights file would hold.
struct Training {
  std::vector<float> losses;
  std::vector<std::vector<float>> values;
  bool operator==(const Training&) const = default;
};

// Eight steps, some of them with a smaller batch.
constexpr int kSteps = 8;
using Sizes = std::array<int64_t, kSteps>;
constexpr Sizes kLate = {5, 5, 5, 5, 5, 2, 5, 5}, kEarly = {2, 5, 2, 5, 5, 5, 5, 5};

template <class Step>
Training train(ParameterStore& store, const Step& step) {
  Optimizer optimizer(store, make_sgd({.momentum = 0.9, .nesterov = true, .weight_decay = 1e-3}));
  Training out;
  for (int i = 0; i < kSteps; ++i) {
    optimizer.begin_step(0.1 / (i + 1));
    out.losses.push_back(step(i).item());
    CHECK_FALSE(optimizer.finish_step().skipped);
  }
  for (const auto& [name, value] : store.named_tensors()) out.values.push_back(value.to_vector());
  return out;
}

Training train_resnet(DType dtype, const Sizes& sizes, const Runner& run, ParameterStore& store) {
  const ResNet model(store, {.arch = "resnet20", .classes = 5});
  store.finalize(1);
  return train(store, [&](int i) {
    const auto n = static_cast<uint64_t>(i);
    const Tensor images = random_tensor({sizes[static_cast<size_t>(i)], 3, 9, 9}, 100 + n,
                                        Layout::plain, 1.0f, dtype);
    return run({images, random_integers({sizes[static_cast<size_t>(i)]}, n, 5)},
               [&](const std::vector<Tensor>& in) {
                 Tape tape;
                 const Var loss =
                     softmax_cross_entropy(tape, model.forward(tape, Var(in[0])), in[1]);
                 tape.backward(loss);
                 return std::vector<Tensor>{loss.value()};
               })[0];
  });
}

// With dropout, tied weights and a state that goes from step to step.
Training train_lm(DType dtype, const Sizes& sizes, const Runner& run, ParameterStore& store) {
  const LstmLm model(store, {.vocabulary = 11,
                             .emsize = 6,
                             .nhid = 6,
                             .nlayers = 2,
                             .dropout = 0.4f,
                             .tied = true,
                             .dtype = dtype});
  store.finalize(1);
  LstmState state = model.zero_state(3);
  return train(store, [&](int i) {
    const Shape window = {sizes[static_cast<size_t>(i)], 3};  // these sizes are time steps
    const auto n = static_cast<uint64_t>(i);
    const auto out = run({random_integers(window, n, 11), random_integers(window, 50 + n, 11),
                          counters(i, 3 * i), state.h, state.c},
                         [&](const std::vector<Tensor>& in) {
                           Tape tape({.seed = 7, .counters = in[2]});
                           LstmState next{in[3], in[4]};
                           const Var loss =
                               softmax_cross_entropy(tape, model.forward(tape, in[0], next), in[1],
                                                     {.overwrite_logits = true});
                           tape.backward(loss);
                           return std::vector<Tensor>{loss.value(), next.h, next.c};
                         });
    state = {out[1], out[2]};
    return out[0];
  });
}

}  // namespace

TEST_CASE("step graph: the same bits as steps that are not recorded") {
  const auto compare = [](auto&& train_one, const Sizes& sizes, int expected_calls) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(dtype_name(dtype));
      Context context(on_test_device({.deterministic = true}));
      if (dtype == DType::bf16 && !bf16_here()) continue;
      ParameterStore plain, recorded;
      const Training expected = train_one(
          dtype, sizes,
          [](const std::vector<Tensor>& inputs, const Work& work) {
            std::vector<Tensor> on_device;
            for (const Tensor& x : inputs) on_device.push_back(here(x));
            return work(on_device);
          },
          plain);
      int calls = 0;
      StepGraph graph(recorded);
      const Training found = train_one(
          dtype, sizes,
          [&](const std::vector<Tensor>& inputs, const Work& work) {
            return graph.run(inputs, [&](const std::vector<Tensor>& in) {
              ++calls;
              return work(in);
            });
          },
          recorded);
      CHECK(graph.failure().empty());
      CHECK(graph.recorded() == on_gpu());
      CHECK(calls == (on_gpu() ? expected_calls : kSteps));
      CHECK(found == expected);
      CHECK(expected.losses.front() != expected.losses.back());
    }
  };
  compare(train_resnet, kLate, 4);  // two before, once recorded, the smaller batch
  compare(train_lm, kLate, 4);
  compare(train_lm, kEarly, 6);  // the last three calls are the first with equal batches in a row
}

// cuDNN's LSTM and timed convolutions, whose sums may come in any order.
TEST_CASE("step graph: tuned steps are recorded, too") {
  const auto compare = [](auto&& train_one) {
    Context context(on_test_device({.tune = true}));
    ParameterStore plain, recorded;
    StepGraph graph(recorded);
    const Training found = train_one(
        DType::f32, kLate,
        [&](const std::vector<Tensor>& inputs, const Work& work) {
          return graph.run(inputs, work);
        },
        recorded);
    const Training expected = train_one(
        DType::f32, kLate,
        [](const std::vector<Tensor>& inputs, const Work& work) {
          std::vector<Tensor> on_device;
          for (const Tensor& x : inputs) on_device.push_back(here(x));
          return work(on_device);
        },
        plain);
    CHECK(graph.failure().empty());
    CHECK(graph.recorded() == on_gpu());
    for (size_t i = 0; i < expected.values.size(); ++i)
      CHECK(relative_distance(found.values[i], expected.values[i]) < 1e-3);
  };
  compare(train_resnet);
  compare(train_lm);
}

TEST_CASE("step graph: its own memory, no allocation per step") {
  Context context(on_test_device({.deterministic = true}));
  if (!on_gpu()) return;
  ParameterStore store;
  Parameter& w = store.add("w", {1 << 20}, uniform_init(1.0f));
  store.finalize(1);
  const auto pool = context.pool(context.device());
  const size_t at_start = pool->bytes_reserved();
  {
    StepGraph graph(store);
    const auto step = [&](float value) {
      store.begin_step();
      return graph.run({here(Tensor::from({value}))}, [&](const std::vector<Tensor>& in) {
        std::vector<Tensor> held;  // 48 MiB
        for (int i = 0; i < 12; ++i) held.push_back(w.value.clone());
        for (const Tensor& x : held) add_to(x, held[0]);
        (void)w.next_beta();
        w.grad.copy_from(held[0]);
        return std::vector<Tensor>{in[0].clone(), held[0]};
      });
    };
    std::vector<Tensor> last;
    for (float value : {1.0f, 2.0f, 3.0f, 4.0f}) {
      last = step(value);
      CHECK(last[0].item() == value);
    }
    CHECK(graph.recorded());
    CHECK(w.written);
    // The memory of the first steps has been released.
    CHECK(pool->bytes_reserved() == at_start);
    const size_t in_use = pool->bytes_in_use();
    const void* place = last[1].raw();
    for (int i = 0; i < 3; ++i) CHECK(step(5.0f)[1].raw() == place);
    CHECK(pool->bytes_in_use() == in_use);
    wait_for_stream();
  }
}

TEST_CASE("step graph: work that cannot be recorded is executed directly") {
  Context context(on_test_device());
  ParameterStore store;
  Parameter& w = store.add("w", {4}, constant_init(2.0f));
  store.finalize(1);
  const auto train_with = [&](const auto& look) {
    StepGraph graph(store);
    for (int i = 0; i < 5; ++i) {
      store.begin_step();
      const auto out = graph.run({Tensor::from({1.0f + static_cast<float>(i)})},
                                 [&](const std::vector<Tensor>& in) {
                                   CHECK(w.next_beta() == 0.0f);
                                   w.grad.fill_zero();
                                   look(in[0]);
                                   return std::vector<Tensor>{in[0].clone()};
                                 });
      CHECK(out[0].item() == 1.0f + static_cast<float>(i));
      CHECK(w.written);
    }
    CHECK_FALSE(graph.recorded());
    CHECK(graph.failure().empty() != on_gpu());
    return graph.failure();
  };
  const std::string copied = train_with([](const Tensor& x) { (void)x.item(); });
  (void)train_with([](const Tensor&) { wait_for_stream(); });
  if (!on_gpu()) return;
  CHECK(copied == "a copy from or to the host cannot be recorded");
  // It works again after failures.
  StepGraph graph(store);
  for (int i = 0; i < 4; ++i) {
    store.begin_step();
    const auto out = graph.run({Tensor::from({2.0f})}, [&](const std::vector<Tensor>& in) {
      const Tensor y = in[0].clone();
      scale(y, 3.0f);
      return std::vector<Tensor>{y};
    });
    CHECK(out[0].item() == 6.0f);
  }
  CHECK(graph.recorded());
  // A gradient that is there already would be read by the recorded work in each step.
  StepGraph late(store);
  (void)w.next_beta();
  const auto nothing = [](const std::vector<Tensor>&) { return std::vector<Tensor>{}; };
  (void)late.run({}, nothing);
  (void)late.run({}, nothing);
  CHECK_THROWS_AS(late.run({}, nothing), Error);
}

TEST_CASE("step graph: dropout reads its counters from the device") {
  Context context(on_test_device());
  const Tensor x = random_tensor({6, 4, 33}, 1);
  for (const auto& [step, first] : {std::pair<int64_t, int64_t>{0, 0}, {3, 0}, {3, 40}}) {
    Tape by_value({.seed = 5, .step = static_cast<uint64_t>(step), .first_sample = first});
    Tape by_counter({.seed = 5, .counters = here(counters(step, first))});
    for (int operation = 0; operation < 2; ++operation)
      CHECK(dropout(by_value, Var(x), 0.3f, 1).value().to_vector() ==
            dropout(by_counter, Var(x), 0.3f, 1).value().to_vector());
  }
}

#ifdef HEDDLE_SIMULATED_GPU
TEST_CASE("step graph: convolutions that cannot be recorded are unchanged") {
  Context context(on_test_device({.deterministic = true}));
  if (!on_gpu()) return;
  const Runner plain = [](const std::vector<Tensor>& inputs, const Work& work) {
    std::vector<Tensor> on_device;
    for (const Tensor& x : inputs) on_device.push_back(here(x));
    return work(on_device);
  };
  ParameterStore eager, recorded;
  const Training expected = train_resnet(DType::f32, kLate, plain, eager);
  setenv("SIMULATED_CONVOLUTIONS_SPOIL", "1", 1);
  std::string told;
  StepGraph graph(recorded, [&](const std::string& why) { told = why; });
  const Training found = train_resnet(
      DType::f32, kLate,
      [&](const std::vector<Tensor>& inputs, const Work& work) { return graph.run(inputs, work); },
      recorded);
  unsetenv("SIMULATED_CONVOLUTIONS_SPOIL");
  CHECK(told.find("recorded convolution") != std::string::npos);
  CHECK(graph.failure() == told);
  CHECK(found == expected);
}
#endif
