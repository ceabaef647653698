// Weights files of other programs, files that hold no weights, and images, which --predict and
// --evaluate prepare in the same way.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "apps/models/evaluate_images.h"
#include "apps/models/lm_card.h"
#include "apps/models/resnet_card.h"
#include "apps/session/resnet_setup.h"
#include "core/context.h"
#include "core/safetensors.h"
#include "layers/resnet.h"
#include "tests/app_helpers.h"

namespace heddle {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

struct Net {
  ParameterStore store;
  ResNet model;
  explicit Net(uint64_t seed, int64_t classes = 4)
      : model(store, {.arch = "resnet20", .classes = classes}) {
    store.finalize(seed);
  }
};

bool equal(const Net& a, const Net& b) {
  return a.store.values().to_vector() == b.store.values().to_vector();
}

TEST_CASE("weights: files of other programs") {
  const Context context({.threads = 1});
  const TempFolder temp;
  const std::string path = temp.path + "/m.safetensors";
  const Net net(1);
  NamedTensors uncounted, wrapped, renamed;
  for (const auto& [name, tensor] : net.store.named_tensors()) {
    if (!name.ends_with("num_batches_tracked")) uncounted.emplace_back(name, tensor);
    wrapped.emplace_back("module." + name, tensor);
    renamed.emplace_back(name.starts_with("fc.") ? "linear" + name.substr(2) : name, tensor);
  }
  CHECK(uncounted.size() < wrapped.size());
  for (const auto& [tensors, head] :
       {std::pair{uncounted, ""}, {wrapped, ""}, {renamed, "linear"}}) {
    save_safetensors(path, tensors);
    const WeightsFile file(path, head);
    const ResnetCard card = read_resnet_card(file);
    CHECK(card.arch == "resnet20");
    CHECK(card.class_count == 4);
    const Net other(2);
    REQUIRE_FALSE(equal(net, other));
    load_weights(file, other.store.named_tensors());
    CHECK(equal(net, other));
  }
  CHECK(contains(message_of([&] { read_resnet_card(WeightsFile(path)); }),
                 "found none; if linear is the last layer, give --head linear"));
  CHECK(message_of([&] {
          WeightsFile(path, "top");
        }).starts_with("head top: expected a tensor top.weight in"));
  renamed.emplace_back("fc.weight", Tensor::zeros({1}));
  save_safetensors(path, renamed);
  CHECK(mentions(message_of([&] { WeightsFile(path, "linear"); }), {"fc.weight"}));
}

TEST_CASE("weights: tensors determine architecture, stem and image size; metadata wins") {
  const Context context({.threads = 1});
  const TempFolder temp;
  const std::string path = temp.path + "/m.safetensors";
  const std::vector<std::tuple<std::string, std::vector<int>, bool>> all = {
      {"resnet20", {3, 3, 3}, false},     {"resnet110", {18, 18, 18}, false},
      {"resnet18", {2, 2, 2, 2}, false},  {"resnet34", {3, 4, 6, 3}, false},
      {"resnet50", {3, 4, 6, 3}, true},   {"resnet101", {3, 4, 23, 3}, true},
      {"resnet152", {3, 8, 36, 3}, true}, {"", {1, 1}, false}};
  for (const auto& [arch, depths, bottleneck] : all)
    for (const int64_t kernel : {3, 7}) {
      NamedTensors tensors = {{"conv1.weight", Tensor::zeros({1, 3, kernel, kernel})},
                              {"fc.weight", Tensor::zeros({9, 2})}};
      for (size_t stage = 0; stage < depths.size(); ++stage)
        for (int block = 0; block < depths[stage]; ++block)
          for (int conv = 1; conv <= (bottleneck ? 3 : 2); ++conv)
            tensors.emplace_back(concat("layer", stage + 1, ".", block, ".conv", conv, ".weight"),
                                 Tensor::zeros({1}));
      save_safetensors(path, tensors);
      const ResnetCard card = read_resnet_card(WeightsFile(path));
      CHECK(card.arch == arch);
      CHECK(card.stem == (kernel == 7 ? "imagenet" : "cifar"));
      CHECK(card.image_size == (kernel == 7 ? 224 : 32));
      CHECK(card.resize == (kernel == 7 ? 256.0f / 224.0f : 1));
      CHECK(contains(card.found, kernel == 7 ? "images of 224 pixels" : "images of 32 pixels"));
      save_safetensors(
          path, tensors,
          {{"arch", "resnet44"}, {"stem", "cifar"}, {"image_size", "48"}, {"resize", "1.25"}});
      const ResnetCard told = read_resnet_card(WeightsFile(path));
      CHECK(told.arch == "resnet44");
      CHECK(told.stem == "cifar");
      CHECK(told.image_size == 48);
      CHECK(told.resize == 1.25f);
      CHECK(told.found.empty());
    }
  save_safetensors(path, {{"fc.weight", Tensor::zeros({9, 2})}}, {{"resize", "0.5"}});
  CHECK(contains(message_of([&] { read_resnet_card(WeightsFile(path)); }),
                 "metadata resize: expected a number from 1 to 16"));
}

TEST_CASE("weights: an error describes a file that has no weights of this program") {
  const Context context({.threads = 1});
  const TempFolder temp;
  const auto said = [&](const std::string& name, const std::string& content) {
    const std::string path = temp.write(name, content);
    return message_of([&] { (void)WeightsFile(path); });
  };
  const std::string zeros(100, '\0');
  for (const std::string& beginning :
       {std::string("PK\x03\x04"), std::string("\x80\x02\x8a\x0a")}) {
    const std::string message = said("r18.pth", beginning + zeros);
    CHECK(mentions(message, {"r18.pth", "PyTorch"}));
    CHECK(contains(message, "r18.safetensors\")'"));
  }
  CHECK(contains(said("a.safetensors", "# ResNet-18\n\nWeights of"),
                 "found text that begins with '# ResNet-18??Weights of'"));
  CHECK(contains(said("b.safetensors", "version https://git-lfs.github.com/spec/v1\n"), "git lfs"));
  CHECK(mentions(said("c.safetensors", zeros), {"offset 8", "JSON"}));
  CHECK(mentions(message_of([&] { (void)WeightsFile(temp.path); }), {"model.safetensors"}));
  CHECK(contains(message_of([&] { (void)WeightsFile(temp.path + "/none"); }), "No such file"));

  const std::string path = temp.path + "/model.safetensors";
  save_safetensors(path, {{"rnn.weight_ih_l0", Tensor::zeros({4, 1})}});
  CHECK(contains(message_of([&] { read_resnet_card(WeightsFile(temp.path)); }),
                 "found a language model, which train_lm reads"));
  save_safetensors(path, {{"conv1.weight", Tensor::zeros({4, 1})}});
  CHECK(contains(message_of([&] { read_lm_card(WeightsFile(path)); }),
                 "found a residual network, which train_resnet reads"));
}

TEST_CASE("weights: evaluation uses the file's card, training the data's classes") {
  const Context context({.threads = 1});
  TrainResnetOptions o;
  o.image_size = 32;
  const Data shapes = open_data(o, Split::valid);
  ResnetCard loaded;
  loaded.class_count = 1000;
  loaded.resize = kFolderResize;
  loaded.normalization = {{0.1f, 0.2f, 0.3f}, {0.4f, 0.5f, 0.6f}};
  o.init = "x";
  const ResnetCard trained = make_card(o, loaded, shapes.set.get(), true);
  CHECK(trained.class_count == 10);
  CHECK(trained.resize == 1);
  CHECK(trained.normalization.mean == loaded.normalization.mean);
  const ResnetCard evaluated = make_card(o, loaded, shapes.set.get(), false);
  CHECK(evaluated.class_count == 1000);
  CHECK(evaluated.resize == kFolderResize);
  CHECK(evaluated.normalization.mean == loaded.normalization.mean);
  loaded.classes = {"a", "b"};  // with names, the classes must be the data's
  CHECK(make_card(o, loaded, shapes.set.get(), false).class_count == 10);
  const ResnetCard alone = make_card(o, ResnetCard(), nullptr, false);
  CHECK(alone.normalization.mean == kImageNet.mean);
  const Augmentation prepare = evaluation_transform(evaluated);
  CHECK(prepare.crop == Crop::center);
  CHECK(prepare.size == 32);
  CHECK(prepare.resize == kFolderResize);
  CHECK(prepare.normalization.std == loaded.normalization.std);
}

}  // namespace
}  // namespace heddle
