// ImageClassifier: a network that sorts images into classes.
//
//   const std::unique_ptr<ImageClassifier> model = std::make_unique<ResNet>(store, options);
//   Var logits = model->forward(tape, Var(images));
#pragma once

#include "core/tape.h"

namespace heddle {

class ImageClassifier {
 public:
  virtual ~ImageClassifier() = default;
  // images (N, 3, H, W), f32 or bf16, plain -> logits (N, classes), f32. Throws InputError for
  // images that are too small or of another size than the network was made for.
  virtual Var forward(Tape& tape, const Var& images) const = 0;
};

}  // namespace heddle
