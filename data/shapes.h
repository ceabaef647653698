// Rendered shapes: a data set that needs no files. Ten classes of figures of random position, size,
// rotation and bright colour on a darker, noisy colour gradient. An image is a function of (seed,
// split, index), so nothing is stored; label = index mod 10.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace heddle {

// Returns a set of options.train_images or options.valid_images pictures of options.image_size
// pixels per side (8 to 4096). Training and validation share no random numbers. Throws InputError
// for another size and for a count below 1.
std::unique_ptr<ImageDataset> render_shapes(Split split, const DatasetOptions& options = {});

}  // namespace heddle
