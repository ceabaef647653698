// Text as token ids: a vocabulary, and the train, valid and test streams of tokens. At word level a
// token is a word between spaces, and every line ends with <eos>; at character level it is a byte.
//
//   Corpus ptb = open_corpus("ptb", TextLevel::automatic);   // ptb.train.txt, ptb.valid.txt, …
//   TokenBatches batches(ptb.train, {.batch_size = 20, .bptt = 35});
//   for (int64_t i = 0; i < batches.size(); ++i) use(batches.window(i));
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/tensor.h"

namespace heddle {

enum class TextLevel : uint8_t { automatic, word, character };

// Converts from and to "auto", "word", "char". Throws InputError for any other string.
TextLevel parse_text_level(const std::string& text);
const char* text_level_name(TextLevel level);

// Tokens and their ids from 0: in order of first appearance (word) or by value (character).
class Vocabulary {
 public:
  int32_t add(std::string_view token);         // returns its id, new or existing
  int32_t find(std::string_view token) const;  // returns its id; -1: unknown
  const std::string& text(int32_t token) const { return texts_[to_size(token)]; }
  int64_t size() const { return to_int64(texts_.size()); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  struct Hash {  // lets a string_view be looked up
    using is_transparent = void;
    size_t operator()(std::string_view token) const { return std::hash<std::string_view>{}(token); }
  };

  std::vector<std::string> texts_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

struct Corpus {
  std::string name;
  TextLevel level = TextLevel::character;
  Vocabulary vocabulary;
  std::vector<int32_t> train, valid, test;
};

// Opens a folder with train.txt, valid.txt, test.txt (or ptb.train.txt, … or wiki.train.tokens, …),
// with the vocabulary of the training text; or one file, as split_text() does. An empty path opens
// the project's own sources (embedded_sources()), each file in one of the parts, with one
// vocabulary for all of them. `automatic` means word level for a folder, else character level. Word
// level requires UTF-8; character level accepts any bytes. Throws InputError with file and line or
// offset for a missing or empty file, bytes that are not UTF-8, a word or byte of valid or test
// that is not in the vocabulary, an empty part, and fewer than two different tokens.
Corpus open_corpus(const std::filesystem::path& path, TextLevel level);

// Splits a text: the first 90 % for training, the next 5 % for validation, the rest for test; word
// level moves each cut to the nearest line end. The vocabulary is that of the whole text, so that
// no part has an unknown token. Throws as open_corpus does; `name` is the file's name in errors.
Corpus split_text(std::string_view text, TextLevel level, const std::string& name);

// Returns the ids of a text's tokens. At word level spaces, tabs and '\r' separate words, a byte
// order mark at the beginning is skipped, and every line ends with <eos>, even a last line
// without '\n'. An unknown word becomes <unk> if the vocabulary has it; otherwise InputError
// is thrown, as for an unknown byte. `name` is the file's name in errors.
std::vector<int32_t> encode_text(std::string_view text, TextLevel level,
                                 const Vocabulary& vocabulary, const std::string& name);
// Returns tokens as text: words separated by spaces, with a line end for <eos>; or bytes. Throws
// InputError for an id that is not in the vocabulary.
std::string decode_text(const std::vector<int32_t>& tokens, TextLevel level,
                        const Vocabulary& vocabulary);

// Returns the length in bytes of the UTF-8 character at the beginning of a text that is not empty;
// 0 if it is not valid: NUL, overlong forms, surrogates and code points beyond U+10FFFF.
size_t utf8_length(std::string_view text);

// Throws an InputError that begins with `where` for text that is not UTF-8 or has control
// characters.
void check_text(std::string_view text, const std::string& where);

struct TokenWindow {
  Tensor inputs, targets;    // i32 (T, B) on the CPU; target t is the token after input t
  int64_t first_column = 0;  // this rank's first column of the global batch
};

struct TokenBatchOptions {
  int64_t batch_size = 20;  // B, columns per rank
  int64_t bptt = 35;        // T of every window except the last, which may be shorter
  int rank = 0;             // one of world_size ranks, which share the columns
  int world_size = 1;
};

// The stream, divided into batch_size * world_size columns of equal length, which are read from top
// to bottom T tokens at a time: column b of one window continues in column b of the next, so that
// the network's state carries over. Tokens at the end that do not fill a row are dropped.
class TokenBatches {
 public:
  // `tokens` must outlive this object. Throws InputError for columns of fewer than two tokens,
  // options that are not positive, and a rank that is not below world_size.
  TokenBatches(const std::vector<int32_t>& tokens, const TokenBatchOptions& options);

  int64_t size() const { return windows_; }  // windows per epoch
  int64_t tokens() const;                    // tokens that this rank predicts per epoch
  // Returns a window; index in [0, size()). Throws InputError for any other index.
  TokenWindow window(int64_t index) const;

 private:
  std::span<const int32_t> stream_;
  TokenBatchOptions options_;
  int64_t rows_ = 0, windows_ = 0;  // tokens per column; windows per epoch
};

// A source file of this project at build time: path and content. embedded_sources() returns all
// *.h, *.cpp and *.cu files of the code folders, and of tests/ without its subfolders, sorted by
// path.
struct EmbeddedFile {
  std::string_view name, text;
};
const std::vector<EmbeddedFile>& embedded_sources();

}  // namespace heddle
