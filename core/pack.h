// Pack: the values that one thread of a CUDA kernel loads and stores at once: 16 bytes of
// neighbouring values, or one value where shapes or addresses do not allow more. Internal to CUDA
// kernels.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace heddle {

template <class T, int kPack>
struct alignas(sizeof(T) * kPack) Pack {
  T value[kPack];

  HEDDLE_HD float operator[](int i) const { return to_float(value[i]); }
  HEDDLE_HD void set(int i, float v) { value[i] = T(v); }
};

template <int kPack, class T>
HEDDLE_HD Pack<T, kPack> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, kPack>*>(p);
}

template <int kPack, class T>
HEDDLE_HD void store_pack(T* p, const Pack<T, kPack>& pack) {
  *reinterpret_cast<Pack<T, kPack>*>(p) = pack;
}

// Calls f.template operator()<T, kPack>() for the type of the first tensor: with full packs if all
// tensors (undefined ones are ignored) are 16-byte aligned and `neighbours` is a multiple of kPack.
template <class F>
void with_packs(std::initializer_list<const Tensor*> maps, int64_t neighbours, F&& f) {
  const bool half = (*maps.begin())->dtype() == DType::bf16;
  bool full = neighbours % (half ? 8 : 4) == 0;
  for (const Tensor* x : maps)
    full = full && (!x->defined() || reinterpret_cast<uintptr_t>(x->raw()) % 16 == 0);
  if (half)
    full ? f.template operator()<bfloat16, 8>() : f.template operator()<bfloat16, 1>();
  else
    full ? f.template operator()<float, 4>() : f.template operator()<float, 1>();
}

}  // namespace heddle
