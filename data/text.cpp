#include "data/text.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEndOfLine = "<eos>", kUnknown = "<unk>", kBom = "\xef\xbb\xbf";
constexpr size_t kMaxShown = 40;  // bytes of a word in an error

void check_utf8(std::string_view text, const std::string& name) {
  for (size_t i = 0, length = 0; i < text.size(); i += length) {
    length = utf8_length(text.substr(i, 4));
    if (length > 0) continue;
    const auto lines = std::count(text.begin(), text.begin() + to_int64(i), '\n');
    const std::string found =
        text[i] == 0 ? "a NUL byte" : concat("byte ", int{static_cast<uint8_t>(text[i])});
    throw InputError(concat(name, ": line ", lines + 1, ": expected UTF-8 text, found ", found,
                            " at offset ", i, " (character level accepts any bytes)"));
  }
}

// Calls f(token, line) for every word, and with <eos> for every line. '\r' separates words like a
// space, so that lines may end with "\r\n"; a byte order mark may begin any line, since a text may
// be cut at lines.
template <class F>
void for_each_word(std::string_view text, const std::string& name, F&& f) {
  check_utf8(text, name);
  if (text.starts_with(kBom)) text.remove_prefix(kBom.size());
  constexpr std::string_view spaces = " \t\r";
  for (int64_t line = 1; !text.empty(); ++line) {
    std::string_view rest = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(rest.size() + 1, text.size()));
    if (rest.starts_with(kBom)) rest.remove_prefix(kBom.size());
    while (true) {
      rest.remove_prefix(std::min(rest.find_first_not_of(spaces), rest.size()));
      if (rest.empty()) break;
      const std::string_view word = rest.substr(0, rest.find_first_of(spaces));
      f(word, line);
      rest.remove_prefix(word.size());
    }
    f(kEndOfLine, line);
  }
}

// Returns the vocabulary of several texts; their names are for errors.
Vocabulary collect(const std::vector<EmbeddedFile>& texts, TextLevel level) {
  Vocabulary vocabulary;
  std::array<bool, 256> seen{};
  for (const auto& [name, text] : texts) {
    if (level == TextLevel::word)
      for_each_word(text, std::string(name),
                    [&](std::string_view word, int64_t) { vocabulary.add(word); });
    else
      for (const char c : text) seen[static_cast<uint8_t>(c)] = true;
  }
  for (size_t byte = 0; byte < seen.size(); ++byte)
    if (seen[byte]) vocabulary.add(std::string(1, static_cast<char>(byte)));
  return vocabulary;
}

struct Piece {
  size_t part;  // 0 train, 1 valid, 2 test
  EmbeddedFile file;
};

Corpus make_corpus(const std::string& where, TextLevel level,
                   const std::vector<EmbeddedFile>& vocabulary_of,
                   const std::vector<Piece>& pieces) {
  Corpus corpus;
  corpus.name = where;
  corpus.level = level;
  corpus.vocabulary = collect(vocabulary_of, level);
  const std::array<std::vector<int32_t>*, 3> parts{&corpus.train, &corpus.valid, &corpus.test};
  for (const auto& [part, file] : pieces) {
    const auto tokens = encode_text(file.text, level, corpus.vocabulary, std::string(file.name));
    parts[part]->insert(parts[part]->end(), tokens.begin(), tokens.end());
  }
  for (size_t i = 0; i < parts.size(); ++i)
    check(!parts[i]->empty(), where, ": expected text to train, validate and test with; the ",
          std::array{"train", "valid", "test"}[i], " part is empty");
  check(corpus.vocabulary.size() > 1, where, ": expected at least 2 different tokens, found ",
        corpus.vocabulary.size(), ": there is nothing to predict");
  return corpus;
}

std::string read_text(const fs::path& path) {
  std::string text = read_text_file(path.string());
  check(!text.empty(), path.string(), ": expected text, found an empty file");
  return text;
}

Corpus open_folder(const fs::path& folder, TextLevel level) {
  static constexpr std::array<std::array<const char*, 3>, 3> known{
      {{"train.txt", "valid.txt", "test.txt"},
       {"ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"},
       {"wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"}}};
  std::error_code error;
  const auto present = [&](const std::array<const char*, 3>& names) {
    return std::count_if(names.begin(), names.end(),
                         [&](const char* name) { return fs::exists(folder / name, error); });
  };
  const auto& names =
      *std::max_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
        return present(a) < present(b);  // the first one of equals
      });
  check(present(names) > 0, folder.string(),
        ": expected train.txt, valid.txt and test.txt (or ptb.*.txt, or wiki.*.tokens), found none "
        "of them; for a text in one file give the file's path");
  for (const char* name : names)
    check(fs::exists(folder / name, error), folder.string(), ": missing ", name);

  std::array<std::string, 3> paths, texts;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < 3; ++i) {
    paths[i] = (folder / names[i]).string();
    texts[i] = read_text(paths[i]);
    pieces.push_back({i, {paths[i], texts[i]}});
  }
  Corpus corpus = make_corpus(folder.string(), level, {pieces[0].file}, pieces);
  const fs::path whole = fs::weakly_canonical(folder, error);
  corpus.name = (error ? folder : whole).filename().string();
  return corpus;
}

// Assigns each file to the part that is furthest below its share of the bytes so far.
Corpus open_sources(TextLevel level) {
  constexpr std::array<int64_t, 3> shares{18, 1, 1};  // of 20
  std::array<int64_t, 3> deficit{};                   // in twentieths of bytes
  std::vector<Piece> pieces;
  for (const auto& file : embedded_sources()) {
    const auto size = to_int64(file.text.size());
    for (size_t i = 0; i < 3; ++i) deficit[i] += shares[i] * size;
    const auto part = to_size(std::max_element(deficit.begin(), deficit.end()) - deficit.begin());
    deficit[part] -= 20 * size;
    pieces.push_back({part, file});
  }
  return make_corpus("sources", level, embedded_sources(), pieces);
}

// Returns the offset after the given twentieths of a text; at word level that of the nearest line
// end.
size_t cut_at(std::string_view text, size_t twentieths, TextLevel level) {
  const size_t cut = text.size() / 20 * twentieths + text.size() % 20 * twentieths / 20;
  if (level == TextLevel::character || cut == 0) return cut;
  // Offsets after a '\n'. If rfind finds none, npos + 1 is 0.
  const size_t before = text.rfind('\n', cut - 1) + 1, newline = text.find('\n', cut - 1);
  const size_t after = newline == text.npos ? text.size() : newline + 1;
  return cut - before <= after - cut ? before : after;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  const auto in = [&](size_t i, int low, int high) {
    const int byte = i < text.size() ? static_cast<uint8_t>(text[i]) : -1;
    return low <= byte && byte <= high;
  };
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return first != 0 ? 1 : 0;
  if (in(0, 0xc2, 0xdf)) return in(1, 0x80, 0xbf) ? 2 : 0;
  if (in(0, 0xe0, 0xef)) {
    const bool second = in(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf);
    return second && in(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (!in(0, 0xf0, 0xf4)) return 0;
  const bool second = in(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf);
  return second && in(2, 0x80, 0xbf) && in(3, 0x80, 0xbf) ? 4 : 0;
}

void check_text(std::string_view text, const std::string& where) {
  for (size_t i = 0, length = 0; i < text.size(); i += length) {
    length = utf8_length(text.substr(i, 4));
    check(length > 0 && printable(text.substr(i, length)) == text.substr(i, length), where,
          ": expected UTF-8 text without control characters, found byte ",
          int{static_cast<uint8_t>(text[i])});
  }
}

TextLevel parse_text_level(const std::string& text) {
  for (const auto level : {TextLevel::automatic, TextLevel::word, TextLevel::character})
    if (text == text_level_name(level)) return level;
  throw InputError(
      concat("text level: expected auto, word or char, found '", printable(text), "'"));
}

const char* text_level_name(TextLevel level) {
  return level == TextLevel::word ? "word" : level == TextLevel::character ? "char" : "auto";
}

int32_t Vocabulary::add(std::string_view token) {
  if (const int32_t known = find(token); known >= 0) return known;
  check(size() < std::numeric_limits<int32_t>::max(), "vocabulary: more than ", size(), " tokens");
  const auto number = static_cast<int32_t>(size());
  texts_.emplace_back(token);
  ids_.emplace(texts_.back(), number);
  return number;
}

int32_t Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

Corpus split_text(std::string_view text, TextLevel level, const std::string& name) {
  if (level == TextLevel::automatic) level = TextLevel::character;
  const size_t first = cut_at(text, 18, level), second = cut_at(text, 19, level);
  return make_corpus(name, level, {{name, text}},
                     {{0, {name, text.substr(0, first)}},
                      {1, {name, text.substr(first, second - first)}},
                      {2, {name, text.substr(second)}}});
}

Corpus open_corpus(const fs::path& path, TextLevel level) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  if (level == TextLevel::automatic) level = folder ? TextLevel::word : TextLevel::character;
  if (path.empty()) return open_sources(level);
  if (folder) return open_folder(path, level);
  Corpus corpus = split_text(read_text(path), level, path.string());
  corpus.name = path.filename().string();
  return corpus;
}

std::vector<int32_t> encode_text(std::string_view text, TextLevel level,
                                 const Vocabulary& vocabulary, const std::string& name) {
  check(level != TextLevel::automatic, name, ": expected word or character level, found auto");
  std::vector<int32_t> tokens;
  if (level == TextLevel::word) {
    const int32_t unknown = vocabulary.find(kUnknown);
    for_each_word(text, name, [&](std::string_view word, int64_t line) {
      const int32_t token = vocabulary.find(word);
      if (token < 0 && unknown < 0)
        throw InputError(concat(name, ": line ", line,
                                ": expected a word of the vocabulary, which has no <unk>, found '",
                                printable(word, kMaxShown), "'"));
      tokens.push_back(token >= 0 ? token : unknown);
    });
    return tokens;
  }
  std::array<int32_t, 256> numbers;
  for (size_t byte = 0; byte < numbers.size(); ++byte) {
    const char c = static_cast<char>(byte);
    numbers[byte] = vocabulary.find({&c, 1});
  }
  tokens.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    check(numbers[byte] >= 0, name, ": expected a byte of the vocabulary, found ", int{byte},
          " at offset ", i);
    tokens.push_back(numbers[byte]);
  }
  return tokens;
}

std::string decode_text(const std::vector<int32_t>& tokens, TextLevel level,
                        const Vocabulary& vocabulary) {
  std::string text;
  for (const int32_t token : tokens) {
    check(token >= 0 && token < vocabulary.size(), "token: expected an id from 0 to ",
          vocabulary.size() - 1, ", found ", token);
    const std::string& word = vocabulary.text(token);
    if (level == TextLevel::word && word == kEndOfLine) {
      text += '\n';
      continue;
    }
    if (level == TextLevel::word && !text.empty() && text.back() != '\n') text += ' ';
    text += word;
  }
  return text;
}

TokenBatches::TokenBatches(const std::vector<int32_t>& tokens, const TokenBatchOptions& options)
    : stream_(tokens), options_(options) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();  // products then fit 64 bits
  const auto& [batch_size, bptt, rank, world_size] = options;
  check(batch_size > 0 && batch_size <= most, "batch size: expected 1 to ", most, ", found ",
        batch_size);
  check(bptt > 0 && bptt <= most, "bptt: expected 1 to ", most, ", found ", bptt);
  check(world_size > 0, "world size: expected a positive number, found ", world_size);
  check(rank >= 0 && rank < world_size, "rank: expected 0 to ", world_size - 1, ", found ", rank);
  const int64_t columns = batch_size * world_size, size = to_int64(tokens.size());
  check(size / 2 >= columns, "text: expected at least ", 2 * columns, " tokens (2 for each of ",
        columns, " columns), found ", size);
  rows_ = size / columns;
  windows_ = (rows_ - 1 + bptt - 1) / bptt;
}

int64_t TokenBatches::tokens() const { return (rows_ - 1) * options_.batch_size; }

TokenWindow TokenBatches::window(int64_t index) const {
  check(index >= 0 && index < windows_, "window: expected 0 to ", windows_ - 1, ", found ", index);
  const int64_t B = options_.batch_size, begin = index * options_.bptt;
  const int64_t T = std::min(options_.bptt, rows_ - 1 - begin);
  TokenWindow window{.inputs = Tensor::empty_on(Device{}, {T, B}, DType::i32),
                     .targets = Tensor::empty_on(Device{}, {T, B}, DType::i32),
                     .first_column = options_.rank * B};
  auto* inputs = window.inputs.data<int32_t>();
  auto* targets = window.targets.data<int32_t>();
  for (int64_t b = 0; b < B; ++b) {
    const int32_t* column = stream_.data() + (window.first_column + b) * rows_ + begin;
    for (int64_t t = 0; t < T; ++t) {
      inputs[t * B + b] = column[t];
      targets[t * B + b] = column[t + 1];
    }
  }
  return window;
}

}  // namespace heddle
