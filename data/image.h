// Image: a decoded picture, and the decoder of JPEG and PNG files (stb_image) with limits, so that
// no file can crash the program or make it allocate without bound.
//
//   Image image;
//   read_image_file("cat.jpg", image);   // 8-bit RGB, as stored: an EXIF orientation is ignored
//
// All functions are thread-safe and throw an InputError that begins with the file's name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace heddle {

// 8-bit RGB (height, width, 3), rows from the top. `label` is the index of the class.
struct Image {
  int width = 0, height = 0, label = 0;
  std::vector<uint8_t> pixels;
};

constexpr int kMaxImageSide = 16384;                 // pixels
constexpr int64_t kMaxImagePixels = 100'000'000;     // pixels
constexpr int64_t kMaxImageFile = int64_t{1} << 28;  // bytes

// Decodes a JPEG or PNG file held in memory; grey becomes RGB, alpha is dropped, 16 bits become 8.
// Does not change `out.label`. Throws for data that is not an image, has no pixels, exceeds the
// limits above, or is truncated or corrupt; `name` is the file's name in the error.
void decode_image(std::span<const uint8_t> bytes, const std::string& name, Image& out);

// Reads and decodes a file. Throws as decode_image does, and for a file that cannot be read.
void read_image_file(const std::filesystem::path& path, Image& out);

// Checks a file's header only; throws as decode_image() would for an error found there.
void check_image_header(const std::filesystem::path& path);

}  // namespace heddle
