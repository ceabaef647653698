// A folder of JPEG and PNG files with one sub-folder per class, ImageNet's layout. Classes are the
// sub-folders in sorted order; hidden files and other extensions are ignored.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace heddle {

// Opens train/<class>/* or, for validation, the first of val/, valid/ and test/. A folder without
// train/ contains the classes itself, and every hold_out-th image of a class is for validation (0:
// both splits have all images). Checks the headers of up to 50,000 files now, those of others when
// they are read. Throws InputError for a folder without classes, a class without images or missing
// from train/, and a file that is not an image.
std::unique_ptr<ImageDataset> open_image_folder(const std::filesystem::path& folder, Split split,
                                                int hold_out = 10);

}  // namespace heddle
