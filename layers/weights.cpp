#include "layers/weights.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>

#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

// Returns a tensor of the file as the network keeps it: floating types become f32.
Tensor load_as(const WeightsFile& file, const std::string& name, const Tensor& like) {
  Tensor loaded = file.load(name);
  const bool both_integer = like.dtype() == DType::i64 && loaded.dtype() == DType::i64;
  const bool both_real =
      like.dtype() == DType::f32 && (loaded.dtype() == DType::f32 || loaded.dtype() == DType::bf16);
  check(both_integer || both_real, file.path(), ": ", name, ": expected ", dtype_name(like.dtype()),
        ", found ", file.info(name).file_dtype);
  if (loaded.dtype() == DType::bf16) return Tensor::from(loaded.to_vector(), loaded.shape());
  return loaded;
}

// Returns " (hint)" for the hint of a name; empty without one.
std::string hint_for(const std::string& name, const std::map<std::string, std::string>& hints) {
  for (const auto& [beginning, hint] : hints) {
    if (name.starts_with(beginning)) return " (" + hint + ")";
  }
  return "";
}

// Describes a file in another format, and what to do about it; empty if the format is unknown.
std::string describe_other(const std::string& path) {
  const InputFile file(path);
  std::string head(static_cast<size_t>(std::min<int64_t>(file.size(), 64)), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  const bool pickle = head.size() > 1 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
  if (head.starts_with("PK\x03\x04") || pickle)
    return concat(
        "a PyTorch pickle, which may run arbitrary code. Convert it: python3 -c 'import torch, "
        "safetensors.torch as s; s.save_file(torch.load(\"",
        path, "\", map_location=\"cpu\"), \"",
        std::filesystem::path(path).replace_extension(".safetensors").string(),
        "\")' (docs/howto/weights-in-pytorch.md)");
  const auto is_text = [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  };
  if (head.size() < 8 || !std::ranges::all_of(head, is_text)) return "";
  return concat("text that begins with '", printable(head, 40), "': is this the right file?",
                head.starts_with("version https://git-lfs")
                    ? " It is a Git LFS pointer; 'git lfs pull' fetches the file."
                    : "");
}

SafetensorsFile open_file(const std::string& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  const std::string name = folder ? path + "/model.safetensors" : path;
  check(!folder || std::filesystem::exists(name, error), path,
        ": a folder without model.safetensors, which a run writes at its end");
  try {
    return SafetensorsFile::open(name);
  } catch (const InputError&) {
    const std::string found = std::filesystem::exists(name, error) ? describe_other(name) : "";
    check(found.empty(), name, ": expected a safetensors file, found ", found);
    throw;
  }
}

}  // namespace

WeightsFile::WeightsFile(const std::string& path, const std::string& head)
    : file_(open_file(path)) {
  const std::vector<std::string> names = file_.names();
  const std::string parallel = "module.";
  const bool wrapped = !names.empty() && std::ranges::all_of(names, [&](const std::string& name) {
    return name.starts_with(parallel);
  });
  for (const std::string& name : names) {
    std::string ours = wrapped ? name.substr(parallel.size()) : name;
    if (!head.empty() && ours.starts_with(head + ".")) ours = "fc" + ours.substr(head.size());
    check(names_.emplace(ours, name).second, file_.path(), ": two tensors would be named ",
          printable(ours), ", one of them because of the head ", printable(head));
  }
  check(head.empty() || has("fc.weight"), "head ", printable(head), ": expected a tensor ",
        printable(head), ".weight in ", file_.path(), ", found none");
}

void WeightsFile::leave_out(const std::string& beginning) {
  std::erase_if(names_, [&](const auto& pair) { return pair.first.starts_with(beginning); });
}

std::string WeightsFile::value(const std::string& key) const {
  const auto found = metadata().find(key);
  return found == metadata().end() ? "" : found->second;
}

const std::string& WeightsFile::own(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? name : found->second;
}

void load_weights(const WeightsFile& file, const std::vector<std::pair<std::string, Tensor>>& all,
                  const std::map<std::string, std::string>& hints) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::set<std::string> known;
  for (const auto& [name, tensor] : all) {
    known.insert(name);
    if (!file.has(name) && name.ends_with(".num_batches_tracked")) continue;
    check(file.has(name), file.path(), ": tensor ", name, " ", to_string(tensor.shape()),
          " is missing");
    const Shape& found = file.info(name).shape;
    check(found == tensor.shape(), file.path(), ": ", name, ": expected shape ",
          to_string(tensor.shape()), ", found ", to_string(found), hint_for(name, hints));
    tensors.emplace_back(name, tensor);
  }
  for (const auto& [name, theirs] : file.names()) {
    check(known.contains(name), file.path(), ": tensor ", printable(theirs),
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
          ", to which it is tied, found others");
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].second.copy_from(loaded[i]);
}

}  // namespace heddle
