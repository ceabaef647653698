#include "core/hash.h"

#define XXH_INLINE_ALL
#define XXH_NO_XXH3
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "core/scalar.h"

namespace heddle {

uint64_t hash_bytes(const void* bytes, size_t size) { return XXH64(bytes, size, 0); }

uint64_t hash_file(const InputFile& file) {
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  std::vector<std::byte> part(to_size(std::min<int64_t>(file.size(), 1 << 20)));
  for (int64_t at = 0; at < file.size(); at += std::ssize(part)) {
    part.resize(to_size(std::min(file.size() - at, std::ssize(part))));
    file.read(at, part);
    XXH64_update(&state, part.data(), part.size());
  }
  return XXH64_digest(&state);
}

}  // namespace heddle
