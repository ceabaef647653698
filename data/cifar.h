// CIFAR-10 and CIFAR-100 in their official binary version (Krizhevsky 2009,
// https://www.cs.toronto.edu/~kriz/cifar.html): records of one label byte (CIFAR-100: coarse, then
// fine), then 32 x 32 red, green and blue bytes. Labels are read and checked on opening; pixels are
// read from the file on demand.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace heddle {

// Returns whether the folder has at least one of the set's files.
bool holds_cifar10(const std::filesystem::path& folder);
bool holds_cifar100(const std::filesystem::path& folder);

// Opens the training set or, for Split::valid, the test set. Throws InputError with file and byte
// offset for a file that is missing, is not a whole number of records, or has a label out of range.
// Ignores other files.
std::unique_ptr<ImageDataset> open_cifar10(const std::filesystem::path& folder, Split split);
std::unique_ptr<ImageDataset> open_cifar100(const std::filesystem::path& folder, Split split);

}  // namespace heddle
