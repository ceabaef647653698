// MNIST and sets in its format, such as Fashion-MNIST (LeCun, Cortes and Burges; the format "IDX"):
// files of big-endian sizes, then one byte for each grey pixel or label. Grey becomes red, green
// and blue of equal value. Labels are read and checked on opening; pixels are read on demand.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace heddle {

// Returns whether the folder has at least one of the set's files: train-images-idx3-ubyte,
// train-labels-idx1-ubyte, t10k-…, or the same with a dot before idx.
bool holds_mnist(const std::filesystem::path& folder);

// Opens the training set or, for Split::valid, the test set: ten classes, square images. Throws
// InputError with file and byte offset for a file that is missing, has another format or length, or
// a label out of range.
std::unique_ptr<ImageDataset> open_mnist(const std::filesystem::path& folder, Split split);

}  // namespace heddle
