// Reads the flat part of TOML that a run's configuration needs: one `key = value` per line, values
// strings, numbers, booleans and one-line arrays of these; comments begin with '#'. A table header
// or a nested value is an error that names file and line.
//
//   for (const TomlEntry& entry : read_toml("config.toml")) use(entry.key, entry.values);
#pragma once

#include <string>
#include <vector>

namespace heddle {

struct TomlEntry {
  std::string key;
  std::vector<std::string> values;  // one for a scalar, without quotes
  int line = 0;
};

// Throws InputError for a file that cannot be read, is above 1 MiB, or is not flat TOML.
std::vector<TomlEntry> read_toml(const std::string& path);

// The same for text in memory; `name` stands for the file in errors.
std::vector<TomlEntry> parse_toml(const std::string& text, const std::string& name);

// A string as TOML writes it, with quotes and escapes.
std::string quote_toml(const std::string& text);

}  // namespace heddle
