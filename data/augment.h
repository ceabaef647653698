// Augmentation: turns a decoded image into a normalised (3, S, S) sample of a batch. The random
// numbers depend only on (seed, epoch, index of the sample in the epoch), so batches are the same
// for any number of workers.
//
//   const Augmentation standard = make_augmentation("standard", train->info(), Split::train, 32);
//   augment(standard, image, rng, index, batch + index * 3 * 32 * 32);
#pragma once

#include <string>

#include "core/random.h"
#include "core/tensor.h"
#include "data/dataset.h"

namespace heddle {

enum class Crop {
  none,            // the image is already S x S
  pad,             // a random S x S window of the S x S image with `padding` black pixels around it
  center,          // shorter side resized to S * `resize`, then the central S x S window
  random_resized,  // a window of random area and aspect ratio, resized (Szegedy et al. 2015)
};

// The steps, in order of application.
struct Augmentation {
  int size = 32;  // S, pixels per side
  Crop crop = Crop::none;
  int padding = 4;                                         // pad: pixels on each side
  float resize = 256.0f / 224.0f;                          // center
  float min_area = 0.08f, max_area = 1.0f;                 // random_resized: share of the image
  float min_ratio = 3.0f / 4.0f, max_ratio = 4.0f / 3.0f;  // random_resized: width / height
  bool flip = false;                                       // left-right, with probability 1/2
  Normalization normalization{{0, 0, 0}, {1, 1, 1}};       // (value / 255 - mean) / std
  int cutout = 0;  // side of a square that is set to 0 (DeVries and Taylor 2017); 0: none
};

// Returns a preset of --augment. For a training split:
//   none      the image, resized and centre-cropped if sizes differ
//   standard  if all images are S x S: pad by S/8, crop, flip; else: random_resized, flip
//   cutout    standard, then a square of side S/2 set to 0
// For validation always `none`. Throws InputError for another name and for an impossible size.
Augmentation make_augmentation(const std::string& preset, const DatasetInfo& set, Split split,
                               int size);

// Throws InputError for a size, area, ratio or deviation out of range.
void check_augmentation(const Augmentation& augmentation);

// Writes the augmented image to `out`, float (3, S, S). `sample` selects the random numbers of
// `rng`. Resizing is bilinear and anti-aliased (data/resample.h). Thread-safe. Throws InputError if
// Crop::none or Crop::pad get an image that is not S x S.
void augment(const Augmentation& augmentation, const Image& image, const Philox& rng,
             uint64_t sample, float* out);

// augment() has two parts: the first makes S x S pixels of the image, the second moves and
// normalises them, for a whole batch at a time on a GPU.
//
// The random choices for the second part.
struct Placement {
  int32_t left = 0, top = 0;          // the window's corner in the image; negative in the padding
  int32_t flip = 0;                   // 1: left-right
  int32_t cut_left = 0, cut_top = 0;  // corner, in the result, of the cutout's square
};
static_assert(sizeof(Placement) == 5 * sizeof(int32_t));  // a row of Batch::placements

// Writes the first part's bytes (S, S, 3). Throws as augment() does.
void fit(const Augmentation& augmentation, const Image& image, const Philox& rng, uint64_t sample,
         uint8_t* out);
// Returns the random choices that augment() makes for this sample.
Placement draw_placement(const Augmentation& augmentation, const Philox& rng, uint64_t sample);

// The second part of a whole batch, on the device that holds it, with the same bits as augment():
// bytes u8 (N, S, S, 3) of fit(), placements i32 (N, 5) with Placement's fields -> out (N, 3, S, S)
// in any layout, f32 or bf16.
void augment_bytes(const Augmentation& augmentation, const Tensor& bytes, const Tensor& placements,
                   const Tensor& out);

// The kernel of augment_bytes(). `table` f32 (3, 256): the normalised value of each byte, per
// channel; `cut`: the cutout's side.
namespace cpu {
void place_bytes(const Tensor& bytes, const Tensor& placements, const Tensor& table, int cut,
                 const Tensor& out);
}
namespace cuda {
void place_bytes(const Tensor& bytes, const Tensor& placements, const Tensor& table, int cut,
                 const Tensor& out);
}

}  // namespace heddle
