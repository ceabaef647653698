// A trained network on disk: safetensors with PyTorch's names. What else is needed to use the file
// without repeating flags is in its metadata, the card of the network (apps/resnet_card.h,
// apps/lm_card.h).
//
//   load_weights("runs/a", store.named_tensors());   // a run folder stands for its
//   model.safetensors
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace heddle {

// The file that --init names.
std::string weights_file(const std::string& path);

// Fills tensors from a file, which must hold exactly these names; floating types become f32. A
// tensor that is listed twice (tied weights) must be equal in the file. `hints`: by the beginning
// of a name, what another shape probably means. Throws InputError that names the first tensor that
// is missing, unknown, of another shape or unequal; nothing is changed then.
void load_weights(const std::string& path,
                  const std::vector<std::pair<std::string, Tensor>>& tensors,
                  const std::map<std::string, std::string>& hints = {});

// A number in a file's metadata. Throws InputError with `where` unless it lies in [min, max].
int64_t parse_metadata_number(const std::string& text, int64_t min, int64_t max,
                              const std::string& where);

}  // namespace heddle
