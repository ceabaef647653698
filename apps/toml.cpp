#include "apps/toml.h"

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "core/error.h"

namespace heddle {

namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

// Walks along one line; every failure names the place.
class LineReader {
 public:
  LineReader(const std::string& line, const std::string& where) : line_(line), where_(where) {}

  void skip_blanks() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t')) ++at_;
  }
  bool done() const { return at_ >= line_.size() || line_[at_] == '#'; }
  bool accept(char c) {
    if (at_ >= line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* after) {
    if (!accept(c)) fail(concat("expected '", c, "' after ", after));
  }
  [[noreturn]] void fail(const std::string& what) const {
    const std::string rest = line_.substr(std::min(at_, line_.size()), 24);
    throw InputError(concat(where_, ": ", what, ", found '", rest, "'"));
  }

  std::string bare(const char* what) {
    const size_t begin = at_;
    while (at_ < line_.size() && is_bare(line_[at_])) ++at_;
    if (at_ == begin) fail(concat("expected ", what));
    return line_.substr(begin, at_ - begin);
  }

  std::string scalar() {
    if (accept('"')) return basic_string();
    if (accept('\'')) {
      const size_t end = line_.find('\'', at_);
      if (end == std::string::npos) fail("expected a closing quote");
      std::string out = line_.substr(at_, end - at_);
      at_ = end + 1;
      return out;
    }
    return bare("a string, a number, true, false or an array");
  }

 private:
  static bool is_bare(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '+' ||
           c == '.';
  }

  std::string basic_string() {
    std::string out;
    while (!accept('"')) {
      if (at_ >= line_.size()) fail("expected a closing quote");
      char c = line_[at_++];
      if (c == '\\') {
        const char escaped = at_ < line_.size() ? line_[at_++] : '\0';
        switch (escaped) {
          case 'n':
            c = '\n';
            break;
          case 't':
            c = '\t';
            break;
          case '"':
            c = '"';
            break;
          case '\\':
            c = '\\';
            break;
          default:
            --at_;
            fail("expected one of the escapes \\n \\t \\\" \\\\");
        }
      }
      out += c;
    }
    return out;
  }

  const std::string& line_;
  std::string where_;
  size_t at_ = 0;
};

std::vector<std::string> read_value(LineReader& in) {
  std::vector<std::string> out;
  if (!in.accept('[')) {
    out.push_back(in.scalar());
    return out;
  }
  for (in.skip_blanks(); !in.accept(']'); in.skip_blanks()) {
    out.push_back(in.scalar());
    in.skip_blanks();
    if (in.accept(']')) break;
    in.expect(',', "an array's value");
  }
  return out;
}

}  // namespace

std::vector<TomlEntry> parse_toml(const std::string& text, const std::string& name) {
  std::vector<TomlEntry> entries;
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    LineReader in(line, concat(name, ":", number));
    in.skip_blanks();
    if (in.done()) continue;
    TomlEntry entry;
    entry.line = number;
    entry.key = in.bare("a key (tables are not used here)");
    in.skip_blanks();
    in.expect('=', "the key");
    in.skip_blanks();
    entry.values = read_value(in);
    in.skip_blanks();
    if (!in.done()) in.fail("expected the end of the line");
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<TomlEntry> read_toml(const std::string& path) {
  std::error_code error;
  check(!std::filesystem::is_directory(path, error), path, ": expected a file, found a folder");
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  check(file != nullptr, path, ": ", std::strerror(errno));
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  check(text.size() <= kMaxFileBytes, path, ": expected a configuration of at most 1 MiB");
  return parse_toml(text, path);
}

std::string quote_toml(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else
      out += c;
  }
  return out + '"';
}

}  // namespace heddle
