// Resizing a window of an image: bilinear, with a filter that widens with the reduction so that
// fine patterns do not alias (what Pillow and torchvision with antialias=True do).
#pragma once

#include "data/image.h"

namespace heddle {

// A window of an image in pixels; it may begin and end between two of them.
struct Window {
  float x, y, width, height;
};

// Writes the window, resized to size x size, to `out`: float (3, size, size) in [0, 255]. Columns
// come mirrored with `flip`. The window lies inside the image.
void resample(const Image& image, const Window& window, int size, bool flip, float* out);

// The same with Pillow's rounding, which torchvision has too: across first, then down, both to
// bytes.
void resample_bytes(const Image& image, const Window& window, int size, float* out);

}  // namespace heddle
