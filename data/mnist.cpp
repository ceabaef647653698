#include "data/mnist.h"

#include <array>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/scalar.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int kClasses = 10;
constexpr int64_t kMaxSide = 4096;

// Returns the file "train-images-idx3-ubyte" or "train-images.idx3-ubyte"; the first if neither
// exists.
fs::path file_of(const fs::path& folder, const std::string& what, const std::string& format) {
  std::error_code error;
  const fs::path dotted = folder / concat(what, ".", format);
  return fs::exists(dotted, error) ? dotted : folder / concat(what, "-", format);
}

fs::path images_of(const fs::path& folder, Split split) {
  return file_of(folder, split == Split::train ? "train-images" : "t10k-images", "idx3-ubyte");
}

fs::path labels_of(const fs::path& folder, Split split) {
  return file_of(folder, split == Split::train ? "train-labels" : "t10k-labels", "idx1-ubyte");
}

// An IDX file of bytes with so many dimensions.
template <size_t kDims>
struct IdxFile {
  InputFile file;
  std::array<int64_t, kDims> dims{};
  static constexpr int64_t kHeader = 4 + 4 * int64_t{kDims};

  explicit IdxFile(const fs::path& path) : file(path.string()) {
    std::array<uint8_t, kHeader> header{};
    check(file.size() >= kHeader, path.string(), ": expected at least ", kHeader, " bytes, found ",
          file.size());
    file.read(0, std::as_writable_bytes(std::span(header)));
    check(header[0] == 0 && header[1] == 0 && header[2] == 8 && header[3] == kDims, path.string(),
          ": expected an IDX file of bytes with ", kDims, " dimensions, which begins with 0 0 8 ",
          kDims, ", found ", int{header[0]}, " ", int{header[1]}, " ", int{header[2]}, " ",
          int{header[3]},
          header[0] == 0x1f && header[1] == 0x8b ? " (./run unpack_data unpacks it)" : "");
    int64_t bytes = kHeader, count = 1;
    for (size_t d = 0; d < kDims; ++d) {
      for (size_t i = 0; i < 4; ++i) dims[d] = dims[d] * 256 + header[4 + 4 * d + i];
      check(dims[d] > 0 && (d == 0 || dims[d] <= kMaxSide), path.string(), ": offset ", 4 + 4 * d,
            d == 0 ? ": expected at least one, found " : ": expected 1 to 4096, found ", dims[d]);
      count *= dims[d];
    }
    bytes += count;
    check(file.size() == bytes, path.string(), ": expected ", bytes, " bytes, found ", file.size());
  }
};

class Mnist final : public ImageDataset {
 public:
  Mnist(const fs::path& folder, Split split, IdxFile<3> images)
      : ImageDataset(info_of(images)), images_(std::move(images)) {
    const std::string name = labels_of(folder, split).string();
    const IdxFile<1> file{name};
    check(file.dims[0] == images_.dims[0], name, ": expected ", images_.dims[0],
          " labels, one for each image, found ", file.dims[0]);
    labels_.resize(to_size(file.dims[0]));
    file.file.read(IdxFile<1>::kHeader, std::as_writable_bytes(std::span(labels_)));
    for (size_t i = 0; i < labels_.size(); ++i)
      check(labels_[i] < kClasses, name, ": expected a label from 0 to ", kClasses - 1,
            " at offset ", IdxFile<1>::kHeader + to_int64(i), ", found ", int{labels_[i]});
  }

  int64_t size() const override { return std::ssize(labels_); }
  int label(int64_t index) const override { return labels_[checked(index)]; }

  void read(int64_t index, Image& out) const override {
    out.label = label(index);
    const int64_t side = info().image_size, pixels = side * side;
    out.width = out.height = info().image_size;
    out.pixels.resize(to_size(3 * pixels));
    // The grey values are read into the last third, which is overwritten last.
    const std::span<uint8_t> grey(out.pixels.data() + 2 * pixels, to_size(pixels));
    images_.file.read(IdxFile<3>::kHeader + index * pixels, std::as_writable_bytes(grey));
    for (int64_t i = 0; i < pixels; ++i)
      for (int c = 0; c < 3; ++c) out.pixels[to_size(3 * i + c)] = grey[to_size(i)];
  }

 private:
  static DatasetInfo info_of(const IdxFile<3>& images) {
    check(images.dims[1] == images.dims[2], images.file.path(), ": expected square images, found ",
          images.dims[1], " x ", images.dims[2]);
    DatasetInfo info{"mnist",
                     {},
                     to_int(images.dims[1]),
                     {{0.1307f, 0.1307f, 0.1307f}, {0.3081f, 0.3081f, 0.3081f}}};
    for (int i = 0; i < kClasses; ++i) info.classes.push_back(std::to_string(i));
    return info;
  }

  size_t checked(int64_t index) const {
    check(index >= 0 && index < size(), "mnist: expected an image from 0 to ", size() - 1,
          ", found ", index);
    return to_size(index);
  }

  IdxFile<3> images_;
  std::vector<uint8_t> labels_;
};

}  // namespace

bool holds_mnist(const fs::path& folder) {
  std::error_code error;
  for (const Split split : {Split::train, Split::valid})
    if (fs::exists(images_of(folder, split), error) || fs::exists(labels_of(folder, split), error))
      return true;
  return false;
}

std::unique_ptr<ImageDataset> open_mnist(const fs::path& folder, Split split) {
  return std::make_unique<Mnist>(folder, split, IdxFile<3>(images_of(folder, split)));
}

}  // namespace heddle
