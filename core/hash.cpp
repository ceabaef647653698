#include "core/hash.h"

#define XXH_INLINE_ALL
#define XXH_NO_XXH3
#include <xxhash.h>

namespace heddle {

uint64_t hash_bytes(const void* bytes, size_t size) { return XXH64(bytes, size, 0); }

}  // namespace heddle
