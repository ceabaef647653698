// CIFAR-10 and CIFAR-100 in their official binary version (Krizhevsky 2009,
// https://www.cs.toronto.edu/~kriz/cifar.html): records of one label byte (CIFAR-100: coarse, then
// fine) and 32 x 32 red, green and blue bytes. Pixels are read when they are wanted; all labels
// are checked on opening.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace heddle {

// Whether at least one of the set's files is in the folder.
bool holds_cifar10(const std::filesystem::path& folder);
bool holds_cifar100(const std::filesystem::path& folder);

// Split::valid is the test set. Throws InputError with file and byte offset for a file that is
// missing, is no whole number of records, or holds a label out of range. Other files are ignored.
std::unique_ptr<ImageDataset> open_cifar10(const std::filesystem::path& folder, Split split);
std::unique_ptr<ImageDataset> open_cifar100(const std::filesystem::path& folder, Split split);

}  // namespace heddle
