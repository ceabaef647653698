#include "layers/resnet.h"

#include <optional>

#include "layers/pooling.h"
#include "layers/shortcut.h"

namespace heddle {
namespace {

struct Arch {
  const char* name;
  bool cifar, bottleneck;
  std::vector<int64_t> depths;  // blocks per stage
};

const std::vector<Arch>& archs() {
  static const std::vector<Arch> all = {
      {"resnet20", true, false, {3, 3, 3}},      {"resnet32", true, false, {5, 5, 5}},
      {"resnet44", true, false, {7, 7, 7}},      {"resnet56", true, false, {9, 9, 9}},
      {"resnet110", true, false, {18, 18, 18}},  {"resnet18", false, false, {2, 2, 2, 2}},
      {"resnet34", false, false, {3, 4, 6, 3}},  {"resnet50", false, true, {3, 4, 6, 3}},
      {"resnet101", false, true, {3, 4, 23, 3}}, {"resnet152", false, true, {3, 8, 36, 3}},
  };
  return all;
}

const Arch& find_arch(const std::string& name) {
  for (const Arch& a : archs())
    if (a.name == name) return a;
  std::string known;
  for (const Arch& a : archs()) known += std::string(known.empty() ? "" : ", ") + a.name;
  throw InputError(concat("--arch: expected one of ", known, ", found '", name, "'"));
}

}  // namespace

const std::vector<std::string>& resnet_archs() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Arch& a : archs()) out.push_back(a.name);
    return out;
  }();
  return names;
}

// Two 3x3 convolutions, or 1x1, 3x3, 1x1 (bottleneck), and a shortcut around them.
struct ResNet::Block {
  struct Unit {
    Conv2d conv;
    BatchNorm2d norm;
  };
  std::vector<Unit> units;
  std::optional<Unit> downsample;  // 1x1 convolution
  int64_t pad_to = 0;              // option A: channels of the padded identity, 0 if not needed

  Var forward(Tape& tape, const Var& x) const {
    Var skip = x;
    if (downsample)
      skip = batchnorm2d(tape, downsample->conv.forward(tape, x), downsample->norm);
    else if (pad_to > 0)
      skip = subsample_pad(tape, x, pad_to);
    Var y = x;
    for (const Unit& unit : units) {
      const bool last = &unit == &units.back();
      y = batchnorm2d(tape, unit.conv.forward(tape, y), unit.norm,
                      {.relu = true, .residual = last ? &skip : nullptr});
    }
    return y;
  }
};

ResNet::~ResNet() = default;
ResNet::ResNet(ResNet&&) noexcept = default;

ResNet::ResNet(ParameterStore& store, const ResNetOptions& options) {
  const Arch& arch = find_arch(options.arch);
  check(options.classes > 0, "classes: expected a positive number, found ", options.classes);
  using Stem = ResNetOptions::Stem;
  const bool small = options.stem == Stem::cifar || (options.stem == Stem::automatic && arch.cifar);
  const bool fan_out = !arch.cifar;
  int64_t width = arch.cifar ? 16 : 64;
  stem_conv_ = std::make_unique<Conv2d>(store, "conv1",
                                        Conv2d::Options{.in = 3,
                                                        .out = width,
                                                        .kernel = small ? 3 : 7,
                                                        .stride = small ? 1 : 2,
                                                        .padding = small ? 1 : 3,
                                                        .fan_out = fan_out});
  stem_norm_ = std::make_unique<BatchNorm2d>(store, "bn1", width);
  stem_pool_ = !small;
  const int64_t expansion = arch.bottleneck ? 4 : 1;
  int64_t in = width;
  for (size_t stage = 0; stage < arch.depths.size(); ++stage, width *= 2) {
    for (int64_t b = 0; b < arch.depths[stage]; ++b) {
      const int64_t stride = stage > 0 && b == 0 ? 2 : 1, out = width * expansion;
      const std::string name = concat("layer", stage + 1, ".", b);
      Block block;
      auto unit = [&](const std::string& conv, const std::string& norm, int64_t from, int64_t to,
                      int64_t kernel, int64_t step) {
        return Block::Unit{Conv2d(store, name + conv,
                                  {.in = from,
                                   .out = to,
                                   .kernel = kernel,
                                   .stride = step,
                                   .padding = kernel / 2,
                                   .fan_out = fan_out}),
                           BatchNorm2d(store, name + norm, to)};
      };
      if (arch.bottleneck) {
        block.units.push_back(unit(".conv1", ".bn1", in, width, 1, 1));
        block.units.push_back(unit(".conv2", ".bn2", width, width, 3, stride));
        block.units.push_back(unit(".conv3", ".bn3", width, out, 1, 1));
      } else {
        block.units.push_back(unit(".conv1", ".bn1", in, out, 3, stride));
        block.units.push_back(unit(".conv2", ".bn2", out, out, 3, 1));
      }
      if (stride != 1 || in != out) {
        if (arch.cifar)
          block.pad_to = out;
        else
          block.downsample = unit(".downsample.0", ".downsample.1", in, out, 1, stride);
      }
      blocks_.push_back(std::move(block));
      in = out;
    }
  }
  head_ = std::make_unique<Linear>(store, "fc", in, options.classes);
}

Var ResNet::forward(Tape& tape, const Var& images) const {
  Var x = batchnorm2d(tape, stem_conv_->forward(tape, images), *stem_norm_, {.relu = true});
  if (stem_pool_) x = max_pool2d(tape, x, {.kernel = 3, .stride = 2, .padding = 1});
  for (const Block& block : blocks_) x = block.forward(tape, x);
  return head_->forward(tape, global_average_pool(tape, x));
}

}  // namespace heddle
