// libFuzzer target: whatever the bytes, the reader either throws InputError or every tensor loads.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/context.h"
#include "core/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static heddle::Context context;
  try {
    const auto file = heddle::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
    // An accepted file must load.
    try {
      for (const std::string& name : file.names()) (void)file.load(name);
    } catch (const heddle::Error&) {
      std::abort();
    }
  } catch (const heddle::InputError&) {
  }
  return 0;
}
