// Lines: a text file that is read line by line, with errors that name file and line.
//
//   for (Lines lines("edges.txt"); lines.next();)
//     use(lines.index(lines.word(), nodes, "a node"));
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/parse_number.h"
#include "core/scalar.h"
#include "data/text.h"

namespace heddle {

class Lines {
 public:
  explicit Lines(const std::string& path) : path_(path), text_(read_text_file(path)), rest_(text_) {
    rest_.remove_prefix(rest_.starts_with("\xef\xbb\xbf") ? 3 : 0);  // a byte order mark
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  // Reads the next line, without white space at its end. Returns false after the last.
  bool next() {
    if (rest_.empty()) return false;
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    while (!line_.empty() && is_space(line_.back())) line_.remove_suffix(1);
    ++number_;
    return true;
  }
  std::string_view line() const { return line_; }  // what word() has left of it
  // Removes and returns the next word of the line; empty: none is left.
  std::string_view word() {
    while (!line_.empty() && is_space(line_.front())) line_.remove_prefix(1);
    size_t end = 0;
    while (end < line_.size() && !is_space(line_[end])) ++end;
    const std::string_view word = line_.substr(0, end);
    line_.remove_prefix(end);
    return word;
  }

  // Throws InputError "path: line 7: expected …" unless `ok`.
  template <class... Parts>
  void expect(bool ok, const Parts&... expected) const {
    check(ok, path_, ": line ", number_, ": expected ", expected...);
  }
  // Returns a word that is a whole number in [0, bound).
  int32_t index(std::string_view word, int64_t bound, const char* what) const {
    const int64_t value = parse_number<int64_t>(word).value_or(-1);
    expect(value >= 0 && value < bound, what, " from 0 to ", bound - 1, ", found '",
           printable(word, 40), "'");
    return static_cast<int32_t>(value);
  }
  // Throws InputError for a line that is not UTF-8 or has control characters.
  void expect_text() const { check_text(line_, concat(path_, ": line ", number_)); }
  // Throws InputError unless so many lines were read.
  void expect_count(int64_t count, const char* as) const {
    check(number_ == count, path_, ": expected ", count, " lines, ", as, ", found ", number_);
  }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  std::string path_, text_;
  std::string_view rest_, line_;
  int64_t number_ = 0;
};

}  // namespace heddle
