// Pictures: JPEG and PNG files of every kind, broken ones, and folders of them.
#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <map>

#include "data/dataset.h"
#include "data/image.h"
#include "tests/data_files.h"

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

namespace heddle {
namespace {

void append(void* context, void* data, int size) {
  auto* bytes = static_cast<Bytes*>(context);
  const auto* begin = static_cast<const uint8_t*>(data);
  bytes->insert(bytes->end(), begin, begin + size);
}

// A picture with `channels` 1 to 4 whose pixel i has the value 3 i + c (mod 251) in channel c.
Bytes pattern(int width, int height, int channels) {
  Bytes pixels;
  for (int i = 0; i < width * height; ++i)
    for (int c = 0; c < channels; ++c) pixels.push_back(static_cast<uint8_t>((3 * i + c) % 251));
  return pixels;
}

Bytes png_file(int width, int height, int channels = 3) {
  Bytes bytes;
  stbi_write_png_to_func(append, &bytes, width, height, channels,
                         pattern(width, height, channels).data(), width * channels);
  return bytes;
}

Bytes jpeg_file(int width, int height, int channels = 3) {
  Bytes bytes;
  const Bytes pixels(static_cast<size_t>(width * height * channels), 100);
  stbi_write_jpg_to_func(append, &bytes, width, height, channels, pixels.data(), 90);
  return bytes;
}

// The offset of a JPEG's first marker of this kind.
std::ptrdiff_t find_marker(const Bytes& jpeg, uint8_t marker) {
  size_t at = 2;
  while (jpeg[at] != 0xFF || jpeg[at + 1] != marker) ++at;
  return static_cast<std::ptrdiff_t>(at);
}

// Returns a PNG file with a palette of one colour and these uncompressed rows with filter bytes.
Bytes png_of(int width, int height, int bits, int colour_type, int interlaced, Bytes rows) {
  Bytes out{0x89, 'P', 'N', 'G', 0x0D, 0x0A, 0x1A, 0x0A};
  const auto chunk = [&](const std::string& name, const Bytes& content) {
    for (int shift = 24; shift >= 0; shift -= 8)
      out.push_back(static_cast<uint8_t>(content.size() >> shift));
    out.insert(out.end(), name.begin(), name.end());
    out.insert(out.end(), content.begin(), content.end());
    out.insert(out.end(), 4, 0);  // a checksum, which nobody reads
  };
  const auto byte = [](int value) { return static_cast<uint8_t>(value); };
  chunk("IHDR", {0, 0, 0, byte(width), 0, 0, 0, byte(height), byte(bits), byte(colour_type), 0, 0,
                 byte(interlaced)});
  chunk("PLTE", {1, 2, 3});
  int length = 0;
  uint8_t* data = stbi_zlib_compress(rows.data(), static_cast<int>(rows.size()), &length, 8);
  chunk("IDAT", Bytes(data, data + length));
  std::free(data);
  chunk("IEND", {});
  return out;
}

// A PNG file whose header claims another size.
Bytes png_claiming(uint32_t width, uint32_t height) {
  Bytes bytes = png_file(8, 8);
  for (int i = 0; i < 4; ++i) {
    bytes[static_cast<size_t>(16 + i)] = static_cast<uint8_t>(width >> (24 - 8 * i));
    bytes[static_cast<size_t>(20 + i)] = static_cast<uint8_t>(height >> (24 - 8 * i));
  }
  return bytes;
}

TEST_CASE("images: PNG and JPEG of any depth become RGB") {
  Image image;
  decode_image(png_file(5, 3), "x.png", image);
  CHECK(image.width == 5);
  CHECK(image.height == 3);
  CHECK(image.pixels == pattern(5, 3, 3));
  decode_image(png_file(5, 3, 1), "x.png", image);
  REQUIRE(image.pixels.size() == 45);
  CHECK(image.pixels[3] == 3);
  CHECK(image.pixels[5] == 3);
  decode_image(png_file(5, 3, 4), "x.png", image);
  REQUIRE(image.pixels.size() == 45);
  CHECK(image.pixels[4] == 4);
  decode_image(jpeg_file(20, 10), "x.jpg", image);
  CHECK(image.width == 20);
  CHECK(std::abs(image.pixels[100] - 100) <= 2);
  decode_image(jpeg_file(20, 10, 1), "x.jpg", image);
  CHECK(image.pixels.size() == 600);
}

TEST_CASE("images: broken files") {
  Image image;
  const auto decode = [&](const Bytes& bytes) {
    return input_error([&] { decode_image(bytes, "x.png", image); });
  };
  CHECK(contains(decode({}), "x.png: expected a JPEG or PNG image, found no bytes"));
  CHECK(contains(decode({'h', 'e', 'l', 'l', 'o'}), "x.png: expected a JPEG or PNG image"));
  CHECK(contains(decode(png_claiming(0, 7)), "x.png: expected an image with pixels, found 0 x 7"));
  CHECK(contains(decode(png_claiming(0xffffffff, 7)), "found 2147483647 x 7"));
  CHECK(contains(decode(png_claiming(60000, 60000)),
                 "expected at most 16384 pixels a side, found 60000 x 60000"));
  CHECK(contains(decode(png_claiming(16000, 16000)), "at most 100000000 pixels, found 256000000"));
  CHECK(contains(decode(png_claiming(9000, 9000)), "truncated: the header promises 9000 x 9000"));
  CHECK(contains(decode(png_claiming(9, 8)), "truncated or corrupt image in"));
  for (Bytes bytes : {png_file(40, 40), jpeg_file(40, 40)}) {
    bytes.resize(bytes.size() * 3 / 4);
    CHECK(contains(decode(bytes), "truncated or corrupt image"));
  }
}

TEST_CASE("images: a JPEG's Huffman table with too many codes never reaches stb_image") {
  Bytes bytes = jpeg_file(40, 40);
  const auto table = static_cast<size_t>(find_marker(bytes, 0xC4));
  for (const int codes : {256, 510}) {
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(table) + 5, 14, uint8_t{0});
    bytes[table + 5 + 14] = 255;  // codes of 15 bits
    bytes[table + 5 + 15] = static_cast<uint8_t>(codes - 255);
    Image image;
    CHECK(contains(
        input_error([&] { decode_image(bytes, "x.jpg", image); }),
        concat("at most 255 codes in the Huffman table at offset ", table + 4, ", found ", codes)));
  }
}

// Memory that is allocated from now on holds this byte.
void fill_new_memory(int byte) {
  ::mallopt(M_PERTURB, ~byte & 0xff);
  std::array<volatile uint8_t, 1 << 16> stack;
  for (volatile uint8_t& x : stack) x = static_cast<uint8_t>(byte);
}

TEST_CASE("images: a JPEG with components without a scan is refused") {
  const Bytes good = jpeg_file(40, 40);
  const auto scan = find_marker(good, 0xDA);
  Image image;
  Bytes none(good.begin(), good.begin() + scan);
  none.insert(none.end(), {0xFF, 0xD9});
  CHECK(contains(input_error([&] { decode_image(none, "x.jpg", image); }),
                 "x.jpg: truncated or corrupt image: 3 of the JPEG's components have no pixels"));
  Bytes one = good;
  const std::array<uint8_t, 10> first{0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0};
  one.erase(one.begin() + scan, one.begin() + scan + 14);
  one.insert(one.begin() + scan, first.begin(), first.end());
  CHECK(contains(input_error([&] { decode_image(one, "x.jpg", image); }), "2 of the JPEG's"));
}

TEST_CASE("images: a broken file decodes to the same pixels in every run") {
  Bytes cut = jpeg_file(40, 40);  // its scan ends at the first restart: after one block
  const std::array<uint8_t, 6> restart{0xFF, 0xDD, 0, 4, 0, 1};
  cut.insert(cut.begin() + find_marker(cut, 0xDA), restart.begin(), restart.end());
  Bytes row(17, 200);  // colour 200 of a palette of one
  row[0] = 0;
  const Bytes colour = png_of(16, 1, 8, 3, 0, row);
  for (const Bytes& bytes : {cut, colour}) {
    Image first, second;
    fill_new_memory(0x11);
    decode_image(bytes, "x", first);
    fill_new_memory(0x77);
    decode_image(bytes, "x", second);
    fill_new_memory(0xff);  // off
    CHECK(first.pixels == second.pixels);
  }
}

TEST_CASE("images: a PNG file does not inflate to more than its size implies") {
  Image image;
  const Bytes bomb = png_of(16, 16, 8, 2, 0, Bytes(size_t{1} << 22));
  CHECK(contains(input_error([&] { decode_image(bomb, "x.png", image); }),
                 "x.png: truncated or corrupt image in"));
  Bytes apple = bomb;
  const std::array<uint8_t, 16> chunk{0, 0, 0, 4, 'C', 'g', 'B', 'I'};
  apple.insert(apple.begin() + 8, chunk.begin(), chunk.end());
  CHECK(contains(input_error([&] { decode_image(apple, "x.png", image); }), "IHDR first"));

  constexpr std::array<std::array<int, 4>, 7> passes{
      {{0, 0, 8, 8},
       {4, 0, 8, 8},
       {0, 4, 4, 8},
       {2, 0, 4, 4},
       {0, 2, 2, 4},
       {1, 0, 2, 2},
       {0, 1, 1, 2}}};  // of interlaced files: first column and row, steps
  for (const int bits : {1, 8, 16})
    for (int width = 1; width <= 17; ++width)
      for (int height = 1; height <= 9; ++height) {
        size_t inflated = 0;
        for (const auto& [x, y, across, down] : passes) {
          const int columns = (width - x + across - 1) / across,
                    rows = (height - y + down - 1) / down;
          if (columns > 0 && rows > 0)
            inflated += static_cast<size_t>((1 + (columns * bits + 7) / 8) * rows);
        }
        decode_image(png_of(width, height, bits, 0, 1, Bytes(inflated)), "x.png", image);
        CHECK(image.width == width);
      }
}

TEST_CASE("images: a JPEG of endless scans is refused") {
  const Bytes good = jpeg_file(40, 40);
  const auto at = good.begin() + find_marker(good, 0xDA);
  Bytes bytes(good.begin(), at);
  for (int i = 0; i < 101; ++i) bytes.insert(bytes.end(), at, at + 14);
  Image image;
  CHECK(contains(input_error([&] { decode_image(bytes, "x.jpg", image); }), "at most 100 scans"));
}

TEST_CASE("image folder: ImageNet's layout") {
  const TempFolder folder;
  folder.write("train/dog/b.jpg", jpeg_file(20, 10));
  folder.write("train/dog/a.PNG", png_file(6, 5));
  folder.write("train/dog/.hidden.png", {1});
  folder.write("train/dog/readme.txt", {1});
  folder.write("train/cat/x.jpeg", jpeg_file(8, 8));
  folder.write("train/.cache/x.jpg", {1});
  folder.write("val/dog/c.png", png_file(7, 5));
  const auto train = open_dataset(folder.path(), Split::train);
  CHECK(train->classes() == std::vector<std::string>{"cat", "dog"});
  CHECK(train->size() == 3);
  CHECK(train->info().image_size == 0);
  Image image;
  train->read(1, image);
  CHECK(image.label == 1);
  CHECK(image.width == 6);
  const auto valid = open_dataset(folder.path(), Split::valid);  // has no cat: labels as in train
  REQUIRE(valid->size() == 1);
  CHECK(valid->label(0) == 1);

  folder.write("val/cow/c.png", png_file(7, 5));
  CHECK(contains(input_error([&] { open_dataset(folder.path(), Split::valid); }),
                 "cow: expected a class that is in train/ too"));
  fs::rename(folder.path() / "val", folder.path() / "other");
  CHECK(contains(input_error([&] { open_dataset(folder.path(), Split::valid); }),
                 "expected val/, valid/ or test/"));
}

TEST_CASE("image folder: classes without train/ are split") {
  const TempFolder folder;
  for (int i = 0; i < 21; ++i) folder.write(concat("a/", 100 + i, ".png"), png_file(4 + i, 4));
  for (int i = 0; i < 2; ++i) folder.write(concat("b/", i, ".png"), png_file(50 + i, 4));
  const auto train = open_dataset(folder.path(), Split::train);
  const auto valid = open_dataset(folder.path(), Split::valid);
  CHECK(train->size() == 18 + 1);
  CHECK(valid->size() == 3 + 1);
  std::map<int, int> widths;
  Image image;
  for (const auto* set : {train.get(), valid.get()})
    for (int64_t i = 0; i < set->size(); ++i) {
      set->read(i, image);
      ++widths[image.width];
    }
  CHECK(widths.size() == 23);  // every image once
  CHECK(open_dataset(folder.path(), Split::valid, {.hold_out = 0})->size() == 23);
  folder.write("c/only.png", png_file(4, 4));
  CHECK(contains(input_error([&] { open_dataset(folder.path(), Split::train); }),
                 "c: expected at least 2 images"));
}

TEST_CASE("image folder: broken folders and files") {
  const TempFolder folder;
  const auto open = [&] { return input_error([&] { open_dataset(folder.path(), Split::train); }); };
  CHECK(contains(open(), "expected a folder for each class"));
  for (const char* name : {"caf\xe9", "two\nlines"}) {
    fs::create_directories(folder.path() / "train" / name);
    CHECK(contains(open(), "expected UTF-8 text without control characters"));
    fs::remove(folder.path() / "train" / name);
  }
  folder.write("train/a/1.jpg", jpeg_file(8, 8));
  CHECK(contains(open(), "train: expected at least two classes, found 1"));
  fs::create_directory(folder.path() / "train" / "b");
  CHECK(contains(open(), "b: expected JPEG or PNG files, found none"));
  fs::create_symlink("nowhere.png", folder.path() / "train/b/1.png");
  CHECK(contains(open(), "b/1.png: "));  // a link to nothing is not left out
  fs::remove(folder.path() / "train/b/1.png");
  folder.write("train/b/1.png", {'n', 'o'});
  CHECK(contains(open(), "b/1.png: expected a JPEG or PNG image"));
  folder.write("train/b/1.png", {});
  CHECK(contains(open(), "b/1.png: expected a JPEG or PNG image, found an empty file"));
  folder.write("train/b/1.png", png_claiming(0, 7));
  CHECK(contains(open(), "b/1.png: expected an image with pixels, found 0 x 7"));
  folder.write("train/b/1.png", png_claiming(60000, 60000));
  CHECK(contains(open(), "b/1.png: expected at most 16384 pixels a side, found 60000 x 60000"));

  Bytes truncated = jpeg_file(64, 64);
  truncated.resize(truncated.size() - 20);
  folder.write("train/b/1.png", truncated);  // the header is good: the file is named when read
  const auto train = open_dataset(folder.path(), Split::train);
  Image image;
  train->read(0, image);
  CHECK(contains(input_error([&] { train->read(1, image); }), "b/1.png: truncated or corrupt"));
  fs::remove(folder.path() / "train" / "b" / "1.png");
  CHECK(contains(input_error([&] { train->read(1, image); }), "b/1.png: cannot open"));
}

TEST_CASE("image folder: classes with the names of CIFAR's files") {
  const TempFolder folder;
  for (const char* name : {"meta/1.jpg", "meta/2.jpg", "data_batch_1/1.jpg", "data_batch_1/2.jpg"})
    folder.write(name, jpeg_file(8, 8));
  CHECK(open_dataset(folder.path(), Split::train)->classes() ==
        std::vector<std::string>{"data_batch_1", "meta"});
}

TEST_CASE("image folder: real photos") {
  const fs::path folder = find_data("clothing-10-mini");
  if (folder.empty()) return;
  const auto train = open_dataset(folder, Split::train), valid = open_dataset(folder, Split::valid);
  REQUIRE(train->size() == 240);
  REQUIRE(valid->size() == 80);
  CHECK(train->classes()[9] == "t-shirt");
  CHECK(valid->classes() == train->classes());
  Image image;
  for (int64_t i = 0; i < valid->size(); ++i) {
    valid->read(i, image);
    CHECK(image.label == i / 8);
    CHECK(image.pixels.size() == static_cast<size_t>(3 * image.width * image.height));
  }
}

}  // namespace
}  // namespace heddle
