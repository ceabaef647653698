// Text as numbers: a vocabulary, and the train, valid and test streams of tokens. At word level a
// token is what stands between spaces, and every line ends with <eos>; at character level it is a
// byte.
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

// "auto", "word", "char"; throws InputError for other text.
TextLevel parse_text_level(const std::string& text);
const char* text_level_name(TextLevel level);

// Tokens and their numbers from 0: in order of first appearance (word) or by value (character).
class Vocabulary {
 public:
  int32_t add(std::string_view token);         // its number, new or not
  int32_t find(std::string_view token) const;  // -1: unknown
  const std::string& text(int32_t token) const { return texts_[static_cast<size_t>(token)]; }
  int64_t size() const { return static_cast<int64_t>(texts_.size()); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  struct Hash {  // lets a string_view be looked up
    using is_transparent = void;
    size_t operator()(std::string_view token) const { return std::hash<std::string_view>{}(token); }
  };

  std::vector<std::string> texts_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> numbers_;
};

struct Corpus {
  std::string name;
  TextLevel level = TextLevel::character;
  Vocabulary vocabulary;
  std::vector<int32_t> train, valid, test;
};

// Opens a folder with train.txt, valid.txt, test.txt (or ptb.train.txt, … or wiki.train.tokens, …),
// whose vocabulary is that of the training text alone; or one file (split_text). An empty path: the
// project's own sources (embedded_sources), each file whole in one of the parts, with the
// vocabulary of all. automatic: word level for a folder, else character level. At word level the
// text must be UTF-8; at character level a file may hold any bytes. Throws InputError that names
// file and line or offset: a missing or empty file, bytes that are not UTF-8, a word or byte of
// valid or test that the vocabulary lacks, an empty part, fewer than two different tokens.
Corpus open_corpus(const std::filesystem::path& path, TextLevel level);
// One text whose first 90 % are for training, the next 5 % for validation, the rest for the test;
// at word level it is cut at the nearest line ends. The vocabulary is that of the whole text, so
// that no part holds an unknown token. `name` is for errors, which are those of open_corpus.
Corpus split_text(std::string_view text, TextLevel level, const std::string& name);

// The numbers of a text in a vocabulary that exists already. At word level a space, tab or '\r'
// parts words, a byte order mark at the beginning is skipped, and every line gives <eos> at its
// end, the last one too where it has no '\n'. A word that is not known becomes <unk> if the
// vocabulary has it, else it is an InputError, as an unknown byte is. `name` is for errors.
std::vector<int32_t> encode_text(std::string_view text, TextLevel level,
                                 const Vocabulary& vocabulary, const std::string& name);
// Tokens as text to read: words with spaces between them and a line end for <eos>, or bytes.
// Throws InputError for a number that the vocabulary does not have.
std::string decode_text(const std::vector<int32_t>& tokens, TextLevel level,
                        const Vocabulary& vocabulary);

struct TokenWindow {
  Tensor inputs, targets;    // i32 (T, B) on the CPU; targets are the inputs one place further on
  int64_t first_column = 0;  // of this rank within the global batch
};

struct TokenBatchOptions {
  int64_t batch_size = 20;  // columns of this rank
  int64_t bptt = 35;        // T of every window but the last, which may be shorter
  int rank = 0;             // of world_size ranks, which share the columns
  int world_size = 1;
};

// The stream cut into batch_size * world_size columns of equal length that are read from top to
// bottom, T tokens at a time: column b of one window goes on in column b of the next, so the
// network's state is carried. Tokens at the end that do not fill a row are left out.
class TokenBatches {
 public:
  // Throws InputError when a column would have fewer than two tokens, and for options that are not
  // positive or a rank that is not one of world_size; `tokens` must outlive this object.
  TokenBatches(const std::vector<int32_t>& tokens, const TokenBatchOptions& options);

  int64_t size() const { return windows_; }  // windows of an epoch
  int64_t tokens() const;                    // predicted by this rank in an epoch
  TokenWindow window(int64_t index) const;

 private:
  std::span<const int32_t> stream_;
  TokenBatchOptions options_;
  int64_t rows_ = 0, windows_ = 0;  // tokens of a column; windows of an epoch
};

// The project's own sources as they were when the program was built: path and content, sorted by
// path. What is there is the *.h, *.cpp and *.cu files right in the folders of code and of tests.
struct EmbeddedFile {
  std::string_view name, text;
};
const std::vector<EmbeddedFile>& embedded_sources();

}  // namespace heddle
