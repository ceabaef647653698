#include "data/image.h"

#include <stb/stb_image.h>

#include <algorithm>
#include <array>
#include <climits>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/files.h"
#include "core/scalar.h"
#include "data/stb_memory.h"

namespace heddle {
namespace {

struct Size {
  int width = 0, height = 0;
};

// The most pixels that a byte of a file can encode: deflate reaches 1032:1 with 8 one-bit pixels
// per byte, a single-colour grey JPEG 512, doubled here. A header that promises more is refused
// before memory is allocated.
constexpr int64_t kPngPixelsPerByte = 8256, kJpegPixelsPerByte = 1024;
constexpr int kMaxScans = 100;     // real files have about ten; each one decodes every pixel again
constexpr size_t kPngHead = 33;    // bytes of signature and header
constexpr size_t kHead = 1 << 16;  // bytes within which the size is usually found

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

bool is_png(std::span<const uint8_t> head) {
  constexpr std::array<uint8_t, 8> kPng{0x89, 'P', 'N', 'G', 0x0D, 0x0A, 0x1A, 0x0A};
  return head.size() >= kPngHead && std::equal(kPng.begin(), kPng.end(), head.begin());
}

// Returns the size in a PNG file's header. (stb_image would allow Apple's chunk before it.)
Size png_size(std::span<const uint8_t> head, const std::string& name) {
  constexpr std::array<uint8_t, 8> kHeader{0, 0, 0, 13, 'I', 'H', 'D', 'R'};
  check(std::equal(kHeader.begin(), kHeader.end(), head.begin() + 8), name,
        ": expected the chunk IHDR first in a PNG file, found another");
  const auto big_endian = [&](size_t at) {
    const int64_t value =
        int64_t{head[at]} << 24 | head[at + 1] << 16 | head[at + 2] << 8 | head[at + 3];
    return to_int(std::min<int64_t>(value, INT_MAX));
  };
  return {big_endian(16), big_endian(20)};
}

// Returns the most bytes that a PNG file may inflate to: twice what its pixels need, four times if
// they are interlaced, because a row may then be split into four. stb_image also joins the
// compressed bytes in a buffer that doubles from 4096.
size_t png_limit(std::span<const uint8_t> bytes, Size size) {
  constexpr std::array<int, 7> kChannels{1, 0, 3, 1, 2, 0, 4};  // by colour type
  const int64_t channels = bytes[25] < kChannels.size() ? kChannels[bytes[25]] : 0;
  const int64_t row = 1 + (int64_t{size.width} * bytes[24] + 7) / 8 * channels;
  const auto raw = to_size(row * size.height);
  return std::max((bytes[28] != 0 ? 4 : 2) * raw, 2 * std::max<size_t>(bytes.size(), 4096));
}

// Inserts a palette of 256 black entries after the header; the file's own palette overwrites the
// first ones. For missing colours stb_image would use uninitialised stack memory.
std::vector<uint8_t> with_whole_palette(std::span<const uint8_t> bytes) {
  constexpr std::array<uint8_t, 8> kPalette{0, 0, 3, 0, 'P', 'L', 'T', 'E'};
  std::vector<uint8_t> out(bytes.begin(), bytes.begin() + kPngHead);
  out.insert(out.end(), kPalette.begin(), kPalette.end());
  out.resize(out.size() + 768 + 4);  // colours and a checksum, which is not read
  out.insert(out.end(), bytes.begin() + kPngHead, bytes.end());
  return out;
}

// Walks through the segments of a JPEG file as stb_image does.
class JpegScan {
 public:
  JpegScan(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  // Returns the size; stops there unless `whole`. Throws for a component without a scan, whose
  // pixels would stay unset, and for a Huffman table of more than 255 codes (an image uses 162 at
  // most): stb_image of 2022 takes the last of 256 for a mark, and writes beyond its tables with
  // more. Ends without an error at anything that stb_image itself refuses.
  std::optional<Size> run(bool whole) {
    std::optional<Size> size;
    std::vector<int> missing;  // components without a scan so far
    int scans = 0;
    at_ = 2;
    while (at_ < bytes_.size()) {
      const int marker = next_marker();
      const size_t begin = at_;
      const int length = word(byte());
      if (marker >= 0xC0 && marker <= 0xC2) {
        byte();  // bits of a sample
        const int height = word(byte()), width = word(byte());
        if (at_ > bytes_.size()) break;
        if (!size) missing = read_components(2), size = Size{width, height};
        if (!whole) return size;
      } else if (marker == 0xDA) {
        check(++scans <= kMaxScans, name_, ": expected at most ", kMaxScans,
              " scans in a progressive JPEG, found more");
        for (const int id : read_components(1)) std::erase(missing, id);
      } else if (marker == 0xC4) {
        check_huffman_tables(begin + to_size(length));
      } else if (marker == 0xD9) {
        break;
      }
      at_ = begin + to_size(std::max(2, length));
    }
    check(!whole || missing.empty(), name_, ": truncated or corrupt image: ", missing.size(),
          " of the JPEG's components have no pixels");
    return size;
  }

 private:
  // Returns the next byte; 0 after the end, as stb_image does.
  int byte() { return at_++ < bytes_.size() ? bytes_[at_ - 1] : 0; }

  // Returns the number whose first byte this is; an argument is read first, unlike a left operand.
  int word(int high) { return high << 8 | byte(); }

  // Reads a count, then for each component its id and `more` bytes.
  std::vector<int> read_components(size_t more) {
    std::vector<int> out(to_size(byte()));
    for (int& id : out) {
      id = byte();
      at_ += more;
    }
    return out;
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
      check(codes <= 255, name_,
            ": corrupt: expected at most 255 codes in the Huffman table at offset ", table,
            ", found ", codes);
      at_ += to_size(codes);
    }
  }

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

// Finds and checks the size in the first bytes of a file of `length` bytes. Returns false if a
// JPEG's size lies beyond them.
bool check_header(std::span<const uint8_t> head, int64_t length, const std::string& name) {
  if (is_png(head)) {
    check_size(png_size(head, name), length, kPngPixelsPerByte, name);
    return true;
  }
  if (head.size() < 4 || head[0] != 0xFF || head[1] != 0xD8)
    throw_not_an_image(name, "another format");
  const bool whole = to_int64(head.size()) == length;
  const auto size = JpegScan(head, name).run(whole);
  if (!size && whole) throw_not_an_image(name, "a JPEG file without a readable size");
  if (size) check_size(*size, length, kJpegPixelsPerByte, name);
  return size.has_value();
}

InputFile open_image(const std::string& path) {
  InputFile file(path);
  check(file.size() > 0, path, ": expected a JPEG or PNG image, found an empty file");
  check(file.size() <= kMaxImageFile, path, ": expected at most ", kMaxImageFile, " bytes, found ",
        file.size());
  return file;
}

// Reads the first `length` bytes of a file.
std::vector<uint8_t> read_head(const InputFile& file, int64_t length) {
  std::vector<uint8_t> bytes(to_size(length));
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace

void decode_image(std::span<const uint8_t> bytes, const std::string& name, Image& out) {
  const auto length = to_int64(bytes.size());
  check(length > 0, name, ": expected a JPEG or PNG image, found no bytes");
  check(length <= kMaxImageFile, name, ": expected at most ", kMaxImageFile, " bytes, found ",
        length);
  check_header(bytes, length, name);
  const bool png = is_png(bytes);
  std::vector<uint8_t> padded;
  if (png && bytes[25] == 3) padded = with_whole_palette(bytes);
  if (!padded.empty()) bytes = padded;
  stb_growth_limit = png ? png_limit(bytes, png_size(bytes, name)) : 0;

  int width = 0, height = 0, channels = 0;
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(bytes.data(), to_int(bytes.size()), &width, &height, &channels, 3),
      &stbi_image_free);
  if (!pixels) {
    const char* found = stbi_failure_reason();
    const std::string reason = found ? found : "unknown";
    throw InputError(
        concat(name, ": truncated or corrupt image in ", length, " bytes: ",
               reason == "outofmem" ? "its data need more memory than its size implies" : reason));
  }
  out.width = width;
  out.height = height;
  out.pixels.assign(pixels.get(), pixels.get() + int64_t{3} * width * height);
}

void read_image_file(const std::filesystem::path& path, Image& out) {
  const InputFile file = open_image(path.string());
  decode_image(read_head(file, file.size()), file.path(), out);
}

void check_image_header(const std::filesystem::path& path) {
  const InputFile file = open_image(path.string());
  const auto head = read_head(file, std::min<int64_t>(file.size(), kHead));
  if (!check_header(head, file.size(), file.path()))
    check_header(read_head(file, file.size()), file.size(), file.path());
}

}  // namespace heddle
