// Reads and writes the metadata of a language model's weights file, a safetensors file with the
// names of PyTorch's word_language_model example: level and vocabulary, and for people and other
// programs the sizes too. The vocabulary is a JSON array: of strings at word level, of bytes as
// numbers at character level, because a single byte need not be UTF-8.
//
//   save_lm("runs/a/model.safetensors", model, corpus.level, corpus.vocabulary);
//   LmCard card = read_lm_card(WeightsFile("runs/a"));
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "data/text.h"
#include "layers/lstm_lm.h"
#include "layers/weights.h"

namespace heddle {

// Zero and empty where the file has no value: files from PyTorch have neither level nor vocabulary.
// The sizes are those of the tensors.
struct LmCard {
  TextLevel level = TextLevel::automatic;
  Vocabulary vocabulary;
  int64_t emsize = 0, nhid = 0, nlayers = 0;
  bool tied = false;
};

// Reads the card. Throws InputError for an invalid card, for one that contradicts the tensors, and
// for a file that is not a language model.
LmCard read_lm_card(const WeightsFile& file);

// Returns the metadata that hold the card.
std::map<std::string, std::string> lm_metadata(const LstmLm& model, TextLevel level,
                                               const Vocabulary& vocabulary);

// Writes the weights with their card. Throws Error if the file cannot be written; in that case no
// file is left under its name.
void save_lm(const std::string& path, const LstmLm& model, TextLevel level,
             const Vocabulary& vocabulary);

// Returns the vocabulary as the card holds it.
std::string format_vocabulary(const Vocabulary& vocabulary, TextLevel level);
// Parses such a vocabulary. Throws an InputError that begins with `where` for any other text.
Vocabulary parse_vocabulary(const std::string& text, const std::string& where);

// Throws an InputError that names the first difference unless both have the same tokens with the
// same numbers.
void check_same_vocabulary(const Vocabulary& corpus, const std::string& corpus_name,
                           const Vocabulary& file, const std::string& file_name);

}  // namespace heddle
