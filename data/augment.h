// Augmentation: from a decoded image straight into its (3, S, S) place in a batch. What is drawn
// depends on (seed, epoch, position of the sample in the epoch) and on nothing else, so batches are
// the same for any number of workers.
//
//   const Augmentation standard = make_augmentation("standard", train->info(), Split::train, 32);
//   augment(standard, image, rng, position, batch + position * 3 * 32 * 32);
#pragma once

#include <string>

#include "core/random.h"
#include "core/tensor.h"
#include "data/dataset.h"

namespace heddle {

enum class Crop {
  none,            // the image is S x S already
  pad,             // a random S x S window of the S x S image with `padding` black pixels around it
  center,          // shorter side to S * `resize`, then the S x S window in the middle
  random_resized,  // a random window of some area and shape, resized (Szegedy et al. 2015)
};

// In the order in which it is done.
struct Augmentation {
  int size = 32;  // S, pixels a side
  Crop crop = Crop::none;
  int padding = 4;                                         // pad: pixels on each side
  float resize = 256.0f / 224.0f;                          // center
  float min_area = 0.08f, max_area = 1.0f;                 // random_resized: share of the image
  float min_ratio = 3.0f / 4.0f, max_ratio = 4.0f / 3.0f;  // random_resized: width / height
  bool flip = false;                                       // left-right, every second image
  Normalization normalization{{0, 0, 0}, {1, 1, 1}};       // (value / 255 - mean) / std
  int cutout = 0;  // side of the square that is set to 0 (DeVries and Taylor 2017); 0: none
};

// The presets of --augment. For a training split:
//   none      the image, resized and cropped in the middle where sizes differ
//   standard  sets of one size that fits: pad by S/8 and crop, flip; others: random_resized, flip
//   cutout    standard, then a square of S/2 cut out
// For validation always what `none` does. Throws InputError for another name.
Augmentation make_augmentation(const std::string& preset, const DatasetInfo& set, Split split,
                               int size);

// Throws InputError for a size or probability that makes no sense.
void check_augmentation(const Augmentation& augmentation);

// Writes the augmented image to `out`, float (3, S, S). `sample` picks the random numbers of `rng`.
// Resizing is bilinear with a filter as wide as the pixels of the result (anti-aliased).
// Thread-safe. Throws InputError when Crop::none or Crop::pad meet an image that is not S x S.
void augment(const Augmentation& augmentation, const Image& image, const Philox& rng,
             uint64_t sample, float* out);

// Where the bytes of a sample go.
struct Placement {
  int32_t left = 0, top = 0;  // the window's corner in the image: negative beyond its border
  int32_t flip = 0;           // 1: left-right
  int32_t cut_left = 0, cut_top = 0;  // the corner, in the result, of the square that becomes 0
};
static_assert(sizeof(Placement) == 5 * sizeof(int32_t));  // a row of Batch::placements
// Whether a Placement says all that is drawn: Crop::none or Crop::pad.
bool moves_bytes(const Augmentation& augmentation);
// Throws InputError for an image that is not S x S.
void check_fits(const Augmentation& augmentation, const Image& image);
// What augment() draws.
Placement draw_placement(const Augmentation& augmentation, const Philox& rng, uint64_t sample);

// augment() for a whole batch, where its bytes are: `bytes` u8 (N, S, S, 3), `placements` i32 (N,
// 5) of Placement's fields, out (N, 3, S, S) in any layout, f32 or bf16. The same values, bit for
// bit.
void augment_bytes(const Augmentation& augmentation, const Tensor& bytes, const Tensor& placements,
                   const Tensor& out);

// `table` f32 (3, 256): a byte's value by channel; `cut` the square's side.
#define HEDDLE_AUGMENT                                                                          \
  void place_bytes(const Tensor& bytes, const Tensor& placements, const Tensor& table, int cut, \
                   const Tensor& out);
HEDDLE_BACKENDS(HEDDLE_AUGMENT)
#undef HEDDLE_AUGMENT

}  // namespace heddle
