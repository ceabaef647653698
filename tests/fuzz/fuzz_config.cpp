// Arbitrary configuration files: each is read, or refused with an InputError that names it; an
// accepted one survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "apps/cli/resnet_options.h"
#include "core/error.h"

namespace {

using namespace heddle;

void require(bool ok) {
  if (!ok) std::abort();
}

// The dumped configuration of a file.
std::string read(const std::string& path) {
  TrainResnetOptions o;
  FlagTable flags = resnet_flags(o);
  flags.parse({"--config", path}, {});
  return flags.dump("rule");
}

std::string without_remarks(const std::string& text) {
  std::string out;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const bool remark = line.ends_with("  # default") || line.ends_with("  # rule");
    out += (remark ? line.substr(0, line.rfind("  # ")) : line) + '\n';
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = "/tmp/fuzz_config-" + std::to_string(std::rand()) + ".toml";
  const auto write = [&](const char* text, size_t bytes) {
    std::ofstream(path, std::ios::binary).write(text, static_cast<std::streamsize>(bytes));
  };
  write(reinterpret_cast<const char*>(data), size);
  try {
    const std::string dumped = without_remarks(read(path));
    write(dumped.data(), dumped.size());
    require(without_remarks(read(path)) == dumped);
  } catch (const InputError& error) {
    require(std::string(error.what()).starts_with(path));
  }
  return 0;
}
