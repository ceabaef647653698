#include "data/image.h"

#include <stb/stb_image.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/error.h"

namespace heddle {
namespace {

// No JPEG or PNG packs more pixels into a byte (deflate ends at 1032:1 with 8 one-bit pixels to the
// byte; a progressive JPEG of one colour at some 350). A header that promises more is refused
// before memory is allocated for it.
constexpr int64_t kMaxPixelsPerByte = 8256;
constexpr size_t kPngHead = 24;  // bytes up to and with the size

void check_size(int width, int height, int64_t bytes, const std::string& name) {
  check(width > 0 && height > 0, name, ": expected an image with pixels, found ", width, " x ",
        height);
  check(width <= kMaxImageSide && height <= kMaxImageSide, name, ": expected at most ",
        kMaxImageSide, " pixels a side, found ", width, " x ", height);
  const int64_t pixels = int64_t{width} * height;
  check(pixels <= kMaxImagePixels, name, ": expected at most ", kMaxImagePixels, " pixels, found ",
        pixels, " (", width, " x ", height, ")");
  check(pixels / kMaxPixelsPerByte <= bytes, name, ": truncated: the header promises ", width,
        " x ", height, " pixels, found ", bytes, " bytes");
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File open_file(const std::filesystem::path& path) {
  File file(std::fopen(path.c_str(), "rb"), &std::fclose);
  check(file != nullptr, path.string(), ": cannot be opened: ", std::strerror(errno));
  return file;
}

int64_t file_bytes(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  check(!error, path.string(), ": cannot be read: ", error.message());
  check(bytes > 0, path.string(), ": expected a JPEG or PNG image, found an empty file");
  check(bytes <= static_cast<uintmax_t>(kMaxImageFile), path.string(), ": expected at most ",
        kMaxImageFile, " bytes, found ", bytes);
  return static_cast<int64_t>(bytes);
}

// stb_image does not say what it dislikes about a header; the size in a PNG file's is looked up.
[[noreturn]] void throw_not_an_image(std::span<const uint8_t> head, int64_t bytes,
                                     const std::string& name) {
  if (head.size() >= kPngHead && std::memcmp(head.data(), "\x89PNG\r\n\x1a\n", 8) == 0) {
    const auto big_endian = [&](size_t at) {
      const int64_t value =
          int64_t{head[at]} << 24 | head[at + 1] << 16 | head[at + 2] << 8 | head[at + 3];
      return static_cast<int>(std::min<int64_t>(value, INT_MAX));
    };
    check_size(big_endian(16), big_endian(20), bytes, name);
  }
  const char* reason = stbi_failure_reason();
  throw InputError(
      concat(name, ": expected a JPEG or PNG image, found: ", reason ? reason : "unknown"));
}

}  // namespace

void decode_image(std::span<const uint8_t> bytes, const std::string& name, Image& out) {
  const auto length = static_cast<int64_t>(bytes.size());
  check(length > 0, name, ": expected a JPEG or PNG image, found no bytes");
  check(length <= kMaxImageFile, name, ": expected at most ", kMaxImageFile, " bytes, found ",
        length);
  int width = 0, height = 0, channels = 0;
  if (!stbi_info_from_memory(bytes.data(), static_cast<int>(length), &width, &height, &channels))
    throw_not_an_image(bytes, length, name);
  check_size(width, height, length, name);

  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(bytes.data(), static_cast<int>(length), &width, &height, &channels, 3),
      &stbi_image_free);
  if (!pixels) {
    const char* reason = stbi_failure_reason();
    throw InputError(concat(name, ": truncated or corrupt image of ", width, " x ", height,
                            " pixels in ", length, " bytes: ", reason ? reason : "unknown"));
  }
  check_size(width, height, length, name);
  out.width = width;
  out.height = height;
  out.pixels.assign(pixels.get(), pixels.get() + int64_t{3} * width * height);
}

void read_image_file(const std::filesystem::path& path, Image& out) {
  std::vector<uint8_t> bytes(static_cast<size_t>(file_bytes(path)));
  const File file = open_file(path);
  const size_t found = std::fread(bytes.data(), 1, bytes.size(), file.get());
  check(found == bytes.size(), path.string(), ": expected ", bytes.size(), " bytes, read ", found);
  decode_image(bytes, path.string(), out);
}

void check_image_header(const std::filesystem::path& path) {
  const int64_t bytes = file_bytes(path);
  const File file = open_file(path);
  int width = 0, height = 0, channels = 0;
  if (!stbi_info_from_file(file.get(), &width, &height, &channels)) {
    std::array<uint8_t, kPngHead> head{};
    std::rewind(file.get());
    const size_t found = std::fread(head.data(), 1, head.size(), file.get());
    throw_not_an_image(std::span(head).first(found), bytes, path.string());
  }
  check_size(width, height, bytes, path.string());
}

}  // namespace heddle
