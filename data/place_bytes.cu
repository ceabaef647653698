// Shifts, flips, normalises and masks (cutout) the images of a batch in one pass, on CPU and CUDA.
#include "core/shared_kernel.h"
#include "data/augment.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct PlaceBytes {
  const uint8_t* bytes;
  const Placement* placements;
  const float* table;
  T* out;
  int32_t size, cut;
  int64_t channel_stride, pixel_stride;

  HEDDLE_HD void operator()(int64_t image, int64_t pixel) const {
    const Placement& p = placements[image];
    const auto row = static_cast<int32_t>(pixel) / size,
               column = static_cast<int32_t>(pixel) % size;
    const int32_t x = (p.flip != 0 ? size - 1 - column : column) + p.left, y = row + p.top;
    const bool inside = x >= 0 && x < size && y >= 0 && y < size;
    const bool is_cut = column >= p.cut_left && column < p.cut_left + cut && row >= p.cut_top &&
                        row < p.cut_top + cut;
    const int64_t plane = int64_t{size} * size;
    const uint8_t* from = bytes + 3 * (image * plane + (inside ? int64_t{y} * size + x : 0));
    T* to = out + 3 * image * plane + pixel * pixel_stride;
    for (int c = 0; c < 3; ++c)
      to[c * channel_stride] = T(is_cut ? 0.0f : table[256 * c + (inside ? from[c] : 0)]);
  }
};

}  // namespace

void place_bytes(const Tensor& bytes, const Tensor& placements, const Tensor& table, int cut,
                 const Tensor& out) {
  const int64_t size = out.shape()[3], plane = size * size;
  const bool nhwc = out.layout() == Layout::nhwc;
  with_type(out, [&]<class T>() {
    for_each_in_grid(
        out.shape()[0], plane,
        PlaceBytes<T>{bytes.data<uint8_t>(), reinterpret_cast<const Placement*>(placements.raw()),
                      table.data<float>(), out.data<T>(), static_cast<int32_t>(size), cut,
                      nhwc ? 1 : plane, nhwc ? 3 : 1});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
