// What a ResNet's weights file says of its network: architecture, stem, image size, classes and the
// normalisation of the images, in the metadata of a safetensors file with torchvision's names.
//
//   save_resnet("runs/a/model.safetensors", store, card);
//   ResnetCard card = read_resnet_card("runs/a");
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "data/dataset.h"

namespace heddle {

// Empty and 0 where the file says nothing (files from PyTorch).
struct ResnetCard {
  std::string arch, stem;
  int64_t image_size = 0;
  std::vector<std::string> classes;
  int64_t class_count = 0;        // rows of fc.weight
  Normalization normalization{};  // std of 0: not told
};

ResnetCard read_resnet_card(const std::string& path);

// The metadata that say it.
std::map<std::string, std::string> resnet_metadata(const ResnetCard& card);

// Throws Error when the file cannot be written; nothing is left under its name then.
void save_resnet(const std::string& path, const ParameterStore& store, const ResnetCard& card);

}  // namespace heddle
