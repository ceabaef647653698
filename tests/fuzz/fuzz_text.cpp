// Arbitrary bytes as a text: it is divided and encoded, or refused with an InputError; tokens, all
// of them in the vocabulary, are the same after decoding and encoding, and can be read in windows.
// The first byte chooses the level and the windows; the rest up to the first "===" is the corpus,
// the remainder another text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/context.h"
#include "core/error.h"
#include "data/text.h"

namespace {

using namespace heddle;

void require(bool ok) {
  if (!ok) std::abort();
}

void check_round_trip(const std::vector<int32_t>& tokens, const Corpus& corpus) {
  for (const int32_t token : tokens) require(token >= 0 && token < corpus.vocabulary.size());
  const std::string text = decode_text(tokens, corpus.level, corpus.vocabulary);
  // A first word that begins with a byte order mark loses it on the second reading.
  if (corpus.level == TextLevel::word && text.starts_with("\xef\xbb\xbf")) return;
  require(encode_text(text, corpus.level, corpus.vocabulary, "decoded") == tokens);
}

void read_windows(const std::vector<int32_t>& tokens, const TokenBatchOptions& options) {
  try {
    const TokenBatches batches(tokens, options);
    int64_t predicted = 0;
    for (int64_t i = 0; i < batches.size(); ++i) predicted += batches.window(i).targets.size();
    require(predicted == batches.tokens());
  } catch (const InputError&) {  // too short
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Context context;
  if (size == 0) return 0;
  const TextLevel level = data[0] % 2 == 0 ? TextLevel::word : TextLevel::character;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t mark = input.find("===");
  try {
    const Corpus corpus = split_text(input.substr(0, mark), level, "fuzz");
    for (const auto* part : {&corpus.train, &corpus.valid, &corpus.test})
      check_round_trip(*part, corpus);
    const int64_t columns = data[0] / 2 % 8 + 1;
    read_windows(corpus.train, {.batch_size = columns, .bptt = data[0] / 16 + 1});
    if (mark == std::string_view::npos) return 0;
    check_round_trip(encode_text(input.substr(mark + 3), level, corpus.vocabulary, "more"), corpus);
  } catch (const InputError&) {
  }
  return 0;
}
