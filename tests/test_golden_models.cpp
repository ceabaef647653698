// Whole networks against PyTorch: golden values of tests/golden/make_golden.py, and, where a
// python3 with PyTorch is found, weights and logits exchanged with it as files
// (tests/golden/interop.py).
#include <doctest/doctest.h>

#include "layers/loss.h"
#include "layers/resnet.h"
#include "tests/golden.h"
#include "tests/interop.h"

using namespace heddle;

namespace {

using Stem = ResNetOptions::Stem;

// A ResNet with ten classes and its parameters by the formula.
struct Network {
  ParameterStore store;
  ResNet model;

  Network(const std::string& arch, Stem stem) : model(store, {.arch = arch, .stem = stem}) {
    store.finalize(0);
    set_formula_parameters(store);
  }
  Tensor evaluate(const Tensor& images) const {
    Tape tape({.training = false});
    return model.forward(tape, Var(images)).value();
  }
};

void check_model(const std::string& name, const std::string& arch, Stem stem, int64_t batch,
                 int64_t size, double logits_bound = kGoldenBound) {
  CAPTURE(name);
  const Golden golden(name);
  Network network(arch, stem);
  const int64_t seed = golden.load("input_seed").data<int64_t>()[0];
  const Tensor images = formula(concat("input:", seed), {batch, 3, size, size});
  Tape tape;
  const Var logits = network.model.forward(tape, Var(images));
  const Var loss =
      softmax_cross_entropy(tape, logits, formula_labels(concat("labels:", seed), batch, 10));
  golden.expect("logits", logits.value(), logits_bound);
  golden.expect("loss", loss.value());
  tape.backward(loss);
  size_t gradients = 0;
  for (const Parameter& p : network.store.parameters()) {
    if (!golden.has("grad:" + p.name + ".sampled")) continue;
    golden.expect("grad:" + p.name, p.grad);
    ++gradients;
  }
  CHECK(gradients + 4 == golden.names().size());
  golden.expect("eval_logits", network.evaluate(images));
}

void exchange(const std::string& python, const std::string& arch, Stem stem, int64_t size,
              const std::string& torch_arch) {
  CAPTURE(torch_arch);
  const ScratchFolder scratch;
  const Tensor images = formula("interop.input", {4, 3, size, size});

  // Ours to PyTorch, after a forward pass of training, so that running statistics are not 0 and 1.
  Network ours(arch, stem);
  Tape tape;
  ours.model.forward(tape, Var(images));
  save_safetensors(scratch.weights(), ours.store.named_tensors());
  save_safetensors(scratch.logits(), {{"logits", ours.evaluate(images)}});
  CHECK(interop(python, "check", torch_arch, scratch) == 0);

  // PyTorch's to us.
  REQUIRE(interop(python, "write", torch_arch, scratch) == 0);
  const auto file = SafetensorsFile::open(scratch.weights());
  const auto tensors = ours.store.named_tensors();
  CHECK(file.names().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) tensor.copy_from(file.load(name));
  const Tensor expected = SafetensorsFile::open(scratch.logits()).load("logits");
  CHECK(relative_error(ours.evaluate(images).to_vector(), expected.to_vector()) <= kGoldenBound);
}

}  // namespace

TEST_CASE("golden: ResNet-20") {
  Context context(on_test_device());
  check_model("resnet20", "resnet20", Stem::cifar, 4, 16);
}

TEST_CASE("golden: ResNet-18") {
  Context context(on_test_device());
  check_model("resnet18", "resnet18", Stem::cifar, 2, 16);
  check_model("resnet18_imagenet", "resnet18", Stem::imagenet, 4, 48);
}

TEST_CASE("golden: ResNet-50") {
  Context context(on_test_device());
  // Fifty layers of batch statistics over few values amplify rounding: PyTorch's own float32
  // is 2.5e-5 from float64. Winograd convolutions (6e-5 measured) get a looser bound for it.
  check_model("resnet50_imagenet", "resnet50", Stem::imagenet, 2, 128, 3e-4);
}

TEST_CASE("PyTorch reads our weights and we read PyTorch's") {
  const std::string python = find_torch();
  if (python.empty()) {
    MESSAGE("skipped: no python3 with torch");
    return;
  }
  Context context(on_test_device());
  exchange(python, "resnet20", Stem::cifar, 32, "resnet20");
  exchange(python, "resnet18", Stem::cifar, 32, "resnet18:cifar");
  exchange(python, "resnet50", Stem::imagenet, 64, "resnet50:imagenet");
}
