// Pixels as a PNG file.
//
//   write_file_atomically("grey.png", encode_png(pixels, 64, 32, 1));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

// Returns the bytes of a PNG file. `pixels`: (height, width, channels), rows from the top; channels
// 1 is grey, 3 is RGB. Throws Error.
std::string encode_png(const std::vector<uint8_t>& pixels, int64_t width, int64_t height,
                       int channels);

}  // namespace heddle
