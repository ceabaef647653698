// Every operation on two devices, compared (tests/compare.h); exchanges: test_gpu_exchange.cpp.
// Cases named "kernels" need no library and are small enough for compute-sanitizer.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "core/gemm.h"
#include "core/kernels.h"
#include "data/augment.h"
#include "layers/activation.h"
#include "layers/concat.h"
#include "layers/conv2d.h"
#include "layers/embedding.h"
#include "layers/loss.h"
#include "layers/lstm_lm.h"
#include "layers/pooling.h"
#include "layers/resnet.h"
#include "optim/optimizer.h"
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/gradcheck.h"
#ifdef HEDDLE_SIMULATED_GPU
#include "tests/simulated_gpu/device.h"
#endif

using namespace heddle;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16};

// A (rows, columns) factor of a product, or its transpose.
Tensor factor(int64_t rows, int64_t columns, bool transposed, uint64_t seed, DType dtype) {
  return random_tensor(transposed ? Shape{columns, rows} : Shape{rows, columns}, seed,
                       Layout::plain, 1.0f, dtype);
}

}  // namespace

TEST_CASE("kernels, compare: elementwise") {
  for (DType dtype : kTypes)
    for (const Shape& shape : {Shape{1}, Shape{257}, Shape{3, 5, 7, 2}}) {
      compare("elementwise", to_string(shape), dtype, [&]() -> Results {
        const Tensor a = random_tensor(shape, 1, Layout::plain, 1.0f, dtype);
        const Tensor b = random_tensor(shape, 2, Layout::plain, 1.0f, dtype);
        const Tensor sum = Tensor::empty_like(a), filled = Tensor::empty_like(a);
        add(a, b, sum);
        scale(sum, 0.75f);
        fill(filled, 1.5f);
        Results out = {sum.to_vector(), filled.to_vector()};
        for (DType to : kTypes) out.push_back(converted(a, to, Layout::plain).to_vector());
        if (shape.rank() == 4)
          out.push_back(
              converted(converted(a, DType::bf16, Layout::nhwc), dtype, Layout::plain).to_vector());
        return out;
      });
    }
}

TEST_CASE("kernels, compare: reductions") {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {513, 33}, {3, 700}})
    for (DType dtype : kTypes)
      compare("reductions", concat("(", rows, ", ", columns, ")"), dtype,
              [&, rows = rows, columns = columns]() -> Results {
                const Tensor x = random_tensor({rows, columns}, 3);
                add_constant(x, 1.0f);  // sums that do not cancel
                const Tensor sums = random_tensor({columns}, 4);
                sum_rows(converted(x, dtype, Layout::plain), sums, 0.5f);
                return {sums.to_vector(),
                        {static_cast<float>(sum(x)), static_cast<float>(squared_norm(x))}};
              });
}

TEST_CASE("kernels, compare: dropout, embedding and cross-entropy") {
  for (DType dtype : kTypes) {
    for (const Shape& shape : {Shape{5, 3, 7}, Shape{2, 4, 64}})
      compare("dropout", to_string(shape), dtype, [&] {
        ParameterStore store;
        store.add("unused", {1}, constant_init(0));
        store.finalize(1);
        Results out = run_layer(store, random_tensor(shape, 5, Layout::plain, 1.0f, dtype),
                                [](Tape& tape, const Var& x) { return dropout(tape, x, 0.3f, 1); },
                                {.seed = 3, .step = 9, .first_sample = 40});
        out.pop_back();
        return out;
      });
    compare("embedding", "(11, 6) of (9, 37)", dtype, [&] {
      ParameterStore store;
      Parameter& weight = store.add("encoder.weight", {9, 37}, uniform_init(1));
      store.finalize(1);
      return run_layer(store, random_tensor({1}, 1), [&](Tape& tape, const Var&) {
        return embedding(tape, random_integers({11, 6}, 7, 9), weight, dtype);
      });
    });
  }
  for (const auto& [n, classes] : {std::pair{1, 2}, {7, 10}, {3, 1003}})
    for (float smoothing : {0.0f, 0.1f})
      compare("cross-entropy", concat("(", n, ", ", classes, ")"), DType::f32,
              [&, n = n, classes = classes]() -> Results {
                Tape tape;
                const Var logits(random_tensor({n, classes}, 8, Layout::plain, 6.0f), true);
                const Var loss = softmax_cross_entropy(
                    tape, logits, random_integers({n}, 9, static_cast<uint32_t>(classes)),
                    {.label_smoothing = smoothing});
                Results out = {loss.value().to_vector()};
                tape.backward(loss);
                out.push_back(logits.grad().to_vector());
                return out;
              });
}

TEST_CASE("kernels, compare: activations, joined channels, losses of pairs") {
  const auto run = [](const Tensor& x, const Network& network) {
    ParameterStore store;
    store.add("unused", {1}, constant_init(0));
    store.finalize(1);
    Results out = run_layer(store, x, network);
    out.pop_back();
    return out;
  };
  for (const Shape& shape : {Shape{5, 3}, Shape{2, 7, 5, 3}}) {
    for (DType dtype : kTypes) {
      const auto x = [&] { return random_tensor(shape, 5, Layout::plain, 3.0f, dtype); };
      for (const auto& [name, layer] :
           {std::pair<const char*, Network>{
                "leaky relu", [](Tape&tape, const Var&v) { return leaky_relu(tape, v); }},
            {"sigmoid", [](Tape&tape, const Var&v) { return sigmoid(tape, v); }},
            {"tanh", [](Tape&tape, const Var&v) { return heddle::tanh(tape, v); }},
            {"gelu", [](Tape&tape, const Var&v) { return gelu(tape, v); }},
            {"softmax", [](Tape&tape, const Var&v) { return softmax(tape, v); }},
            {"concat", [](Tape&tape, const Var&v) { return concat_channels(tape, v, v); }}})
        compare(name, to_string(shape), dtype, [&, layer = layer] { return run(x(), layer); });
    }
    const auto losses = [&](Tape& tape, const Var& v) {
      const Tensor targets = random_tensor(shape, 6, Layout::plain, 0.5f);
      add_constant(targets, 0.5f);
      return add(tape, mse_loss(tape, v, Var(targets)), bce_with_logits(tape, v, targets));
    };
    compare("losses of pairs", to_string(shape), DType::f32,
            [&] { return run(random_tensor(shape, 5, Layout::plain, 3.0f), losses); });
  }
}

TEST_CASE("kernels, compare: augmentation") {
  const Augmentation cutout{.size = 13,
                            .crop = Crop::pad,
                            .flip = true,
                            .normalization = {{0.4914f, 0.48f, 0.4465f}, {0.247f, 0.24f, 0.26f}},
                            .cutout = 6};
  const Philox rng(3, stream_id(Stream::augment));
  for (Layout layout : {Layout::plain, Layout::nhwc})
    for (DType dtype : kTypes)
      compare("augmentation", layout == Layout::plain ? "(37, 3, 13, 13)" : "channels last", dtype,
              [&]() -> Results {
                const Tensor bytes = Tensor::empty_on(Device{}, {37, 13, 13, 3}, DType::u8);
                const Tensor placements = Tensor::empty_on(Device{}, {37, 5}, DType::i32);
                for (int64_t i = 0; i < bytes.size(); ++i)
                  bytes.data<uint8_t>()[i] =
                      static_cast<uint8_t>(rng.below(static_cast<uint64_t>(i), 256));
                for (int64_t i = 0; i < 37; ++i) {
                  const Placement p = draw_placement(cutout, rng, static_cast<uint64_t>(i));
                  std::memcpy(placements.data<int32_t>() + 5 * i, &p, sizeof p);
                }
                const Device device = Context::current().device();
                const Tensor out = Tensor::empty_on(device, {37, 3, 13, 13}, dtype, layout);
                augment_bytes(cutout, bytes.to(device), placements.to(device), out);
                return {out.to_vector()};
              });
}

TEST_CASE("kernels, compare: batch norm and pooling") {
  for (DType dtype : kTypes)
    for (const Shape& shape : {Shape{3, 16, 5, 7}, Shape{2, 64, 4, 4}, Shape{1, 5, 9, 3}}) {
      for (bool training : {true, false})
        compare("batch norm", to_string(shape), dtype, [&] {
          ParameterStore store;
          const BatchNorm2d norm(store, "bn", shape[1]);
          store.finalize(1);
          randomize(store, 2, 0.5f);
          const Tensor x = random_tensor(shape, 6, Layout::plain, 2.0f, dtype);
          Results out;
          if (training)
            out =
                run_layer(store, converted(x, dtype, Layout::nhwc), [&](Tape& tape, const Var& v) {
                  return batchnorm2d(tape, v, norm, {.relu = true, .residual = &v});
                });
          Tape tape({.training = false});
          out.push_back(
              batchnorm2d(tape, Var(converted(x, dtype, Layout::nhwc)), norm).value().to_vector());
          for (const Buffer& buffer : store.buffers()) out.push_back(buffer.value.to_vector());
          return out;
        });
      if (dtype == DType::bf16 && !bf16_on_cpu()) continue;
      for (bool largest : {true, false})
        compare("pooling", to_string(shape), dtype, [&] {
          ParameterStore store;
          Parameter& unused = store.add("unused", {1}, constant_init(0));
          store.finalize(1);
          unused.grad.fill_zero();
          const Tensor x = random_tensor(shape, 6, Layout::plain, 2.0f, dtype);
          return run_layer(store, converted(x, dtype, Layout::nhwc), [&](Tape& tape, const Var& v) {
            return largest ? max_pool2d(tape, v, {.kernel = 3, .stride = 2, .padding = 1})
                           : global_average_pool(tape, v);
          });
        });
    }
}

TEST_CASE("compare: products") {
  for (DType dtype : library_types())
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {17, 33, 65}, {128, 40, 3}})
      for (int form = 0; form < 8; ++form)
        compare(
            "gemm", concat(m, " x ", n, " x ", k, ", form ", form), dtype,
            [&, m = m, n = n, k = k]() -> Results {
              const bool ta = (form & 1) != 0, tb = (form & 2) != 0;
              const Tensor a = factor(m, k, ta, 1, dtype), b = factor(k, n, tb, 2, dtype);
              const Tensor c = random_tensor({m, n}, 3);
              gemm(a, b, c,
                   {.transpose_a = ta, .transpose_b = tb, .beta = (form & 4) != 0 ? 1.0f : 0.0f});
              const PackedMatrix packed(random_tensor({k, n}, 4), false, m, dtype, 1.0f);
              const Tensor left = random_tensor({m, k}, 5, Layout::plain, 1.0f, dtype);
              packed.multiply(left, c);
              return {c.to_vector()};
            });
}

TEST_CASE("compare: products by the fastest algorithm") {
  const auto multiply = [](const Tensor& a, const Tensor& b, const Tensor& c,
                           const GemmOptions& o) {
#ifdef HEDDLE_CUDA
    if (c.device().is_cuda()) return cuda::fastest_gemm(a, b, c, o);
#endif
    gemm(a, b, c, o);
  };
  for (bool tune : {false, true})
    for (DType dtype : library_types())
      for (const auto& [m, n, k] : {std::tuple{24, 40, 64}, {17, 33, 65}, {9, 40, 3}})
        for (int form = 0; form < 16; ++form)
          compare(
              "gemm", concat(m, " x ", n, " x ", k, ", form ", form, tune ? ", timed" : ""), dtype,
              [&, m = m, n = n, k = k]() -> Results {
                const bool ta = (form & 1) != 0, tb = (form & 2) != 0;
                const Tensor a = factor(m, k, ta, 1, dtype), b = factor(k, n, tb, 2, dtype);
                const Tensor c = random_tensor({m, n}, 3, Layout::plain, 1.0f,
                                               (form & 8) != 0 ? dtype : DType::f32);
                const GemmOptions options = {
                    .transpose_a = ta, .transpose_b = tb, .beta = (form & 4) != 0 ? 1.0f : 0.0f};
                multiply(a, b, c, options);
                multiply(a, b, c, options);
                return {c.to_vector()};
              },
              subject(tune));
}

TEST_CASE("compare: convolutions") {
  struct Form {
    Shape x;
    int64_t out, kernel;
    Conv2dOptions options;
  };
  const Form forms[] = {{{2, 3, 17, 13}, 16, 3, {.stride = 1, .padding = 1, .groups = 1}},
                        {{2, 3, 31, 29}, 8, 7, {.stride = 2, .padding = 3, .groups = 1}},
                        {{3, 16, 9, 7}, 24, 3, {.stride = 2, .padding = 1, .groups = 1}},
                        {{3, 24, 9, 7}, 16, 1, {.stride = 1, .padding = 0, .groups = 1}},
                        {{3, 24, 9, 7}, 40, 1, {.stride = 2, .padding = 0, .groups = 1}},
                        {{1, 16, 6, 5}, 32, 3, {.stride = 1, .padding = 1, .groups = 4}},
                        {{2, 16, 6, 5}, 3, 3, {.stride = 2, .padding = 1, .groups = 1}}};
  for (bool tune : {false, true})
    for (DType dtype : library_types())
      for (const Form& f : forms) {
        const std::string what =
            concat(to_string(f.x), " to ", f.out, " by ", f.kernel, ", stride ", f.options.stride,
                   ", groups ", f.options.groups, tune ? ", timed" : "");
        const auto job = [&] {
          ParameterStore store;
          const Conv2d conv(store, "conv",
                            {.in = f.x[1],
                             .out = f.out,
                             .kernel = f.kernel,
                             .stride = f.options.stride,
                             .padding = f.options.padding,
                             .groups = f.options.groups,
                             .bias = true});
          store.finalize(1);
          return run_layer(store, random_tensor(f.x, 6, Layout::plain, 1.0f, dtype),
                           [&](Tape& tape, const Var& v) {
                             return conv2d(tape, v, *conv.weight, conv.bias, f.options);
                           });
        };
        compare("convolution", what, dtype, job, subject(tune));
#ifdef HEDDLE_SIMULATED_GPU
        // Its cuDNN has one engine that is faster than all algorithms, used for all three passes;
        // its cuBLASLt has none for the weight gradient here, a sum of 189 terms.
        if (subject().device.is_cuda()) {
          Context context(subject(tune));
          (void)job();
          const int64_t engines = simulated::fast_engines_run, products = simulated::fast_products;
          (void)job();
          const bool product = f.kernel == 1 && f.options.stride == 1;
          CHECK(simulated::fast_engines_run - engines == (tune && !product ? 3 : 0));
          CHECK(simulated::fast_products - products == (tune && product ? 2 : 0));
        }
#endif
        const auto transposed = [&] {
          ParameterStore store;
          const Shape shape{f.x[1], f.out / f.options.groups, f.kernel, f.kernel};
          Parameter& weight = store.add("weight", shape, normal_init(0.1f));
          Parameter& bias = store.add("bias", {f.out}, normal_init(0.1f));
          store.finalize(1);
          return run_layer(store, random_tensor(f.x, 6, Layout::plain, 1.0f, dtype),
                           [&](Tape& tape, const Var& v) {
                             return conv_transpose2d(tape, v, weight, &bias, f.options);
                           });
        };
        compare("transposed convolution", what, dtype, transposed, subject(tune));
      }
}

// At several alignments: a library's algorithm may rely on that of the first call.
TEST_CASE("compare: products with a bias") {
  for (DType dtype : library_types())
    for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {17, 33, 65}, {9, 24, 40}})
      for (bool transpose : {false, true})
        compare("gemm", concat(m, " x ", n, " x ", k, transpose ? ", transposed" : "", ", bias"),
                dtype, [&, m = m, n = n, k = k]() -> Results {
                  Results out;
                  for (int64_t skip : {0, 1, 3}) {
                    const auto behind = [&](const Shape& shape, uint64_t seed, DType type) {
                      const Tensor all =
                          random_tensor({shape.elements() + skip}, seed, Layout::plain, 1.0f, type);
                      return all.slice(skip, all.size()).reshape(shape);
                    };
                    const Tensor a = behind({m, k}, 1, dtype);
                    const Tensor b = behind(transpose ? Shape{n, k} : Shape{k, n}, 2, dtype);
                    const Tensor c = behind({m, n}, 3, DType::f32);
                    const Tensor bias = behind({n}, 4, DType::f32),
                                 other = behind({n}, 5, DType::f32);
                    for (const Tensor& added : {bias, other}) {
                      gemm_with_bias(a, b, transpose, added, c);
                      out.push_back(c.to_vector());
                    }
                  }
                  return out;
                });
}

namespace {

// Returns the losses of three steps and the parameters after them.
Results train_steps(ParameterStore& store, std::unique_ptr<UpdateRule> rule,
                    const std::function<Var(Tape&)>& loss_of) {
  Optimizer optimizer(store, std::move(rule), {.clip_grad_norm = 5});
  Results out;
  for (int step = 0; step < 3; ++step) {
    Tape tape({.seed = 1, .step = static_cast<uint64_t>(step)});
    const Var loss = loss_of(tape);
    out.push_back(loss.value().to_vector());
    optimizer.begin_step(0.05);
    tape.backward(
        loss, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) { optimizer.weights_free(p); });
    optimizer.finish_step();
  }
  out.push_back(store.values().to_vector());
  return out;
}

}  // namespace

TEST_CASE("kernels, compare: updates") {
  for (int rule = 0; rule < 4; ++rule)
    compare("update", concat("rule ", rule), DType::f32, [&]() -> Results {
      ParameterStore store;
      Parameter& w = store.add("w", {13, 21}, uniform_init(1));
      store.finalize(1);
      auto made = rule < 2 ? make_sgd({.momentum = 0.9 * (rule % 2), .weight_decay = 0.01})
                           : make_adam({.weight_decay = 0.01, .decoupled = rule == 3});
      made->attach(store);
      for (int64_t step = 1; step < 4; ++step) {
        w.grad.copy_from(random_tensor({13, 21}, static_cast<uint64_t>(step)));
        made->update(w, {.lr = 0.1, .grad_scale = 0.5, .step = step, .from_residual = step > 1});
      }
      return {w.value.to_vector()};
    });
}

TEST_CASE("steps, compare: a ResNet and a language model") {
  for (DType dtype : library_types()) {
    compare("resnet step", "resnet20, (8, 3, 17, 17)", dtype, [&] {
      ParameterStore store;
      const ResNet model(store, {.arch = "resnet20", .classes = 5});
      store.finalize(1);
      const Tensor x = random_tensor({8, 3, 17, 17}, 1, Layout::plain, 1.0f, dtype);
      return train_steps(store, make_sgd({.momentum = 0.9}), [&](Tape& tape) {
        return softmax_cross_entropy(tape, model.forward(tape, Var(x)), random_integers({8}, 3, 5));
      });
    });
    for (bool tied : {false, true})
      compare("language model step", concat("2 x 32 units", tied ? ", tied" : ""), dtype, [&] {
        ParameterStore store;
        const LstmLm model(
            store, {.vocabulary = 50, .emsize = 32, .nhid = 32, .tied = tied, .dtype = dtype});
        store.finalize(1);
        LstmState state = model.zero_state(3);
        return train_steps(store, make_sgd({}), [&](Tape& tape) {
          const Var logits = model.forward(tape, random_integers({9, 3}, 1, 50), state);
          return softmax_cross_entropy(tape, logits, random_integers({9, 3}, 2, 50),
                                       {.overwrite_logits = true});
        });
      });
  }
}
