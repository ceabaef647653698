// Safetensors: named tensors in one file (https://huggingface.co/docs/safetensors, format section).
//
//   8 bytes   N, little-endian        header length
//   N bytes   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//   the rest  the tensors' bytes, without holes; offsets count from here
//
// No content of a file makes the reader crash or read out of bounds.
//
//   auto file = SafetensorsFile::open("model.safetensors");
//   Tensor w = file.load("conv1.weight");
//   save_safetensors("copy.safetensors", {{"conv1.weight", w}});
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.h"
#include "core/tensor.h"

namespace heddle {

struct SafetensorsInfo {
  std::string file_dtype;  // as the file says: F64 F32 F16 BF16 I64 I32 U8
  DType dtype{};           // of the loaded tensor: F64 and F16 are converted to f32
  Shape shape;
  std::span<const std::byte> data;  // in the file, little-endian, not necessarily aligned
};

class SafetensorsFile {
 public:
  // Reads a file and checks the header's length, its JSON, duplicate names, dtype, shape (at most
  // five axes), and offsets, which must not overlap, leave holes, lie outside or contradict dtype
  // and shape. Throws InputError with path, tensor or offset, and what was expected and found.
  static SafetensorsFile open(const std::string& path);
  // Does the same for bytes in memory, which must outlive the result; `name` replaces the path in
  // errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  // in alphabetical order
  bool has(std::string_view name) const { return tensors_.contains(name); }
  // Both throw InputError when there is no such tensor.
  const SafetensorsInfo& info(std::string_view name) const;
  Tensor load(std::string_view name) const;  // a CPU tensor with its own memory, plain layout
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::string path_;
  std::shared_ptr<const std::string> content_;  // null after parse()
  std::map<std::string, SafetensorsInfo, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes tensors of any device, in plain layout, atomically (AtomicFile). Order in the file: wide
// types first, then by name, as the reference implementation writes. Throws InputError for two
// equal names and for text that is not UTF-8, Error (path, reason) when it cannot be written.
void save_safetensors(const std::string& path,
                      const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace heddle
