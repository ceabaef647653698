// A trained network on disk: safetensors with torchvision's names, and in the file's metadata what
// is needed to use it without repeating flags (architecture, stem, image size, classes and the
// normalisation of the images).
//
//   save_weights("runs/a/model.safetensors", store, card);
//   load_weights("runs/a", store);   // a run folder stands for its model.safetensors
#pragma once

#include <string>
#include <vector>

#include "core/parameters.h"
#include "data/dataset.h"

namespace heddle {

// What a weights file says of its network; empty and 0 where it says nothing (files from PyTorch).
struct ModelCard {
  std::string arch, stem;
  int64_t image_size = 0;
  std::vector<std::string> classes;
  int64_t class_count = 0;        // rows of fc.weight
  Normalization normalization{};  // std of 0: not told
};

// The file that --init names.
std::string weights_file(const std::string& path);

ModelCard read_model_card(const std::string& path);

// Throws Error when the file cannot be written; nothing is left under its name then.
void save_weights(const std::string& path, const ParameterStore& store, const ModelCard& card);

// Fills every parameter and buffer. Throws InputError that names the first tensor that is missing,
// unknown, or of another shape; the store is unchanged then.
void load_weights(const std::string& path, ParameterStore& store);

}  // namespace heddle
