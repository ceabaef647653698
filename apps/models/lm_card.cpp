#include "apps/models/lm_card.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/json.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

// Returns the number of columns of a matrix of the file; 0 if it has no such matrix.
int64_t columns(const WeightsFile& file, const std::string& name) {
  return file.has(name) && file.info(name).shape.rank() == 2 ? file.info(name).shape[1] : 0;
}

// Returns a token for an error: in quotes, or as a number if it is one unprintable byte.
std::string show(const std::string& token) {
  const auto byte = static_cast<uint8_t>(token.empty() ? 0 : token[0]);
  const bool text = token.size() != 1 || (byte >= 0x20 && byte < 0x7f);
  return text ? concat("'", printable(token, 40), "'") : concat("byte ", int{byte});
}

}  // namespace

std::string format_vocabulary(const Vocabulary& vocabulary, TextLevel level) {
  nlohmann::json array = nlohmann::json::array();
  for (const std::string& token : vocabulary.texts()) {
    if (level == TextLevel::character)
      array.push_back(static_cast<uint8_t>(token.at(0)));
    else
      array.push_back(token);
  }
  return array.dump();
}

Vocabulary parse_vocabulary(const std::string& text, const std::string& where) {
  check_json_depth(text, where);
  const auto array = nlohmann::json::parse(text, nullptr, false);
  check(array.is_array(), where, ": expected a JSON array, found '", printable(text, 40), "'");
  Vocabulary out;
  for (const auto& entry : array) {
    const bool byte = entry.is_number_unsigned() && entry.get<uint64_t>() < 256;
    check(byte || entry.is_string(), where, ": entry ", out.size(),
          ": expected a string or a byte from 0 to 255");
    const std::string token =
        byte ? std::string(1, static_cast<char>(entry.get<uint8_t>())) : entry.get<std::string>();
    check(out.find(token) < 0, where, ": entry ", out.size(), ": ", show(token), " occurs twice");
    out.add(token);
  }
  return out;
}

LmCard read_lm_card(const WeightsFile& file) {
  check(!file.has("conv1.weight"), file.path(),
        ": expected a language model, found a residual network, which train_resnet reads");
  LmCard card;
  card.emsize = columns(file, "encoder.weight");
  card.nhid = columns(file, "rnn.weight_hh_l0");
  while (file.has(concat("rnn.weight_ih_l", card.nlayers))) ++card.nlayers;
  card.tied = file.value("tied") == "true";
  if (!file.value("level").empty()) card.level = parse_text_level(file.value("level"));
  if (file.value("vocabulary").empty()) return card;

  const std::string where = file.path() + ": metadata vocabulary";
  card.vocabulary = parse_vocabulary(file.value("vocabulary"), where);
  check(card.level != TextLevel::automatic, file.path(),
        ": expected metadata level (word or char) next to the vocabulary");
  if (card.emsize > 0) {
    const int64_t rows = file.info("encoder.weight").shape[0];
    check(rows == card.vocabulary.size(), where, ": expected ", rows,
          " tokens, one for each row of encoder.weight, found ", card.vocabulary.size());
  }
  const auto is_byte = [](const std::string& token) { return token.size() == 1; };
  const auto& texts = card.vocabulary.texts();
  check(card.level == TextLevel::word || std::all_of(texts.begin(), texts.end(), is_byte), where,
        ": expected single bytes at level char");
  return card;
}

std::map<std::string, std::string> lm_metadata(const LstmLm& model, TextLevel level,
                                               const Vocabulary& vocabulary) {
  const LstmLmOptions& o = model.options();
  return {{"format", "pt"},
          {"model", "lstm_lm"},
          {"level", text_level_name(level)},
          {"vocabulary", format_vocabulary(vocabulary, level)},
          {"emsize", std::to_string(o.emsize)},
          {"nhid", std::to_string(o.nhid)},
          {"nlayers", std::to_string(o.nlayers)},
          {"tied", o.tied ? "true" : "false"}};
}

void save_lm(const std::string& path, const LstmLm& model, TextLevel level,
             const Vocabulary& vocabulary) {
  save_safetensors(path, model.named_tensors(), lm_metadata(model, level, vocabulary));
}

void check_same_vocabulary(const Vocabulary& corpus, const std::string& corpus_name,
                           const Vocabulary& file, const std::string& file_name) {
  const auto& a = corpus.texts();
  const auto& b = file.texts();
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (x == a.end() && y == b.end()) return;
  const auto number = x - a.begin();
  throw InputError(concat(file_name, ": made for a different vocabulary, of ", b.size(),
                          " tokens; that of ", corpus_name, " has ", a.size(),
                          ". The first difference: token ", number, " is ",
                          y == b.end() ? "missing" : show(*y), " in the file, ",
                          x == a.end() ? "missing" : show(*x), " in the text"));
}

}  // namespace heddle
