// One decoded picture, and the decoder of JPEG and PNG files (stb_image) with limits, so that no
// file can crash the program or make it allocate without bound.
//
//   Image image;
//   read_image_file("cat.jpg", image);   // 8-bit RGB, whatever the file holds
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace heddle {

// 8-bit RGB, rows of (width, 3) bytes from the top. `label` is the index of the class.
struct Image {
  int width = 0, height = 0, label = 0;
  std::vector<uint8_t> pixels;
};

constexpr int kMaxImageSide = 16384;                 // pixels
constexpr int64_t kMaxImagePixels = 100'000'000;     // pixels
constexpr int64_t kMaxImageFile = int64_t{1} << 28;  // bytes

// Decodes a JPEG or PNG file held in memory; grey becomes RGB, alpha is dropped, 16 bits become 8.
// Leaves `out.label` alone. Throws InputError that begins with `name` for anything else: not an
// image, no pixels, larger than the limits above, truncated, corrupt.
void decode_image(std::span<const uint8_t> bytes, const std::string& name, Image& out);

// Reads and decodes a file. Throws as decode_image does, and for a file that cannot be read.
void read_image_file(const std::filesystem::path& path, Image& out);

// Reads only the header of a file and throws as decode_image would for what can be seen there.
void check_image_header(const std::filesystem::path& path);

}  // namespace heddle
