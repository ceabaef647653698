// What a ResNet's weights file says of its network: architecture, stem, image size, classes and the
// normalisation of the images, in the metadata of a safetensors file with torchvision's names.
//
//   save_resnet("runs/a/model.safetensors", store, card);
//   ResnetCard card = read_resnet_card(WeightsFile("runs/a"));
#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/models/weights.h"
#include "core/parameters.h"
#include "data/dataset.h"

namespace heddle {

// Empty and 0 where the file says nothing.
struct ResnetCard {
  std::string arch, stem;
  int64_t image_size = 0;
  float resize = 0;  // validation: the shorter side becomes image_size * resize before the crop
  std::vector<std::string> classes;
  int64_t class_count = 0;        // rows of fc.weight
  Normalization normalization{};  // std of 0: not told
  std::string found;  // what was found out without metadata, in words; empty if all was told
};

// Reads the card. What a file without metadata (from PyTorch) does not say is inferred: the
// architecture from the blocks of its stages, the stem from conv1's kernel, and with the stem comes
// what it was published with: images of 224 pixels for the imagenet stem, else 32. Throws
// InputError for what is no residual network.
ResnetCard read_resnet_card(const WeightsFile& file);

// torchvision's transform: what files without metadata were trained with, and what validates
// folders of images.
constexpr Normalization kImageNet = {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};
constexpr float kFolderResize = 256.0f / 224.0f;

// The metadata that say it.
std::map<std::string, std::string> resnet_metadata(const ResnetCard& card);

// Throws Error when the file cannot be written; nothing is left under its name then.
void save_resnet(const std::string& path, const ParameterStore& store, const ResnetCard& card);

}  // namespace heddle
