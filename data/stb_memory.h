// stb_image's memory: zeroed, so that pixels missing from a broken file are the same in every run,
// and limited, so that no stream inflates beyond the size that its header promises.
#pragma once

#include <cstddef>

namespace heddle {

// The most bytes that a buffer may grow to on this thread. Does not apply to buffers of the size in
// a header, which image.cpp limits.
extern thread_local size_t stb_growth_limit;

}  // namespace heddle
