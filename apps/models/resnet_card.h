// Reads and writes the metadata of a ResNet's weights file, a safetensors file with torchvision's
// names: architecture, stem, image size, classes and the normalisation of the images.
//
//   save_resnet("runs/a/model.safetensors", store, card);
//   ResnetCard card = read_resnet_card(WeightsFile("runs/a"));
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "data/dataset.h"
#include "layers/weights.h"

namespace heddle {

// Empty and 0 where the file has no value.
struct ResnetCard {
  std::string arch, stem;
  int64_t image_size = 0;
  float resize = 0;  // validation: the shorter side becomes image_size * resize before the crop
  std::vector<std::string> classes;
  int64_t class_count = 0;        // rows of fc.weight
  Normalization normalization{};  // std of 0: unknown
  std::string privacy;            // what the weights reveal of the images that they were trained on
  std::string found;  // a sentence on what was inferred; empty if the metadata had it all
};

// Reads the card. If a file has no metadata (from PyTorch), the card is inferred: the architecture
// from the blocks of its stages, the stem from conv1's kernel, and the image size from the stem:
// the imagenet stem was published with 224 pixels, the other with 32. Throws InputError for a file
// that is not a residual network.
ResnetCard read_resnet_card(const WeightsFile& file);

// torchvision's resize: assumed for files without metadata, like kImageNet, and used to validate on
// folders of images.
constexpr float kFolderResize = 256.0f / 224.0f;

// Returns the metadata that hold the card.
std::map<std::string, std::string> resnet_metadata(const ResnetCard& card);

// Writes the weights with their card. Throws Error if the file cannot be written; in that case no
// file is left under its name.
void save_resnet(const std::string& path, const ParameterStore& store, const ResnetCard& card);

}  // namespace heddle
