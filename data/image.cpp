#include "data/image.h"

#include <stb/stb_image.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "core/error.h"

namespace heddle {
namespace {

struct Size {
  int width = 0, height = 0;
};

// No file packs more pixels into a byte: deflate ends at 1032:1 with 8 one-bit pixels to the byte,
// a grey JPEG of one colour at 512. A header that promises more is refused before memory is
// allocated.
constexpr int64_t kPngPixelsPerByte = 8256, kJpegPixelsPerByte = 1024;
constexpr int kMaxScans = 100;     // real files have some ten; each costs time in all pixels
constexpr size_t kHead = 1 << 16;  // bytes of a file in which its size is usually found

[[noreturn]] void throw_not_an_image(const std::string& name, const std::string& found) {
  throw InputError(concat(name, ": expected a JPEG or PNG image, found ", found));
}

void check_size(Size size, int64_t bytes, int64_t pixels_per_byte, const std::string& name) {
  const auto [width, height] = size;
  check(width > 0 && height > 0, name, ": expected an image with pixels, found ", width, " x ",
        height);
  check(width <= kMaxImageSide && height <= kMaxImageSide, name, ": expected at most ",
        kMaxImageSide, " pixels a side, found ", width, " x ", height);
  const int64_t pixels = int64_t{width} * height;
  check(pixels <= kMaxImagePixels, name, ": expected at most ", kMaxImagePixels, " pixels, found ",
        pixels, " (", width, " x ", height, ")");
  check(pixels / pixels_per_byte <= bytes, name, ": truncated: the header promises ", width, " x ",
        height, " pixels, found ", bytes, " bytes");
}

// Walks over the segments of a JPEG file as stb_image does.
class JpegScan {
 public:
  JpegScan(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  // Finds the size; with `whole` false it stops there. stb_image of 2022 writes beyond its tables
  // when a Huffman table has more than 256 codes (the format allows no more): such a file must
  // never reach it. Where the walk meets what stb_image refuses, it ends and leaves the rest to it.
  std::optional<Size> run(bool whole) {
    std::optional<Size> size;
    int scans = 0;
    at_ = 2;
    while (at_ < bytes_.size()) {
      const int marker = next_marker();
      const size_t begin = at_;
      const int length = byte() << 8 | byte();
      if (marker >= 0xC0 && marker <= 0xC2) {
        byte();  // bits of a sample
        const int height = byte() << 8 | byte(), width = byte() << 8 | byte();
        if (at_ > bytes_.size()) break;
        if (!size) size = Size{width, height};
        if (!whole) break;
      } else if (marker == 0xDA) {
        check(++scans <= kMaxScans, name_, ": expected at most ", kMaxScans,
              " scans in a progressive JPEG, found more");
      } else if (marker == 0xC4) {
        check_huffman_tables(begin + static_cast<size_t>(length));
      } else if (marker == 0xD9) {
        break;
      }
      at_ = begin + static_cast<size_t>(std::max(2, length));
    }
    return size;
  }

 private:
  // 0 after the end, where stb_image reads zeros too.
  int byte() {
    const int value = at_ < bytes_.size() ? bytes_[at_] : 0;
    ++at_;
    return value;
  }

  // Skips padding, and the compressed data after a start of scan: FF 00 and restarts belong to it.
  int next_marker() {
    while (at_ < bytes_.size()) {
      if (byte() != 0xFF) continue;
      int marker = byte();
      while (marker == 0xFF) marker = byte();
      if (marker != 0 && !(marker >= 0xD0 && marker <= 0xD7)) return marker;
    }
    return 0;
  }

  void check_huffman_tables(size_t end) {
    while (at_ < end && at_ < bytes_.size()) {
      const size_t table = at_;
      byte();
      int codes = 0;
      for (int i = 0; i < 16; ++i) codes += byte();
      check(codes <= 256, name_,
            ": corrupt: expected at most 256 codes in the Huffman table at offset ", table,
            ", found ", codes);
      at_ += static_cast<size_t>(codes);
    }
  }

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

// Finds and checks the size in the first bytes of a file of `length` bytes. False when a JPEG's
// lies beyond them.
bool check_header(std::span<const uint8_t> head, int64_t length, const std::string& name) {
  constexpr std::array<uint8_t, 8> kPng{0x89, 'P', 'N', 'G', 0x0D, 0x0A, 0x1A, 0x0A};
  if (head.size() >= 24 && std::equal(kPng.begin(), kPng.end(), head.begin())) {
    const auto big_endian = [&](size_t at) {
      const int64_t value =
          int64_t{head[at]} << 24 | head[at + 1] << 16 | head[at + 2] << 8 | head[at + 3];
      return static_cast<int>(std::min<int64_t>(value, INT_MAX));
    };
    check_size({big_endian(16), big_endian(20)}, length, kPngPixelsPerByte, name);
    return true;
  }
  if (head.size() < 4 || head[0] != 0xFF || head[1] != 0xD8)
    throw_not_an_image(name, "another file");
  const bool whole = static_cast<int64_t>(head.size()) == length;
  const auto size = JpegScan(head, name).run(whole);
  if (!size && whole) throw_not_an_image(name, "a JPEG file without a size that can be read");
  if (size) check_size(*size, length, kJpegPixelsPerByte, name);
  return size.has_value();
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

int64_t file_bytes(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  check(!error, path.string(), ": cannot be read: ", error.message());
  check(bytes > 0, path.string(), ": expected a JPEG or PNG image, found an empty file");
  check(bytes <= static_cast<uintmax_t>(kMaxImageFile), path.string(), ": expected at most ",
        kMaxImageFile, " bytes, found ", bytes);
  return static_cast<int64_t>(bytes);
}

// The first `length` bytes of a file.
std::vector<uint8_t> read_head(const std::filesystem::path& path, int64_t length) {
  std::vector<uint8_t> bytes(static_cast<size_t>(length));
  const File file(std::fopen(path.c_str(), "rb"), &std::fclose);
  check(file != nullptr, path.string(), ": cannot be opened: ", std::strerror(errno));
  const size_t found = std::fread(bytes.data(), 1, bytes.size(), file.get());
  check(found == bytes.size(), path.string(), ": expected ", bytes.size(), " bytes, read ", found);
  return bytes;
}

}  // namespace

void decode_image(std::span<const uint8_t> bytes, const std::string& name, Image& out) {
  const auto length = static_cast<int64_t>(bytes.size());
  check(length > 0, name, ": expected a JPEG or PNG image, found no bytes");
  check(length <= kMaxImageFile, name, ": expected at most ", kMaxImageFile, " bytes, found ",
        length);
  check_header(bytes, length, name);

  int width = 0, height = 0, channels = 0;
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(bytes.data(), static_cast<int>(length), &width, &height, &channels, 3),
      &stbi_image_free);
  if (!pixels) {
    const char* reason = stbi_failure_reason();
    throw InputError(concat(name, ": truncated or corrupt image in ", length,
                            " bytes: ", reason ? reason : "unknown"));
  }
  out.width = width;
  out.height = height;
  out.pixels.assign(pixels.get(), pixels.get() + int64_t{3} * width * height);
}

void read_image_file(const std::filesystem::path& path, Image& out) {
  const int64_t length = file_bytes(path);
  decode_image(read_head(path, length), path.string(), out);
}

void check_image_header(const std::filesystem::path& path) {
  const int64_t length = file_bytes(path);
  const auto head = read_head(path, std::min<int64_t>(length, kHead));
  if (!check_header(head, length, path.string()))
    check_header(read_head(path, length), length, path.string());
}

}  // namespace heddle
