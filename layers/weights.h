// A trained network on disk: safetensors with PyTorch's names. The metadata may hold how the
// network is built, so that nobody has to say it again.
//
//   load_weights(WeightsFile("runs/a"), store.named_tensors());   // the run's model.safetensors
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"
#include "core/tensor.h"

namespace heddle {

// A weights file with this project's names for its tensors, even if another program wrote it:
// without the "module." prefix of PyTorch's DataParallel, and with the last layer of a residual
// network as "fc", whatever its name there.
class WeightsFile {
 public:
  // `path` is a file or a run folder; `head` the name of the last layer, empty: fc. Throws an
  // InputError that says what the file is and what to do, if it is not a safetensors file.
  explicit WeightsFile(const std::string& path, const std::string& head = "");

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }
  std::string value(const std::string& key) const;  // of metadata; empty if there is none
  const std::map<std::string, std::string>& names() const { return names_; }  // ours -> the file's
  void leave_out(const std::string& beginning);  // tensors whose names begin so
  bool has(const std::string& name) const { return names_.contains(name); }
  // Both throw InputError if there is no such tensor.
  const SafetensorsInfo& info(const std::string& name) const { return file_.info(own(name)); }
  Tensor load(const std::string& name) const { return file_.load(own(name)); }

 private:
  const std::string& own(const std::string& name) const;

  SafetensorsFile file_;
  std::map<std::string, std::string> names_;
};

// Fills tensors from a file, which must hold exactly these names; floating types become f32. A
// tensor that is listed twice (tied weights) must be equal in the file. Batch counts that older
// files lack keep their values. `hints`: by the beginning of a name, the probable reason for a
// different shape. Throws an InputError that names the first tensor that is
// missing, unknown, of a different shape or unequal; in that case nothing is changed.
void load_weights(const WeightsFile& file,
                  const std::vector<std::pair<std::string, Tensor>>& tensors,
                  const std::map<std::string, std::string>& hints = {});

}  // namespace heddle
