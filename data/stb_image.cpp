// Compiles stb_image, with bounded memory; the other limits are in image.cpp.
#include <cstdlib>

#include "data/stb_memory.h"

thread_local size_t heddle::stb_growth_limit = 0;

#define STBI_MALLOC(size) std::calloc(1, size)
#define STBI_REALLOC(old, size) \
  (size_t{size} > heddle::stb_growth_limit ? nullptr : std::realloc(old, size))
#define STBI_FREE(old) std::free(old)
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_MAX_DIMENSIONS 65535

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
#include <stb/stb_image.h>
#pragma GCC diagnostic pop
