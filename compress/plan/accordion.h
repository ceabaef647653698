// Accordion (Agarwal et al. 2021, arXiv 2010.16248): a layer is in a critical regime while the norm
// of its gradients changes much from one sample to the next, and when the learning rate has
// decayed. A critical layer keeps the uniform setting, others are compressed twice as much.
//
//   Accordion accordion;
//   const auto critical = accordion.judge(norms, lr);          // every so many steps
//   const auto settings = accordion_settings(layers, critical);
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "compress/plan/l_greco.h"

namespace heddle {

class Accordion {
 public:
  // Returns for each layer whether it is critical, given the norms of the layers' summed gradients
  // and the learning rate. All layers are critical in the first sample and when the rate has fallen
  // to half or less since the last one; later those whose norm has changed by half or more, was
  // zero, or is not finite.
  std::vector<bool> judge(const std::vector<double>& norms, double lr);

  // The state for a checkpoint: the last sample; norms are empty before the first.
  struct Sample {
    std::vector<double> norms;
    double lr = 0;
  };
  const Sample& last() const { return last_; }
  void restore(Sample last) { last_ = std::move(last); }

 private:
  Sample last_;
};

// Returns the index of a setting for each layer: the uniform one for a critical layer, otherwise
// the one whose bytes are nearest to half of the uniform setting's.
std::vector<size_t> accordion_settings(const std::vector<LayerChoices>& layers,
                                       const std::vector<bool>& critical);

}  // namespace heddle
