// SecretRandom: random numbers that protect data. They come from the operating system (getrandom),
// so that no seed, log, checkpoint or earlier number reveals them. For tests only, they can be made
// to repeat.
//
//   SecretRandom random;
//   double noisy = sum + sigma * random.normal();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle {

class SecretRandom {
 public:
  // test_seed 0: from the operating system. Else the numbers are those of Philox with this seed and
  // key: the same in every run, and protecting nothing.
  explicit SecretRandom(uint64_t test_seed = 0, uint64_t key = 0)
      : test_seed_(test_seed), key_(key) {}

  // Throw Error if the operating system gives no random numbers.
  double uniform();  // in (0, 1), 53 bits
  // Standard normal (Box and Muller), at most 8.7 in magnitude. In floating point, like everything
  // here: what Mironov 2012 shows about the low bits of such noise applies.
  double normal();

 private:
  uint64_t bits();

  uint64_t test_seed_, key_;
  std::array<uint64_t, 512> words_{};
  size_t used_ = std::tuple_size_v<decltype(words_)>;
  uint64_t drawn_ = 0;  // with a test seed
  double second_ = 0;   // of a pair of normal numbers
  bool has_second_ = false;
};

}  // namespace heddle
