// Weights and logits exchanged with PyTorch as files, by tests/golden/interop.py in a process of
// its own.
//
//   const std::string python = find_torch();   // "": there is none, skip
//   const ScratchFolder scratch;
//   save_safetensors(scratch.weights(), store.named_tensors());
//   save_safetensors(scratch.logits(), {{"logits", logits}});
//   CHECK(interop(python, "check", "resnet20", scratch) == 0);
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/error.h"

namespace heddle {

// An interpreter that can import torch, or "".
inline std::string find_torch() {
  for (const std::string python : {"python3", "/usr/bin/python3"})
    if (std::system((python + " -c 'import torch' >/dev/null 2>&1").c_str()) == 0) return python;
  return {};
}

struct ScratchFolder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / concat("heddle_interop_", ::getpid());
  ScratchFolder() { std::filesystem::create_directories(path); }
  ~ScratchFolder() { std::filesystem::remove_all(path); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string weights() const { return (path / "w.safetensors").string(); }
  std::string logits() const { return (path / "logits.safetensors").string(); }
};

// The status of `interop.py VERB ARCH` on the folder's two files; 0: all is well.
inline int interop(const std::string& python, const std::string& verb, const std::string& arch,
                   const ScratchFolder& folder) {
  return std::system((python + " -B " HEDDLE_SOURCE_DIR "/tests/golden/interop.py " + verb + " " +
                      arch + " " + folder.weights() + " " + folder.logits())
                         .c_str());
}

}  // namespace heddle
