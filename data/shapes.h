// Rendered shapes: the data set that needs no files. Ten classes of figures drawn at any size, in a
// random place, size, rotation and bright colour before a darker, noisy colour gradient. An image
// is a function of (seed, split, index), so nothing is stored; label = index mod 10.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace heddle {

// `options.train_images` or `options.valid_images` pictures of `options.image_size` pixels a side
// (8 to 4096). Training and validation share no random numbers. Throws InputError for other sizes
// and for no images.
std::unique_ptr<ImageDataset> render_shapes(Split split, const DatasetOptions& options = {});

}  // namespace heddle
