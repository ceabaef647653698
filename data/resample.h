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

// A square of the pixels that an image has after it was resized.
struct PixelWindow {
  int64_t resized_width, resized_height, left, top;
};

// Writes `size` x `size` pixels of the resized image to `out`, as above: whole numbers, bit for bit
// those of Pillow's Image.resize(BILINEAR) and crop (across first, then down, both to bytes).
void resample_bytes(const Image& image, const PixelWindow& window, int size, float* out);

}  // namespace heddle
