// A hash that is the same on every machine and never changes: replicas are compared by it, and
// files store it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/files.h"

namespace heddle {

// Returns XXH64 of `size` bytes, with seed 0.
uint64_t hash_bytes(const void* bytes, size_t size);
// Returns hash_bytes() of a file's content. Throws as InputFile::read does.
uint64_t hash_file(const InputFile& file);

}  // namespace heddle
