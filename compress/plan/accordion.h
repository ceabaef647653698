// Accordion (Agarwal et al. 2021, arXiv 2010.16248): a layer is in a critical regime while the norm
// of its gradients changes much from one look to the next, and when the learning rate has decayed.
// Then it is compressed as little as ever, otherwise twice as much.
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
  // The norms of the layers' summed gradients, and the learning rate; by layer, whether it is
  // critical. All are at the first look and when the rate has fallen to half or less since the last
  // sample; then those whose norm has changed by half or more, was zero, or is not known.
  std::vector<bool> judge(const std::vector<double>& norms, double lr);

  // What a checkpoint keeps: the last sample, whose norms are empty before the first.
  struct Sample {
    std::vector<double> norms;
    double lr = 0;
  };
  const Sample& last() const { return last_; }
  void restore(Sample last) { last_ = std::move(last); }

 private:
  Sample last_;
};

// A candidate for each layer: for a critical one the uniform setting, for another that whose bytes
// are nearest to half of the uniform's.
std::vector<size_t> accordion_settings(const std::vector<LayerChoices>& layers,
                                       const std::vector<bool>& critical);

}  // namespace heddle
