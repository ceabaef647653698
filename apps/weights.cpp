#include "apps/weights.h"

#include <charconv>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/safetensors.h"

namespace heddle {

namespace {

// A tensor of the file as the network keeps it: floating types become f32.
Tensor load_as(const SafetensorsFile& file, const std::string& name, const Tensor& like) {
  Tensor loaded = file.load(name);
  const bool both_integer = like.dtype() == DType::i64 && loaded.dtype() == DType::i64;
  const bool both_real =
      like.dtype() == DType::f32 && (loaded.dtype() == DType::f32 || loaded.dtype() == DType::bf16);
  check(both_integer || both_real, file.path(), ": ", name, ": expected ", dtype_name(like.dtype()),
        ", found ", file.info(name).file_dtype);
  if (loaded.dtype() == DType::bf16) return Tensor::from(loaded.to_vector(), loaded.shape());
  return loaded;
}

std::string hint_for(const std::string& name, const std::map<std::string, std::string>& hints) {
  for (const auto& [beginning, hint] : hints) {
    if (name.starts_with(beginning)) return " (" + hint + ")";
  }
  return "";
}

}  // namespace

std::string weights_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? path + "/model.safetensors" : path;
}

void load_weights(const std::string& path,
                  const std::vector<std::pair<std::string, Tensor>>& tensors,
                  const std::map<std::string, std::string>& hints) {
  const SafetensorsFile file = SafetensorsFile::open(weights_file(path));
  std::set<std::string> known;
  for (const auto& [name, tensor] : tensors) {
    known.insert(name);
    check(file.has(name), file.path(), ": tensor ", name, " ", to_string(tensor.shape()),
          " is missing");
    const Shape& found = file.info(name).shape;
    check(found == tensor.shape(), file.path(), ": ", name, ": expected shape ",
          to_string(tensor.shape()), ", found ", to_string(found), hint_for(name, hints));
  }
  for (const std::string& name : file.names()) {
    check(known.contains(name), file.path(), ": tensor ", printable(name),
          " is not part of this network");
  }
  std::vector<Tensor> loaded;
  std::map<const void*, size_t> first;  // by memory
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    loaded.push_back(load_as(file, name, tensor));
    const auto [seen, is_new] = first.emplace(tensor.raw(), i);
    check(is_new || loaded[i].to_vector() == loaded[seen->second].to_vector(), file.path(), ": ",
          name, ": expected the values of ", tensors[seen->second].first,
          ", which it is tied to, found others");
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].second.copy_from(loaded[i]);
}

int64_t parse_metadata_number(const std::string& text, int64_t min, int64_t max,
                              const std::string& where) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= min && value <= max,
        where, ": expected an integer from ", min, " to ", max, ", found '", printable(text), "'");
  return value;
}

}  // namespace heddle
