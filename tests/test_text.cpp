// Text: what becomes a token, how a text is divided, what is said about broken files, and windows
// against a plain reference.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/context.h"
#include "data/text.h"
#include "tests/data_files.h"

namespace heddle {
namespace {

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

// A folder with the three files of a corpus.
void write_corpus(const TempFolder& folder, const std::string& train, const std::string& valid,
                  const std::string& test) {
  folder.write("train.txt", bytes(train));
  folder.write("valid.txt", bytes(valid));
  folder.write("test.txt", bytes(test));
}

std::vector<std::string> words(const std::vector<int32_t>& tokens, const Vocabulary& vocabulary) {
  std::vector<std::string> out;
  for (const int32_t token : tokens) out.push_back(vocabulary.text(token));
  return out;
}

using Words = std::vector<std::string>;

// The words of a text, none of them unknown.
Words split(const std::string& text) {
  TempFolder folder;
  write_corpus(folder, text, text, text);
  const Corpus corpus = open_corpus(folder.path(), TextLevel::word);
  CHECK(corpus.train == corpus.valid);
  return words(corpus.train, corpus.vocabulary);
}

TEST_CASE("text: levels have names") {
  for (const auto level : {TextLevel::automatic, TextLevel::word, TextLevel::character})
    CHECK(parse_text_level(text_level_name(level)) == level);
  CHECK(input_error([] { parse_text_level("byte\n"); }) ==
        "text level: expected auto, word or char, found 'byte?'");
}

TEST_CASE("text: words, and positions of <eos>") {
  CHECK(split("a b\n") == Words{"a", "b", "<eos>"});
  CHECK(split(" a\t\tb  \n\n \nc") == Words{"a", "b", "<eos>", "<eos>", "<eos>", "c", "<eos>"});
  CHECK(split("a\r\nb \r\n\r\n") == Words{"a", "<eos>", "b", "<eos>", "<eos>"});
  CHECK(split("no newline at all") == Words{"no", "newline", "at", "all", "<eos>"});
  CHECK(split("\xef\xbb\xbf"
              "a b\n\xef\xbb\xbf"
              "b") == Words{"a", "b", "<eos>", "b", "<eos>"});
  // Other white space of Unicode belongs to words.
  CHECK(split("a\xc2\xa0"
              "b\fc d") == Words{"a\xc2\xa0"
                                 "b\fc",
                                 "d", "<eos>"});
}

TEST_CASE("text: the vocabulary is that of the training text, in order of first appearance") {
  TempFolder folder;
  write_corpus(folder, "the <unk> heddle lifts\nthe warp\n", "a warp lifts\n", "weft\n");
  const Corpus corpus = open_corpus(folder.path(), TextLevel::automatic);
  CHECK(corpus.level == TextLevel::word);
  CHECK(corpus.name == folder.path().filename().string());
  CHECK(corpus.vocabulary.texts() == Words{"the", "<unk>", "heddle", "lifts", "<eos>", "warp"});
  CHECK(corpus.train == std::vector<int32_t>{0, 1, 2, 3, 4, 0, 5, 4});
  CHECK(words(corpus.valid, corpus.vocabulary) == Words{"<unk>", "warp", "lifts", "<eos>"});
  CHECK(words(corpus.test, corpus.vocabulary) == Words{"<unk>", "<eos>"});
  CHECK(corpus.vocabulary.find("weft") == -1);
  CHECK(decode_text(corpus.train, corpus.level, corpus.vocabulary) ==
        "the <unk> heddle lifts\nthe warp\n");
  CHECK(open_corpus(folder.path() / "", TextLevel::word).name == corpus.name);
}

TEST_CASE("text: all three names of a corpus's files, and missing ones") {
  for (const std::string names : {".txt", "ptb .txt", "wiki .tokens"}) {
    TempFolder folder;
    const size_t space = names.find(' ');
    const std::string front = space == names.npos ? "" : names.substr(0, space) + ".";
    const std::string end = space == names.npos ? names : names.substr(space + 1);
    const auto open = [&] { open_corpus(folder.path(), TextLevel::word); };
    CHECK(contains(input_error(open), "expected train.txt, valid.txt and test.txt"));
    folder.write(front + "train" + end, bytes("a b\n"));
    folder.write("other.txt", bytes("a"));
    folder.write(front + "valid" + end, bytes("a\n"));
    CHECK(
        contains(input_error(open), folder.path().string() + ": missing " + front + "test" + end));
    folder.write(front + "test" + end, bytes("b\n"));
    CHECK(open_corpus(folder.path(), TextLevel::word).test == std::vector<int32_t>{1, 2});
    folder.write(names == ".txt" ? "ptb.test.txt" : "test.txt", bytes("c\n"));  // fewer: ignored
    CHECK(open_corpus(folder.path(), TextLevel::word).test == std::vector<int32_t>{1, 2});
  }
  CHECK(contains(input_error([] { open_corpus("/nowhere/at-all", TextLevel::automatic); }),
                 "/nowhere/at-all: cannot open: No such file"));
}

TEST_CASE("text: broken files at word level are named with line and offset") {
  TempFolder folder;
  const std::string name = (folder.path() / "valid.txt").string();
  const auto message = [&](const std::string& valid) {
    write_corpus(folder, "a b\n", valid, "a\n");
    return input_error([&] { open_corpus(folder.path(), TextLevel::word); });
  };
  CHECK(contains(message("a\nb c\n"), name + ": line 2: expected a word of the vocabulary, which " +
                                          "has no <unk>, found 'c'"));
  CHECK(contains(message(std::string(5000, 'x')), "line 1"));
  CHECK(message(std::string(5000, 'x')).size() < name.size() + 150);
  CHECK(contains(message(std::string("a\n\nb \0 b\n", 9)),
                 name + ": line 3: expected UTF-8 text, found a NUL byte at offset 5"));
  CHECK(contains(message(""), name + ": expected text, found an empty file"));
  CHECK(contains(message("\xef\xbb\xbf"), "the valid part is empty"));

  // Not UTF-8: a lone tail, a cut character, overlong forms, a surrogate, beyond U+10FFFF.
  for (const std::string bad : {"\x80", "\xc3", "\xc3(", "\xe2\x82", "\xe2\x28\xa1", "\xc0\xaf",
                                "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80",
                                "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xf0\x90\x80"})
    CHECK(
        contains(message("a\na" + bad), concat("line 2: expected UTF-8 text, found byte ",
                                               int{static_cast<uint8_t>(bad[0])}, " at offset 3")));
  for (const std::string good :
       {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(split("a " + good) == Words{"a", good, "<eos>"});

  write_corpus(folder, "\n\n\n", "\n", "\n");
  CHECK(contains(input_error([&] { open_corpus(folder.path(), TextLevel::word); }),
                 "expected at least 2 different tokens, found 1: there is nothing to predict"));
}

TEST_CASE("text: characters are bytes, sorted by value") {
  TempFolder folder;
  const std::string train(
      "c\0\xff"
      "ab\r\n",
      7);
  write_corpus(folder, train, "ab", std::string("\0", 1));
  const Corpus corpus = open_corpus(folder.path(), TextLevel::character);
  CHECK(corpus.vocabulary.size() == 7);
  CHECK(corpus.vocabulary.text(0) == std::string(1, '\0'));
  CHECK(corpus.vocabulary.text(6) == "\xff");
  CHECK(corpus.train == std::vector<int32_t>{5, 0, 6, 3, 4, 2, 1});
  CHECK(corpus.test == std::vector<int32_t>{0});
  CHECK(decode_text(corpus.train, corpus.level, corpus.vocabulary) == train);

  folder.write("test.txt", bytes("abx"));
  const auto open = [&] { open_corpus(folder.path(), TextLevel::character); };
  CHECK(contains(input_error(open),
                 "test.txt: expected a byte of the vocabulary, found 120 at offset 2"));
  write_corpus(folder, "aaaa", "a", "a");
  CHECK(contains(input_error(open), "expected at least 2 different tokens, found 1"));
}

TEST_CASE("text: one file is divided 90 : 5 : 5") {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 107; ++i) text += static_cast<char>('!' + i % 90);
  text += '\x80';  // in the test part only, and known all the same
  const fs::path file = folder.write("story.txt", bytes(text));
  const Corpus corpus = open_corpus(file, TextLevel::automatic);
  CHECK(corpus.level == TextLevel::character);
  CHECK(corpus.name == "story.txt");
  CHECK(corpus.train.size() == 97);  // floor(0.9 * 108)
  CHECK(corpus.valid.size() == 5);   // floor(0.95 * 108) = 102
  CHECK(corpus.test.size() == 6);
  auto all = corpus.train;
  all.insert(all.end(), corpus.valid.begin(), corpus.valid.end());
  all.insert(all.end(), corpus.test.begin(), corpus.test.end());
  CHECK(decode_text(all, corpus.level, corpus.vocabulary) == text);

  folder.write("story.txt", bytes("abc"));
  CHECK(contains(input_error([&] { open_corpus(file, TextLevel::automatic); }),
                 "story.txt: expected text to train, validate and test with; the valid part"));
  folder.write("story.txt", {});
  CHECK(contains(input_error([&] { open_corpus(file, TextLevel::automatic); }),
                 "story.txt: expected text, found an empty file"));
}

TEST_CASE("text: at word level one text is cut at the nearest line ends") {
  std::string text;
  for (int i = 0; i < 20; ++i) text += concat("word", 10 + i, "\n");  // lines of 7 bytes
  Corpus corpus = split_text(text, TextLevel::word, "text");
  CHECK(corpus.train.size() == 36);  // two tokens a line
  CHECK(corpus.valid.size() == 2);
  CHECK(corpus.test.size() == 2);
  CHECK(corpus.vocabulary.size() == 21);
  CHECK(words(corpus.valid, corpus.vocabulary) == Words{"word28", "<eos>"});

  // Against every line end, for lines of many lengths.
  for (int seed = 1; seed < 200; ++seed) {
    std::string lines;
    std::vector<double> ends;
    for (int i = 0, length = seed; i < 40; ++i) {
      length = (length * 37 + 11) % 53;
      lines += std::string(static_cast<size_t>(length), 'x') + concat(" y", i, "\n");
      ends.push_back(static_cast<double>(lines.size()));
    }
    corpus = split_text(lines, TextLevel::word, "text");
    const auto distance = [&](double end, double share) {
      return std::abs(end - std::floor(share * static_cast<double>(lines.size()) + 1e-9));
    };
    const auto reference = [&](double share) {
      return *std::min_element(ends.begin(), ends.end(), [&](double a, double b) {
        return distance(a, share) < distance(b, share);
      });
    };
    const auto length = [&](const std::vector<int32_t>& tokens) {
      return static_cast<double>(std::count_if(tokens.begin(), tokens.end(), [&](int32_t token) {
        return corpus.vocabulary.text(token) == "<eos>";
      }));
    };
    const auto lines_until = [&](double end) {
      return static_cast<double>(std::find(ends.begin(), ends.end(), end) - ends.begin() + 1);
    };
    const double first = lines_until(reference(0.9)), second = lines_until(reference(0.95));
    CHECK(length(corpus.train) == first);
    CHECK(length(corpus.valid) == second - first);
  }

  const auto message = [](const std::string& bad) {
    return input_error([&] { split_text(bad, TextLevel::word, "text"); });
  };
  CHECK(
      contains(message("a b c d e f g h i j k l m n o p q r s t u v"), "the valid part is empty"));
  CHECK(contains(message("a\nb\n"), "part is empty"));
  CHECK(contains(message(""), "the train part is empty"));
  std::string late = text;
  late += '\xff';
  CHECK(
      contains(message(late), "text: line 21: expected UTF-8 text, found byte 255 at offset 140"));
}

TEST_CASE("text: encoding and decoding") {
  Vocabulary vocabulary;
  CHECK(vocabulary.add("b") == 0);
  CHECK(vocabulary.add("<eos>") == 1);
  CHECK(vocabulary.add("b") == 0);
  CHECK(encode_text("b b", TextLevel::word, vocabulary, "prompt") == std::vector<int32_t>{0, 0, 1});
  CHECK(encode_text("", TextLevel::word, vocabulary, "prompt").empty());
  CHECK(encode_text("bb", TextLevel::character, vocabulary, "prompt") ==
        std::vector<int32_t>{0, 0});
  CHECK(decode_text({0, 0, 1, 1, 0}, TextLevel::word, vocabulary) == "b b\n\nb");
  CHECK(decode_text({}, TextLevel::word, vocabulary).empty());
  CHECK(contains(input_error([&] { decode_text({2}, TextLevel::word, vocabulary); }),
                 "token: expected an id from 0 to 1, found 2"));
  CHECK(contains(input_error([&] { decode_text({-1}, TextLevel::character, vocabulary); }),
                 "found -1"));
  CHECK(contains(input_error([&] { encode_text("b", TextLevel::automatic, vocabulary, "prompt"); }),
                 "prompt: expected word or character level, found auto"));
  vocabulary.add("<unk>");
  CHECK(encode_text("x b", TextLevel::word, vocabulary, "prompt") == std::vector<int32_t>{2, 0, 1});
  const Vocabulary copy = vocabulary;  // owns its texts
  vocabulary = Vocabulary();
  CHECK(copy.find("<unk>") == 2);
}

TEST_CASE("text: huge lines and words") {
  const std::string word(8 << 20, 'w');
  CHECK(split(word + " " + word) == Words{word, word, "<eos>"});
  std::string line;
  for (int i = 0; i < 1'000'000; ++i) line += "a ";
  CHECK(split(line).size() == 1'000'001);
  CHECK(split(std::string(1'000'000, '\n') + "a").size() == 1'000'002);
}

// ---------------------------------------------------------------------------------------- windows

std::vector<int32_t> count_up(int64_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  return tokens;
}

TEST_CASE("text batches: windows match a plain reference") {
  const Context context;
  for (const int64_t n : {8, 9, 17, 100, 101, 211})
    for (const int64_t columns : {1, 2, 4})
      for (const int64_t bptt : {1, 2, 5, 7, 300}) {
        const auto tokens = count_up(n);
        const TokenBatches batches(tokens, {.batch_size = columns, .bptt = bptt});
        const int64_t length = n / columns;
        CHECK(batches.tokens() == (length - 1) * columns);
        bool equal = true;
        int64_t row = 0;
        for (int64_t i = 0; i < batches.size(); ++i) {
          const TokenWindow window = batches.window(i);
          const auto [T, B] = dims<2>(window.inputs, "inputs");
          CHECK(window.targets.shape() == window.inputs.shape());
          CHECK(B == columns);
          CHECK((i + 1 < batches.size() ? T == bptt : T >= 1 && T <= bptt));
          for (int64_t t = 0; t < T; ++t, ++row)
            for (int64_t b = 0; b < B; ++b) {
              equal &= window.inputs.data<int32_t>()[t * B + b] == b * length + row;
              equal &= window.targets.data<int32_t>()[t * B + b] == b * length + row + 1;
            }
        }
        CHECK(equal);
        CHECK(row == length - 1);  // every token of a column but the first is a target, once
      }
}

TEST_CASE("text batches: the ranks' columns form the global batch") {
  const Context context;
  const auto tokens = count_up(1000);
  const TokenBatches whole(tokens, {.batch_size = 12, .bptt = 9});
  for (const int ranks : {1, 2, 3, 4, 12})
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t B = 12 / ranks;
      const TokenBatches part(tokens,
                              {.batch_size = B, .bptt = 9, .rank = rank, .world_size = ranks});
      CHECK(part.size() == whole.size());
      CHECK(part.tokens() * ranks == whole.tokens());
      for (int64_t i = 0; i < whole.size(); ++i) {
        const TokenWindow big = whole.window(i), small = part.window(i);
        CHECK(small.first_column == rank * B);
        const int64_t T = dims<2>(small.inputs, "inputs")[0];
        REQUIRE(T == big.inputs.shape()[0]);
        bool equal = true;
        for (int64_t t = 0; t < T; ++t)
          for (int64_t b = 0; b < B; ++b) {
            const int64_t from = t * 12 + rank * B + b, to = t * B + b;
            equal &= small.inputs.data<int32_t>()[to] == big.inputs.data<int32_t>()[from];
            equal &= small.targets.data<int32_t>()[to] == big.targets.data<int32_t>()[from];
          }
        CHECK(equal);
      }
    }
}

TEST_CASE("text batches: short texts and invalid options are refused") {
  const Context context;
  const auto message = [](int64_t n, const TokenBatchOptions& options) {
    const auto tokens = count_up(n);
    return input_error([&] { TokenBatches(tokens, options); });
  };
  CHECK(contains(message(39, {.batch_size = 5, .bptt = 3, .rank = 1, .world_size = 4}),
                 "text: expected at least 40 tokens (2 for each of 20 columns), found 39"));
  CHECK(contains(message(0, {.batch_size = 1}), "expected at least 2 tokens"));
  CHECK(contains(message(9, {.batch_size = 0}), "batch size: expected 1 to 2147483647, found 0"));
  CHECK(contains(message(9, {.batch_size = INT64_MAX}), "batch size: expected"));
  CHECK(contains(message(9, {.batch_size = INT32_MAX, .world_size = INT32_MAX}), "found 9"));
  CHECK(contains(message(9, {.batch_size = 1, .bptt = 0}), "bptt: expected"));
  CHECK(contains(message(9, {.batch_size = 1, .bptt = INT64_MAX}), "bptt: expected"));
  CHECK(contains(message(9, {.batch_size = 1, .rank = 2, .world_size = 2}),
                 "rank: expected 0 to 1, found 2"));
  CHECK(contains(message(9, {.batch_size = 1, .rank = -1}), "found -1"));
  CHECK(contains(message(9, {.batch_size = 1, .world_size = 0}), "world size: expected"));
  const auto tokens = count_up(40);
  const TokenBatches least(tokens, {.batch_size = 20, .bptt = INT32_MAX});
  CHECK(least.size() == 1);
  CHECK(contains(input_error([&] { least.window(1); }), "window: expected 0 to 0, found 1"));
  CHECK(contains(input_error([&] { least.window(-1); }), "found -1"));
}

// -------------------------------------------------------------------------------------- real data

TEST_CASE("text: the real files") {
  const auto sizes = [](const Corpus& corpus) {
    return std::vector<size_t>{corpus.train.size(), corpus.valid.size(), corpus.test.size(),
                               static_cast<size_t>(corpus.vocabulary.size())};
  };
  if (const fs::path ptb = find_data("ptb"); !ptb.empty()) {
    const Corpus corpus = open_corpus(ptb, TextLevel::automatic);
    CHECK(sizes(corpus) == std::vector<size_t>{929'589, 73'760, 82'430, 10'000});
    CHECK(corpus.vocabulary.text(0) == "aer");
  }
  if (const fs::path wiki = find_data("wikitext-2"); !wiki.empty())
    CHECK(sizes(open_corpus(wiki, TextLevel::automatic)) ==
          std::vector<size_t>{2'088'628, 217'646, 245'569, 33'278});
  if (const fs::path tiny = find_data("tinyshakespeare"); !tiny.empty()) {
    const Corpus corpus = open_corpus(tiny / "input.txt", TextLevel::automatic);
    CHECK(sizes(corpus) == std::vector<size_t>{1'003'854, 55'770, 55'770, 65});
    const std::string begin = decode_text({corpus.train.begin(), corpus.train.begin() + 14},
                                          corpus.level, corpus.vocabulary);
    CHECK(begin == "First Citizen:");
  }
}

}  // namespace
}  // namespace heddle
