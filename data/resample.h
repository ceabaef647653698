// Resampling: resizes a part of an image bilinearly, with a filter that widens with the reduction
// so that fine patterns do not alias (as Pillow does, and torchvision with antialias=True).
// Thread-safe.
#pragma once

#include <cstdint>

#include "data/image.h"

namespace heddle {

// A part of an image, in pixels; not empty.
struct Box {
  int left, top, width, height;
};

// The corner of a square window of a picture of resized_width x resized_height pixels.
struct PixelWindow {
  int64_t resized_width, resized_height, left, top;
};

// Resizes the box of the image and writes the window's size x size pixels to `out`, bytes (size,
// size, 3). Bit for bit Pillow's Image.crop, resize(BILINEAR) and crop: rows first, then columns,
// both rounded to bytes. Pixels outside the box have no influence.
void resample(const Image& image, const Box& box, const PixelWindow& window, int size,
              uint8_t* out);

}  // namespace heddle
