#include "apps/weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "apps/flags.h"
#include "core/error.h"
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

// A tensor of the file as the network keeps it: floating types become f32.
Tensor load_as(const SafetensorsFile& file, const std::string& name, const Tensor& like) {
  const Tensor loaded = file.load(name);
  const bool both_integer = like.dtype() == DType::i64 && loaded.dtype() == DType::i64;
  const bool both_real =
      like.dtype() == DType::f32 && (loaded.dtype() == DType::f32 || loaded.dtype() == DType::bf16);
  check(both_integer || both_real, file.path(), ": ", name, ": expected ", dtype_name(like.dtype()),
        ", found ", file.info(name).file_dtype);
  if (loaded.dtype() == DType::bf16) return Tensor::from(loaded.to_vector(), loaded.shape());
  return loaded;
}

}  // namespace

std::string weights_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? path + "/model.safetensors" : path;
}

ModelCard read_model_card(const std::string& path) {
  const std::string name = weights_file(path);
  const SafetensorsFile file = SafetensorsFile::open(name);
  const auto& metadata = file.metadata();
  auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  ModelCard card;
  card.arch = value("arch");
  card.stem = value("stem");
  card.classes = split_lines(value("classes"));
  if (const std::string size = value("image_size"); !size.empty()) {
    const auto [end, error] =
        std::from_chars(size.data(), size.data() + size.size(), card.image_size);
    check(error == std::errc() && end == size.data() + size.size() && card.image_size > 0 &&
              card.image_size <= kMaxImageSize,
          name, ": metadata image_size: expected pixels from 1 to ", kMaxImageSize, ", found '",
          printable(size), "'");
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

void save_weights(const std::string& path, const ParameterStore& store, const ModelCard& card) {
  std::string classes;
  for (const std::string& name : card.classes) classes += (classes.empty() ? "" : "\n") + name;
  save_safetensors(path, store.named_tensors(),
                   {{"format", "pt"},
                    {"arch", card.arch},
                    {"stem", card.stem},
                    {"image_size", std::to_string(card.image_size)},
                    {"classes", classes},
                    {"mean", join_three(card.normalization.mean)},
                    {"std", join_three(card.normalization.std)}});
}

void load_weights(const std::string& path, ParameterStore& store) {
  const SafetensorsFile file = SafetensorsFile::open(weights_file(path));
  const auto own = store.named_tensors();
  std::set<std::string> known;
  for (const auto& [name, tensor] : own) {
    known.insert(name);
    check(file.has(name), file.path(), ": tensor ", name, " ", to_string(tensor.shape()),
          " is missing");
    const Shape& found = file.info(name).shape;
    check(found == tensor.shape(), file.path(), ": ", name, ": expected shape ",
          to_string(tensor.shape()), ", found ", to_string(found),
          name.starts_with("fc.") ? " (another number of classes)" : "");
  }
  for (const std::string& name : file.names()) {
    check(known.contains(name), file.path(), ": tensor ", printable(name),
          " is not part of this network");
  }
  std::vector<Tensor> loaded;
  for (const auto& [name, tensor] : own) loaded.push_back(load_as(file, name, tensor));
  for (size_t i = 0; i < own.size(); ++i) own[i].second.copy_from(loaded[i]);
}

}  // namespace heddle
