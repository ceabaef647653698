#include "apps/models/png.h"

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>

#include "core/error.h"
#include "core/scalar.h"

namespace heddle {

std::string encode_png(const std::vector<uint8_t>& pixels, int64_t width, int64_t height,
                       int channels) {
  check(std::ssize(pixels) == width * height * channels, "PNG: expected ",
        width * height * channels, " bytes, found ", pixels.size());
  std::string png;
  const auto append = [](void* to, void* bytes, int n) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), to_size(n));
  };
  check(stbi_write_png_to_func(append, &png, to_int(width), to_int(height), channels, pixels.data(),
                               to_int(width * channels)) != 0,
        "PNG: the image cannot be encoded");
  return png;
}

}  // namespace heddle
