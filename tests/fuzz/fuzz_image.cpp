// Arbitrary bytes as an image file: decode_image returns pixels or throws InputError.
#include "core/error.h"
#include "data/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  heddle::Image image;
  try {
    heddle::decode_image({bytes, size}, "fuzz", image);
  } catch (const heddle::InputError&) {
    return 0;
  }
  const size_t expected =
      size_t{3} * static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
  if (image.pixels.size() != expected || expected == 0) __builtin_trap();
  return 0;
}
