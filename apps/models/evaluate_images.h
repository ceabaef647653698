// Applies a residual network without training: loss and accuracy over a data set, and the best
// classes of single images.
//
//   Evaluation e = evaluate(model, valid_loader, context.device(), DType::f32);
//   for (const Guess& g : predict(model, "cat.jpg", prepare, device, 5)) ...
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/models/guesses.h"
#include "apps/models/mistakes.h"
#include "data/loader.h"
#include "layers/image_classifier.h"
#include "optim/learner_optimizer.h"

namespace heddle {

// NaN (null in JSON): not evaluated.
struct Evaluation {
  double loss = NAN;              // mean cross-entropy in nats
  double acc1 = NAN, acc5 = NAN;  // percent
  int64_t samples = 0;
  double seconds = 0;
};

// Evaluates one pass over the loader's epoch 0. Throws InputError for a label that the network
// lacks. With several learners, whose loaders share the set, each evaluates its part and all get
// the whole result; the call is then collective. `mistakes`, if given, gets every batch.
Evaluation evaluate(const ImageClassifier& model, const Loader& loader, Device device, DType dtype,
                    LearnerOptimizer* learners = nullptr, Mistakes* mistakes = nullptr);

// Replaces batch norm's running statistics, which every learner accumulates on its own batches, by
// their mean. Collective.
void average_buffers(ParameterStore& store, LearnerOptimizer& learners);

// Returns the `count` most probable classes of an image file, best first. `prepare` is the
// validation transform. Throws InputError for a file that is not an image, and if the output is not
// finite.
std::vector<Guess> predict(const ImageClassifier& model, const std::string& file,
                           const Augmentation& prepare, Device device, int count);

}  // namespace heddle
