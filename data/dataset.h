// ImageDataset: a set of labelled images with a common interface; open_dataset() recognises which
// one a path holds. Files are checked on opening; an error names the file, what was expected and
// what was found.
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

#include "core/scalar.h"
#include "data/image.h"

namespace heddle {

enum class Split { train, valid };

const char* split_name(Split split);  // "train", "valid"

// Mean and standard deviation of each channel of images scaled to [0, 1]: x -> (x - mean) / std.
struct Normalization {
  std::array<float, 3> mean, std;
};
// torchvision's for ImageNet; folders of images are normalised by it.
constexpr Normalization kImageNet{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

// A set's properties that are known without reading an image.
struct DatasetInfo {
  std::string name;                  // "cifar-10", "shapes", or the name of the folder
  std::vector<std::string> classes;  // names, indexed by label
  int image_size = 0;                // pixels per side of every image; 0: sizes differ
  Normalization normalization{};
};

class ImageDataset {
 public:
  virtual ~ImageDataset() = default;

  const DatasetInfo& info() const { return info_; }
  const std::vector<std::string>& classes() const { return info_.classes; }
  int class_count() const { return to_int(info_.classes.size()); }

  virtual int64_t size() const = 0;            // images
  virtual int label(int64_t index) const = 0;  // in [0, class_count())
  // Decodes image `index`, in [0, size()), into `out`, reusing its memory. Thread-safe if each
  // thread has its own `out`. Throws InputError for an index out of range and a file that does not
  // decode.
  virtual void read(int64_t index, Image& out) const = 0;

 protected:
  explicit ImageDataset(DatasetInfo info) : info_(std::move(info)) {}

 private:
  DatasetInfo info_;
};

struct DatasetOptions {
  int image_size = 32;          // rendered shapes: pixels per side
  int64_t train_images = 5000;  // rendered shapes
  int64_t valid_images = 1000;  // rendered shapes
  uint64_t seed = 0;            // rendered shapes
  bool upright = false;         // rendered shapes: bright on black, in the middle, hardly turned
  int hold_out = 10;  // folder without train/ and val/: one image in `hold_out` is for validation
};

// Opens a set; an empty path means the rendered shapes. Otherwise the path is a folder with
//   data_batch_1.bin … data_batch_5.bin, test_batch.bin            CIFAR-10, binary version
//   train.bin, test.bin                                            CIFAR-100, binary version
//   train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-…       MNIST, Fashion-MNIST
//   train/<class>/*.jpg|jpeg|png and val/, valid/ or test/<class>/*    the layout of ImageNet
//   <class>/*.jpg|jpeg|png                                         divided by `hold_out`
// Throws InputError for a path that is none of these and for a broken file.
std::unique_ptr<ImageDataset> open_dataset(const std::filesystem::path& path, Split split,
                                           const DatasetOptions& options = {});

}  // namespace heddle
