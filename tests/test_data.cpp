// Data sets: CIFAR files, rendered shapes, and paths without a data set. Pictures are in
// test_images.cpp.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <array>
#include <cmath>

#include "data/cifar.h"
#include "data/dataset.h"
#include "data/image.h"
#include "data/shapes.h"
#include "tests/data_files.h"

namespace heddle {
namespace {

// ------------------------------------------------------------------------------------------ CIFAR

constexpr size_t kRecord = 3073;

// Records whose label is their number mod 10 and whose bytes encode channel, row and column.
Bytes cifar_file(int records, int label_bytes = 1) {
  Bytes bytes;
  for (int r = 0; r < records; ++r) {
    for (int i = 0; i < label_bytes; ++i) bytes.push_back(static_cast<uint8_t>(r % 10 + i));
    for (int i = 0; i < 3072; ++i) bytes.push_back(static_cast<uint8_t>(i * 7 + i / 1024 + r));
  }
  return bytes;
}

void write_cifar10(const TempFolder& folder, int records = 20) {
  for (int i = 1; i <= 5; ++i)
    folder.write(concat("data_batch_", i, ".bin"), cifar_file(records + i));
  folder.write("test_batch.bin", cifar_file(records));
}

TEST_CASE("cifar-10: records become images") {
  const TempFolder folder;
  write_cifar10(folder);
  folder.write("notes.txt", {1, 2, 3});
  const auto train = open_dataset(folder.path(), Split::train);
  CHECK(train->info().name == "cifar-10");
  CHECK(train->size() == 5 * 20 + 15);
  CHECK(train->info().image_size == 32);
  CHECK(train->class_count() == 10);
  CHECK(train->classes()[9] == "truck");
  CHECK(open_dataset(folder.path(), Split::valid)->size() == 20);
  Image image;
  train->read(21 + 4, image);  // record 4 of the second file
  CHECK(image.label == 4);
  CHECK(train->label(25) == 4);
  CHECK(image.width == 32);
  CHECK(image.height == 32);
  const Bytes file = cifar_file(22);
  bool equal = true;
  for (size_t pixel = 0; pixel < 1024; ++pixel)
    for (size_t c = 0; c < 3; ++c)
      equal &= image.pixels[3 * pixel + c] == file[4 * kRecord + 1 + c * 1024 + pixel];
  CHECK(equal);
  CHECK(contains(input_error([&] { train->read(115, image); }), "found 115"));
}

TEST_CASE("cifar-10: class names come from the file") {
  const TempFolder folder;
  write_cifar10(folder);
  const std::string names = "a\nb\nc\nd\ne\nf\ng\nh\ni\r\nj\n\n";
  folder.write("batches.meta.txt", Bytes(names.begin(), names.end()));
  CHECK(open_cifar10(folder.path(), Split::train)->classes()[8] == "i");
  folder.write("batches.meta.txt", {'x', '\n'});
  const auto open = [&] { open_cifar10(folder.path(), Split::train); };
  CHECK(contains(input_error(open), "expected 10 class names, found 1"));
  folder.write("batches.meta.txt", {'c', 'a', 'f', 0xE9, '\n'});  // as Latin-1 has it
  CHECK(contains(input_error(open), "batches.meta.txt: line 1: expected UTF-8 text"));
}

TEST_CASE("cifar-10: broken files are named with their offset") {
  const TempFolder folder;
  write_cifar10(folder);
  const auto open = [&] { open_dataset(folder.path(), Split::train); };
  Bytes bytes = cifar_file(20);

  bytes.resize(bytes.size() - 73);
  folder.write("data_batch_3.bin", bytes);
  CHECK(contains(input_error(open), "data_batch_3.bin: expected whole records of 3073 bytes"));
  CHECK(contains(input_error(open), "offset 58387"));
  CHECK(contains(input_error(open), "found 3000 bytes"));

  bytes = cifar_file(20);
  bytes.push_back(0);
  folder.write("data_batch_3.bin", bytes);
  CHECK(contains(input_error(open), "found 1 bytes in the last one, at offset 61460 of 61461"));

  bytes = cifar_file(20);
  bytes[7 * kRecord] = 10;
  folder.write("data_batch_3.bin", bytes);
  CHECK(contains(input_error(open),
                 "data_batch_3.bin: expected a label from 0 to 9 at offset 21511, found 10"));

  folder.write("data_batch_3.bin", {});
  CHECK(contains(input_error(open),
                 "data_batch_3.bin: expected records of 3073 bytes, found an empty"));

  fs::remove(folder.path() / "data_batch_3.bin");
  fs::remove(folder.path() / "data_batch_5.bin");
  CHECK(contains(input_error(open), "missing: data_batch_3.bin, data_batch_5.bin"));

  fs::create_directory(folder.path() / "data_batch_3.bin");
  folder.write("data_batch_5.bin", cifar_file(1));
  CHECK(contains(input_error(open), "data_batch_3.bin: expected a file, found a folder"));
}

TEST_CASE("a file that is truncated while it is read is an error that names it") {
  const TempFolder folder;
  write_cifar10(folder);
  const auto train = open_dataset(folder.path(), Split::train);
  const fs::path file = folder.path() / "data_batch_1.bin";
  fs::resize_file(file, 4096);
  Image image;
  train->read(0, image);
  CHECK(image.label == 0);
  for (const int64_t index : {1, 20})
    CHECK(contains(input_error([&] { train->read(index, image); }),
                   "data_batch_1.bin: expected 64533 bytes, as when it was opened, found"));
  train->read(21, image);  // of the next file
}

TEST_CASE("a pipe in place of a data file is refused, not waited for") {
  const TempFolder folder;
  write_cifar10(folder);
  const auto make = [&](const char* name) {
    fs::remove(folder.path() / name);
    REQUIRE(::mkfifo((folder.path() / name).c_str(), 0600) == 0);
  };
  const auto open = [&] { open_dataset(folder.path(), Split::train); };
  make("batches.meta.txt");
  CHECK(contains(input_error(open), "batches.meta.txt: expected a regular file, found a device"));
  make("data_batch_2.bin");
  fs::remove(folder.path() / "batches.meta.txt");
  CHECK(contains(input_error(open), "data_batch_2.bin: expected a regular file, found a device"));
  make("x.png");
  Image image;
  CHECK(contains(input_error([&] { read_image_file(folder.path() / "x.png", image); }),
                 "x.png: expected a regular file, found a device"));
}

TEST_CASE("cifar-100: the fine label counts") {
  const TempFolder folder;
  folder.write("train.bin", cifar_file(30, 2));
  folder.write("test.bin", cifar_file(10, 2));
  const auto train = open_dataset(folder.path(), Split::train);
  CHECK(train->info().name == "cifar-100");
  CHECK(train->size() == 30);
  CHECK(train->class_count() == 100);
  CHECK(train->classes()[3] == "class 3");
  Image image;
  train->read(13, image);
  CHECK(image.label == 4);
  CHECK(image.pixels[1] == static_cast<uint8_t>(1024 * 7 + 1 + 13));

  Bytes bytes = cifar_file(10, 2);
  bytes[3074] = 20;
  folder.write("test.bin", bytes);
  const auto open = [&] { open_dataset(folder.path(), Split::valid); };
  CHECK(contains(input_error(open),
                 "test.bin: expected a label from 0 to 19 at offset 3074, found 20"));
  bytes[3074] = 19;
  bytes[3075] = 100;
  folder.write("test.bin", bytes);
  CHECK(contains(input_error(open), "expected a label from 0 to 99 at offset 3075, found 100"));
}

TEST_CASE("cifar-10: the real files") {
  const fs::path folder = find_data("cifar-10-batches-bin");
  if (folder.empty()) return;
  const auto train = open_dataset(folder, Split::train);
  const auto valid = open_dataset(folder, Split::valid);
  REQUIRE(train->size() == 50000);
  REQUIRE(valid->size() == 10000);
  CHECK(train->classes()[0] == "airplane");
  const int first_train[] = {6, 9, 9, 4, 1, 1}, first_valid[] = {3, 8, 8, 0, 6, 6};
  for (int i = 0; i < 6; ++i) CHECK(train->label(i) == first_train[i]);
  for (int i = 0; i < 6; ++i) CHECK(valid->label(i) == first_valid[i]);
  std::vector<int> batch1(10), all(10), test(10);
  for (int i = 0; i < 10000; ++i) ++batch1[static_cast<size_t>(train->label(i))];
  for (int i = 0; i < 50000; ++i) ++all[static_cast<size_t>(train->label(i))];
  for (int i = 0; i < 10000; ++i) ++test[static_cast<size_t>(valid->label(i))];
  CHECK(batch1 == std::vector<int>{1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981});
  CHECK(all == std::vector<int>(10, 5000));
  CHECK(test == std::vector<int>(10, 1000));

  Image image;
  train->read(0, image);
  CHECK(image.label == 6);
  CHECK(image.pixels[0] == 59);
  CHECK(image.pixels[3] == 43);
  CHECK(image.pixels[6] == 50);
  std::vector<int64_t> histogram(3 * 256);
  for (int i = 0; i < 50000; ++i) {
    train->read(i, image);
    for (size_t k = 0; k < image.pixels.size(); k += 3)
      for (size_t c = 0; c < 3; ++c) ++histogram[c * 256 + image.pixels[k + c]];
  }
  const double means[] = {0.49139968, 0.48215841, 0.44653091};
  const double deviations[] = {0.24703223, 0.24348513, 0.26158784};
  for (size_t c = 0; c < 3; ++c) {
    double sum = 0, squares = 0;
    for (size_t v = 0; v < 256; ++v) {
      const double value = static_cast<double>(v) / 255;
      const auto count = static_cast<double>(histogram[c * 256 + v]);
      sum += value * count;
      squares += value * value * count;
    }
    const double mean = sum / (50000 * 1024);
    CHECK(std::abs(mean - means[c]) < 1e-7);
    CHECK(std::abs(std::sqrt(squares / (50000 * 1024) - mean * mean) - deviations[c]) < 1e-7);
  }
}

// ------------------------------------------------------------------------------------------ MNIST

// An IDX file: the sizes of its dimensions, then bytes.
Bytes idx_file(const std::vector<uint32_t>& dims, size_t bytes, uint8_t first = 0) {
  Bytes file = {0, 0, 8, static_cast<uint8_t>(dims.size())};
  for (const uint32_t n : dims)
    for (const int shift : {24, 16, 8, 0}) file.push_back(static_cast<uint8_t>(n >> shift));
  for (size_t i = 0; i < bytes; ++i) file.push_back(static_cast<uint8_t>(first + i));
  return file;
}

TEST_CASE("mnist: grey bytes become images, in both spellings of the files") {
  for (const char* dash : {"-", "."}) {
    const TempFolder folder;
    const auto write = [&](const char* what, const Bytes& file) {
      folder.write(concat(what, dash, file[3] == 3 ? "idx3-ubyte" : "idx1-ubyte"), file);
    };
    write("train-images", idx_file({5, 6, 6}, 180));
    write("train-labels", idx_file({5}, 5, 3));
    write("t10k-images", idx_file({2, 6, 6}, 72, 9));
    write("t10k-labels", idx_file({2}, 2));
    const auto train = open_dataset(folder.path(), Split::train);
    CHECK(train->info().name == "mnist");
    CHECK(train->info().image_size == 6);
    CHECK(train->size() == 5);
    CHECK(train->class_count() == 10);
    CHECK(train->classes()[7] == "7");
    CHECK(train->label(4) == 7);
    CHECK(open_dataset(folder.path(), Split::valid)->size() == 2);
    Image image;
    train->read(3, image);
    CHECK(image.label == 6);
    CHECK(image.width == 6);
    CHECK(image.height == 6);
    Bytes expected;
    for (int i = 0; i < 36; ++i)
      for (int c = 0; c < 3; ++c) expected.push_back(static_cast<uint8_t>(3 * 36 + i));
    CHECK(image.pixels == expected);
    CHECK(contains(input_error([&] { train->read(5, image); }), "found 5"));
    CHECK(contains(input_error([&] { train->label(-1); }), "found -1"));
  }
}

TEST_CASE("mnist: broken files are named") {
  const Bytes images = idx_file({2, 4, 4}, 32), labels = idx_file({2}, 2);
  const auto error = [](const Bytes& pixels, const Bytes& names) {
    const TempFolder folder;
    folder.write("train-images-idx3-ubyte", pixels);
    if (!names.empty()) folder.write("train-labels-idx1-ubyte", names);
    return input_error([&] { open_dataset(folder.path(), Split::train); });
  };
  CHECK(contains(error(images, {}), "train-labels-idx1-ubyte"));
  CHECK(contains(error({0, 0, 8}, labels), "train-images-idx3-ubyte: expected at least 16 bytes"));
  CHECK(contains(error(labels, labels), "train-images-idx3-ubyte: expected at least 16"));
  CHECK(contains(error(images, images), "train-labels-idx1-ubyte: expected an IDX file"));
  CHECK(contains(error(idx_file({2, 4, 4}, 31), labels), "expected 48 bytes, found 47"));
  CHECK(contains(error(idx_file({2, 4, 4}, 33), labels), "expected 48 bytes, found 49"));
  CHECK(contains(error(idx_file({2, 4, 8}, 64), labels),
                 "train-images-idx3-ubyte: expected square images, found 4 x 8"));
  CHECK(contains(error(idx_file({0, 4, 4}, 0), labels), "found 0"));
  CHECK(contains(error(idx_file({4294967295, 4096, 4096}, 8), labels), "expected 72057594"));
  CHECK(contains(error(idx_file({2, 65536, 65536}, 8), labels), "found 65536"));
  CHECK(contains(error(images, idx_file({3}, 3)), "expected 2 labels"));
  CHECK(contains(error(images, idx_file({2}, 2, 9)), "at offset 9, found 10"));
  Bytes packed = images;
  packed[0] = 0x1f, packed[1] = 0x8b;
  CHECK(contains(error(packed, labels), "unpack_data"));
  const TempFolder folder;
  folder.write("train-images-idx3-ubyte.gz", {1});
  CHECK(contains(input_error([&] { open_dataset(folder.path(), Split::train); }), "unpack_data"));
}

TEST_CASE("open_dataset: paths without a data set") {
  const TempFolder folder;
  const auto open = [](const fs::path& path) {
    return input_error([&] { open_dataset(path, Split::train); });
  };
  CHECK(contains(open(folder.path() / "none"), "none: expected a data set, found no such path"));
  CHECK(contains(open(folder.write("a.bin", {1})), "a.bin: expected a folder"));
  folder.write("data_batch_1", {1});
  CHECK(contains(open(folder.path()), "found the Python version"));
  const TempFolder parent;
  const std::string inner = (parent.path() / "cifar-100-binary").string();
  std::filesystem::create_directory(inner);
  CHECK(contains(open(parent.path()), "found a folder that contains one: use " + inner));
}

// ------------------------------------------------------------------------------------------ shapes

TEST_CASE("shapes: deterministic, balanced, and different in each split") {
  const DatasetOptions options{.train_images = 200, .valid_images = 100, .seed = 3};
  const auto train = open_dataset("", Split::train, options);
  const auto again = render_shapes(Split::train, options);
  const auto valid = render_shapes(Split::valid, options);
  const auto other = render_shapes(Split::train, {.train_images = 200, .seed = 4});
  REQUIRE(train->size() == 200);
  REQUIRE(valid->size() == 100);
  std::vector<int> labels(10);
  Image a, b;
  for (int64_t i = 0; i < 200; ++i) {
    train->read(i, a);
    ++labels[static_cast<size_t>(a.label)];
    CHECK(a.label == train->label(i));
    again->read(199 - i, b);
    again->read(i, b);
    CHECK(a.pixels == b.pixels);
    other->read(i, b);
    CHECK(a.pixels != b.pixels);
    if (i >= 100) continue;
    valid->read(i, b);
    CHECK(a.pixels != b.pixels);
  }
  CHECK(labels == std::vector<int>(10, 20));
}

TEST_CASE("shapes: any size, impossible sizes") {
  for (const int size : {8, 33, 224}) {
    Image image;
    render_shapes(Split::train, {.image_size = size})->read(7, image);
    CHECK(image.width == size);
    CHECK(image.pixels.size() == static_cast<size_t>(3 * size * size));
  }
  CHECK(contains(input_error([] { render_shapes(Split::train, {.image_size = 7}); }), "found 7"));
  CHECK(contains(input_error([] { render_shapes(Split::valid, {.valid_images = 0}); }), "found 0"));
}

}  // namespace
}  // namespace heddle
