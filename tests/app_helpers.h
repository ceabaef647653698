// Helpers for tests of the programs: a temporary folder, and error messages.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"

namespace heddle {

using Strings = std::vector<std::string>;

struct TempFolder {
  std::string path;
  TempFolder() {
    char name[] = "/tmp/heddle-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~TempFolder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name, std::ios::binary) << text;
    return path + "/" + name;
  }
};

inline std::string read(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

// The message of the InputError that f throws; "" when it throws none.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// True if the text contains all parts in this order. Tests of messages check names and numbers, not
// sentences.
inline bool mentions(const std::string& text, const Strings& parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    at = text.find(part, at);
    if (at == std::string::npos) return false;
    at += part.size();
  }
  return true;
}

// A dumped configuration without its remarks.
inline std::string without_remarks(const std::string& text) {
  std::string out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out += line.substr(0, line.find("  #")) + "\n";
  return out;
}

}  // namespace heddle
