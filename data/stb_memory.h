// stb_image's memory: zeroed, so that pixels missing from a broken file are the same in every run,
// and limited, so that no stream inflates beyond a small multiple of what its header promises.
#pragma once

#include <cstddef>

namespace heddle {

// The largest size in bytes that a buffer may grow to on this thread. Buffers whose size is in a
// header are not counted: image.cpp limits those.
extern thread_local size_t stb_growth_limit;

}  // namespace heddle
