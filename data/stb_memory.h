// The memory that stb_image works in: zeros at first, so that what a broken file leaves out is the
// same in every run, and limited, so that no stream inflates beyond what its header promises.
#pragma once

#include <cstddef>

namespace heddle {

// Up to so many bytes a buffer may grow on this thread. Buffers of the size that a header implies
// do not count; image.cpp limits that size.
extern thread_local size_t stb_growth_limit;

}  // namespace heddle
