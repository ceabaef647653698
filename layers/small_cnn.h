// SmallCnn: two convolutions and a linear layer, without batch norm, whose running statistics and
// whose dependence of one image's gradient on the others do not go with differential privacy.
//
//   images -> 3x3, 16 channels, ReLU, pool 2 -> 3x3, 32 channels, ReLU, pool 2 -> linear
//
//   SmallCnn model(store, {.classes = 10, .image_size = 32});   // 25,578 weights
#pragma once

#include "layers/conv2d.h"
#include "layers/image_classifier.h"
#include "layers/linear.h"

namespace heddle {

class SmallCnn : public ImageClassifier {
 public:
  struct Options {
    int64_t classes = 10, image_size = 32;  // pixels per side
  };
  // Throws InputError for fewer than 1 class or 4 pixels.
  SmallCnn(ParameterStore& store, const Options& options);
  Var forward(Tape& tape, const Var& images) const override;

 private:
  Conv2d first_, second_;
  Linear head_;
};

}  // namespace heddle
