// Mistakes of a classifier in a validation: how often it takes one class for another, and the
// images with the largest losses. The report draws both (mistakes.json in the run folder).
//
//   Mistakes mistakes(10);
//   mistakes.add(logits, labels, batch.first_sample);  // every batch
//   mistakes.combine(optimizer);                       // with several learners
//   folder.write_optional("mistakes.json", json_line(mistakes.json(loader, classes)));
//
// Used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "data/loader.h"
#include "optim/learner_optimizer.h"

namespace heddle {

class Mistakes {
 public:
  static constexpr size_t kImages = 16;
  static constexpr int kSide = 64;  // pixels per side of a picture in the file, at most

  explicit Mistakes(int64_t classes) : classes_(classes) {}

  // Counts a batch: logits f32 (N, classes) on any device, labels i32 (N) on the CPU. The images
  // are first_sample, first_sample + 1, … of the set, which is not shuffled. Those whose logits are
  // not finite are left out. Throws InputError for another shape and a label out of range.
  void add(const Tensor& logits, const Tensor& labels, int64_t first_sample);
  // Combines what the learners have counted, perhaps nothing; all have the result. Collective.
  void combine(LearnerOptimizer& learners);

  // Returns {"classes": names, "confusion": [[class, taken for, images], …] without zeros,
  // "images": [{"image", "class", "guess", "probability", "loss"}, …] with the largest loss first
  // (indices of the image, its class and the guess),
  // "side": pixels, "sheet": these images as the network sees them, one below the other, a PNG file
  // in base 64}. Throws InputError for an image that cannot be read.
  nlohmann::ordered_json json(const Loader& loader, const std::vector<std::string>& classes) const;

 private:
  struct Hard {
    double loss = -1, probability = 0;  // of the guess
    int64_t image = -1, label = 0, guess = 0;
  };
  void keep(std::vector<Hard> more);

  int64_t classes_;
  std::map<std::pair<int64_t, int64_t>, int64_t> counts_;  // by label and guess
  std::vector<Hard> hard_;                                 // at most kImages
};

}  // namespace heddle
