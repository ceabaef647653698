// Reads and writes the metadata of a graph network's weights file: model, number of layers,
// classes.
//
//   save_safetensors(path, store.named_tensors(), graph_metadata(card));
//   GraphCard card = read_graph_card(WeightsFile("runs/a"));
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layers/weights.h"

namespace heddle {

// The sizes are those of the tensors. Classes are empty where the file has none.
struct GraphCard {
  std::string model;  // "sage", "gcn"
  int64_t layers = 0, hidden = 0, features = 0, class_count = 0;
  std::vector<std::string> classes;
};

// Reads the card. Throws InputError for a file that is not such a network, and for classes that do
// not fit its tensors.
GraphCard read_graph_card(const WeightsFile& file);
std::map<std::string, std::string> graph_metadata(const GraphCard& card);

}  // namespace heddle
