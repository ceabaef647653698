// Residual networks (He et al., 2016).
// CIFAR family: ResNet-20/32/44/56/110, three stages of 16, 32, 64 channels, option A shortcuts.
// ImageNet family: ResNet-18/34/50/101/152 in torchvision's layout (stride on the 3x3 convolution).
//
//   ResNet model(store, {.arch = "resnet20", .classes = 10});
//   store.finalize(seed);
//   Var logits = model.forward(tape, Var(images));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tape.h"
#include "layers/batchnorm.h"
#include "layers/conv2d.h"
#include "layers/image_classifier.h"
#include "layers/linear.h"

namespace heddle {

struct ResNetOptions {
  std::string arch = "resnet20";
  int64_t classes = 10;
  // automatic: cifar for the CIFAR family, imagenet (7x7 stride 2, max pooling) for the other.
  enum class Stem { automatic, cifar, imagenet } stem = Stem::automatic;
};

// Returns the names that ResNet accepts.
const std::vector<std::string>& resnet_archs();

class ResNet : public ImageClassifier {
 public:
  // Throws InputError for an unknown arch.
  ResNet(ParameterStore& store, const ResNetOptions& options);
  ~ResNet() override;
  ResNet(ResNet&&) noexcept;

  Var forward(Tape& tape, const Var& images) const override;

 private:
  struct Block;
  std::unique_ptr<Conv2d> stem_conv_;
  std::unique_ptr<BatchNorm2d> stem_norm_;
  bool stem_pool_ = false;
  std::vector<Block> blocks_;
  std::unique_ptr<Linear> head_;
};

}  // namespace heddle
