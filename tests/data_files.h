// Helpers for tests of data/: temporary folders with good and broken files, and the folder of real
// data sets ($HEDDLE_DATA, else shared/data in the tree or next to it).
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace heddle {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

// A folder that is removed at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "heddle-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }

  // Writes a file, and the folders that it needs.
  fs::path write(const fs::path& name, const Bytes& bytes) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  fs::path path_;
};

// The message of the InputError that f throws; fails the test when it throws none.
inline std::string input_error(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  FAIL_CHECK("expected an InputError");
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("expected '" << part << "' in: " << text);
  return false;
}

// Returns a data set's folder. If there is none, prints a message and returns an empty path.
inline fs::path find_data(const std::string& name) {
  std::vector<fs::path> roots;
  if (const char* root = std::getenv("HEDDLE_DATA")) roots.emplace_back(root);
  roots.emplace_back(fs::path(HEDDLE_SOURCE_DIR) / ".." / "shared" / "data");
  roots.emplace_back("../shared/data");
  for (const auto& root : roots)
    if (fs::is_directory(root / name)) return root / name;
  MESSAGE("skipped: data set " << name
                               << " is not there (set HEDDLE_DATA to the folder that holds it)");
  return {};
}

}  // namespace heddle
