#include "core/secret_random.h"

#include <sys/random.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "core/error.h"
#include "core/random.h"

namespace heddle {

uint64_t SecretRandom::bits() {
  if (test_seed_ != 0) {
    const auto block = Philox(test_seed_, stream_id(Stream::secret, key_)).block(drawn_++);
    return uint64_t{block.word[1]} << 32 | block.word[0];
  }
  if (used_ == words_.size()) {
    auto* at = reinterpret_cast<std::byte*>(words_.data());
    for (size_t left = sizeof words_; left > 0;) {
      const ssize_t got = getrandom(at, left, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw Error(concat("getrandom: ", std::strerror(errno)));
      at += got;
      left -= static_cast<size_t>(got);
    }
    used_ = 0;
  }
  return std::exchange(words_[used_++], 0);  // forgotten, once it is used
}

double SecretRandom::uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }

double SecretRandom::normal() {
  if (std::exchange(has_second_, false)) return second_;
  const double radius = std::sqrt(-2 * std::log(uniform()));
  const double angle = 2 * std::numbers::pi * uniform();
  second_ = radius * std::sin(angle);
  has_second_ = true;
  return radius * std::cos(angle);
}

}  // namespace heddle
