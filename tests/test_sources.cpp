// The corpus "sources": the project's own files, embedded in the program.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "core/files.h"
#include "data/text.h"
#include "tests/data_files.h"

namespace heddle {
namespace {

TEST_CASE("sources: every file of the tree, byte for byte, sorted") {
  std::set<std::string> expected;
  const fs::path root = HEDDLE_SOURCE_DIR;
  const auto add = [&](const fs::path& file) {
    const std::string ending = file.extension().string();
    if (file.filename().string().starts_with('.')) return;
    if (ending == ".h" || ending == ".cpp" || ending == ".cu")
      expected.insert(file.lexically_relative(root).string());
  };
  for (const char* folder : {"core", "layers", "optim", "comm", "compress", "data", "apps"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) add(entry.path());
  for (const auto& entry : fs::directory_iterator(root / "tests")) add(entry.path());
  std::vector<std::string> found;
  for (const auto& [name, text] : embedded_sources()) {
    found.emplace_back(name);
    const std::string on_disk =
        read_text_file((fs::path(HEDDLE_SOURCE_DIR) / found.back()).string());
    CHECK_MESSAGE(text == on_disk, found.back());
  }
  CHECK(found == std::vector<std::string>(expected.begin(), expected.end()));
  CHECK(expected.count("data/text.cpp") == 1);
}

TEST_CASE("sources: whole files are held out, about 5 % for each part") {
  const Corpus corpus = open_corpus({}, TextLevel::automatic);
  CHECK(corpus.name == "sources");
  CHECK(corpus.level == TextLevel::character);
  size_t total = 0, largest = 0;
  for (const auto& file : embedded_sources()) {
    total += file.text.size();
    largest = std::max(largest, file.text.size());
  }
  CHECK(corpus.train.size() + corpus.valid.size() + corpus.test.size() == total);
  for (const auto* part : {&corpus.valid, &corpus.test}) {
    CHECK(part->size() + largest > total / 20);
    CHECK(part->size() < total / 20 + largest);
  }
  // Each part is its files one after another; each file is in one part.
  const std::vector<int32_t>* parts[] = {&corpus.train, &corpus.valid, &corpus.test};
  size_t at[3] = {};
  int files[3] = {};
  for (const auto& file : embedded_sources()) {
    const auto tokens = encode_text(file.text, corpus.level, corpus.vocabulary, "file");
    const auto begins = [&](int i) {
      return parts[i]->size() - at[i] >= tokens.size() &&
             std::equal(tokens.begin(), tokens.end(),
                        parts[i]->begin() + static_cast<int64_t>(at[i]));
    };
    const int part = begins(0) ? 0 : begins(1) ? 1 : 2;
    REQUIRE(begins(part));
    at[part] += tokens.size();
    ++files[part];
  }
  for (int i = 0; i < 3; ++i) CHECK(at[i] == parts[i]->size());
  CHECK(files[1] >= 2);
  CHECK(files[2] >= 2);
  CHECK(open_corpus({}, TextLevel::character).valid == corpus.valid);
  const Corpus by_word = open_corpus({}, TextLevel::word);
  CHECK(by_word.vocabulary.find("namespace") >= 0);
  CHECK(by_word.train.size() > by_word.test.size());
}

}  // namespace
}  // namespace heddle
