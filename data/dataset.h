// Sets of labelled images behind one interface, and the function that finds out which one a path
// holds. Every file is checked on opening; an error names the file, what was expected and what was
// found.
//
//   auto train = open_dataset("cifar-10-batches-bin", Split::train);
//   Image image;
//   train->read(0, image);   // 32 x 32, RGB, image.label = 6
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/image.h"

namespace heddle {

enum class Split { train, valid };

const char* split_name(Split split);

// What is subtracted from and divided into the channels of an image scaled to [0, 1].
struct Normalization {
  std::array<float, 3> mean, std;
};

// What is known of a set without reading an image.
struct DatasetInfo {
  std::string name;                  // "cifar-10", "shapes", or the name of the folder
  std::vector<std::string> classes;  // names, by label
  int image_size = 0;                // every image is so many pixels square; 0: sizes differ
  Normalization normalization{};
};

class ImageDataset {
 public:
  virtual ~ImageDataset() = default;

  const DatasetInfo& info() const { return info_; }
  const std::vector<std::string>& classes() const { return info_.classes; }
  int class_count() const { return static_cast<int>(info_.classes.size()); }

  virtual int64_t size() const = 0;  // images
  virtual int label(int64_t index) const = 0;
  // Decodes image `index` of [0, size()). Threads may call it at once, each with its own `out`,
  // whose memory is used again. Throws InputError for a file that does not decode.
  virtual void read(int64_t index, Image& out) const = 0;

 protected:
  explicit ImageDataset(DatasetInfo info) : info_(std::move(info)) {}

 private:
  DatasetInfo info_;
};

struct DatasetOptions {
  int image_size = 32;          // of rendered shapes: pixels a side
  int64_t train_images = 5000;  // of rendered shapes
  int64_t valid_images = 1000;
  uint64_t seed = 0;  // of rendered shapes
  int hold_out = 10;  // of a folder without train and val: every so-many-th image is for validation
};

// Opens a set; an empty path means the rendered shapes. Otherwise the path is a folder with
//   data_batch_1.bin … data_batch_5.bin, test_batch.bin            CIFAR-10, binary version
//   train.bin, test.bin                                            CIFAR-100, binary version
//   train/<class>/*.jpg|jpeg|png and val/, valid/ or test/<class>/*    the layout of ImageNet
//   <class>/*.jpg|jpeg|png                                         divided by `hold_out`
// Throws InputError for a path that is none of these or holds a broken file.
std::unique_ptr<ImageDataset> open_dataset(const std::filesystem::path& path, Split split,
                                           const DatasetOptions& options = {});

}  // namespace heddle
