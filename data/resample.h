// Resampling: resizes a window of an image bilinearly, with a filter that widens with the reduction
// so that fine patterns do not alias (as Pillow does, and torchvision with antialias=True).
// Thread-safe.
#pragma once

#include "data/image.h"

namespace heddle {

// A window of an image in pixels, with fractional position and size.
struct Window {
  float x, y, width, height;
};

// Resizes the window, which must lie inside the image, to `out`: float (3, size, size) in [0, 255].
// `flip` mirrors the columns.
void resample(const Image& image, const Window& window, int size, bool flip, float* out);

// The corner of a square window of an image that has been resized to resized_width x
// resized_height.
struct PixelWindow {
  int64_t resized_width, resized_height, left, top;
};

// Writes the window of size x size pixels to `out`, float (3, size, size): whole numbers, bit for
// bit those of Pillow's Image.resize(BILINEAR) and crop (rows first, then columns, both rounded to
// bytes).
void resample_bytes(const Image& image, const PixelWindow& window, int size, float* out);

}  // namespace heddle
