// A language model of several hundred weights, and vocabularies of given words, to test train_lm.
#pragma once

#include <string>
#include <vector>

#include "core/parameters.h"
#include "data/text.h"
#include "layers/lstm_lm.h"

namespace heddle {

inline Vocabulary vocabulary_of(const std::vector<std::string>& texts) {
  Vocabulary out;
  for (const std::string& text : texts) out.add(text);
  return out;
}

struct SmallModel {
  ParameterStore store;
  LstmLm model;
  explicit SmallModel(int64_t vocabulary, bool tied = false, uint64_t seed = 1)
      : model(store, {.vocabulary = vocabulary,
                      .emsize = 6,
                      .nhid = 6,
                      .nlayers = 2,
                      .dropout = 0.5f,
                      .tied = tied,
                      .init = 0.5f}) {
    store.finalize(seed);
  }
};

}  // namespace heddle
