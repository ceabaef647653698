#include "apps/resnet_card.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "apps/flags.h"
#include "apps/weights.h"
#include "core/error.h"
#include "core/files.h"
#include "core/safetensors.h"

namespace heddle {

namespace {

constexpr int64_t kMaxImageSize = 4096;

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

std::string join_three(const std::array<float, 3>& values) {
  return concat(format_number(double{values[0]}), " ", format_number(double{values[1]}), " ",
                format_number(double{values[2]}));
}

std::array<float, 3> parse_three(const std::string& text, const std::string& where) {
  std::istringstream in(text);
  std::array<float, 3> out{};
  in >> out[0] >> out[1] >> out[2];
  const bool finite = std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); });
  check(!in.fail() && finite, where, ": expected three numbers, found '", printable(text), "'");
  return out;
}

}  // namespace

ResnetCard read_resnet_card(const std::string& path) {
  const std::string name = weights_file(path);
  const SafetensorsFile file = SafetensorsFile::open(name);
  const auto& metadata = file.metadata();
  auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  ResnetCard card;
  card.arch = value("arch");
  card.stem = value("stem");
  card.classes = split_lines(value("classes"));
  if (const std::string size = value("image_size"); !size.empty()) {
    card.image_size = parse_metadata_number(size, 1, kMaxImageSize, name + ": metadata image_size");
  }
  if (file.has("fc.weight") && file.info("fc.weight").shape.rank() == 2) {
    card.class_count = file.info("fc.weight").shape[0];
  }
  if (metadata.contains("mean")) {
    card.normalization.mean = parse_three(value("mean"), name + ": metadata mean");
    card.normalization.std = parse_three(value("std"), name + ": metadata std");
  }
  return card;
}

std::map<std::string, std::string> resnet_metadata(const ResnetCard& card) {
  std::string classes;
  for (const std::string& name : card.classes) classes += (classes.empty() ? "" : "\n") + name;
  return {{"format", "pt"},
          {"arch", card.arch},
          {"stem", card.stem},
          {"image_size", std::to_string(card.image_size)},
          {"classes", classes},
          {"mean", join_three(card.normalization.mean)},
          {"std", join_three(card.normalization.std)}};
}

void save_resnet(const std::string& path, const ParameterStore& store, const ResnetCard& card) {
  save_safetensors(path, store.named_tensors(), resnet_metadata(card));
}

}  // namespace heddle
