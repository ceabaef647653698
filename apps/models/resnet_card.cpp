#include "apps/models/resnet_card.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "apps/cli/format.h"
#include "core/error.h"
#include "core/files.h"
#include "core/parse_number.h"
#include "layers/resnet.h"

namespace heddle {
namespace {

// Returns a number in a file's metadata. Throws InputError with `where` unless it lies in [min,
// max].
int64_t parse_metadata_number(const std::string& text, int64_t min, int64_t max,
                              const std::string& where) {
  const auto value = parse_number<int64_t>(text);
  check(value && *value >= min && *value <= max, where, ": expected an integer from ", min, " to ",
        max, ", found '", printable(text), "'");
  return *value;
}

constexpr int64_t kMaxImageSize = 4096;

std::string join_three(const std::array<float, 3>& values) {
  return concat(format_number(double{values[0]}), " ", format_number(double{values[1]}), " ",
                format_number(double{values[2]}));
}

std::array<float, 3> parse_three(const std::string& text, const std::string& where) {
  std::istringstream in(text);
  std::array<float, 3> out{};
  for (float& x : out) in >> x;
  check(!in.fail() && std::isfinite(out[0] + out[1] + out[2]), where,
        ": expected three numbers, found '", printable(text), "'");
  return out;
}

// Throws InputError unless the file is a residual network. It may lack its last layer.
void check_residual(const WeightsFile& file) {
  check(!file.has("rnn.weight_ih_l0"), file.path(),
        ": expected a residual network, found a language model, which train_lm reads");
  if (file.has("fc.weight")) return;
  std::string others;
  for (const auto& [name, theirs] : file.names())
    if (name.ends_with(".weight") && file.info(name).shape.rank() == 2)
      others = name.substr(0, name.size() - std::string(".weight").size());
  if (others.empty() && file.has("conv1.weight")) return;
  throw InputError(concat(
      file.path(), ": expected a tensor fc.weight (classes, features), found none",
      others.empty() ? "" : concat("; if ", others, " is the last layer, give --head ", others)));
}

// Returns the architecture with as many layers as the file: two or three convolutions in each
// block, the stem and the last layer. Empty if there is none.
std::string find_arch(const WeightsFile& file) {
  int64_t blocks = 0;
  const auto has = [&](int stage, int64_t block, const char* name) {
    return file.has(concat("layer", stage, ".", block, ".", name));
  };
  for (int stage = 1; stage <= 4; ++stage)
    for (int64_t block = 0; has(stage, block, "conv1.weight"); ++block) ++blocks;
  const std::string arch = concat("resnet", (has(1, 0, "conv3.weight") ? 3 : 2) * blocks + 2);
  const auto& known = resnet_archs();
  return std::ranges::find(known, arch) == known.end() ? "" : arch;
}

std::string find_stem(const WeightsFile& file) {
  const bool known = file.has("conv1.weight") && file.info("conv1.weight").shape.rank() == 4;
  return known && file.info("conv1.weight").shape[3] == 7 ? "imagenet" : "cifar";
}

float parse_resize(const std::string& text, const std::string& where) {
  std::istringstream in(text);
  float value = 0;
  in >> value;
  check(!in.fail() && value >= 1 && value <= 16, where, ": expected a number from 1 to 16, found '",
        printable(text), "'");
  return value;
}

}  // namespace

ResnetCard read_resnet_card(const WeightsFile& file) {
  check_residual(file);
  ResnetCard card;
  card.arch = file.value("arch");
  card.stem = file.value("stem");
  if (const auto names = file.value("classes"); !names.empty()) card.classes = split(names, '\n');
  const std::string where = file.path() + ": metadata ";
  if (const std::string size = file.value("image_size"); !size.empty())
    card.image_size = parse_metadata_number(size, 1, kMaxImageSize, where + "image_size");
  if (file.has("fc.weight") && file.info("fc.weight").shape.rank() == 2)
    card.class_count = file.info("fc.weight").shape[0];
  if (file.metadata().contains("mean")) {
    card.normalization.mean = parse_three(file.value("mean"), where + "mean");
    card.normalization.std = parse_three(file.value("std"), where + "std");
  }
  const bool complete = !card.arch.empty() && !card.stem.empty() && card.image_size > 0;
  if (card.arch.empty()) card.arch = find_arch(file);
  if (card.stem.empty()) card.stem = find_stem(file);
  const bool large = card.stem == "imagenet";
  if (card.image_size == 0) card.image_size = large ? 224 : 32;
  if (const std::string resize = file.value("resize"); !resize.empty())
    card.resize = parse_resize(resize, where + "resize");
  else if (card.normalization.std[0] > 0)  // an older run, which did not record it: see make_card
    card.resize = card.normalization.mean == kImageNet.mean ? kFolderResize : 1;
  else
    card.resize = large ? kFolderResize : 1;
  if (!complete)
    card.found =
        concat(file.path(), " has incomplete metadata; from its tensors: ",
               card.arch.empty() ? "no known architecture" : card.arch, ", stem ", card.stem, ", ",
               card.class_count > 0 ? concat(card.class_count, " classes") : "no last layer",
               ", images of ", card.image_size, " pixels", large ? " after a resize to 256" : "");
  return card;
}

std::map<std::string, std::string> resnet_metadata(const ResnetCard& card) {
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"arch", card.arch},
                                                 {"stem", card.stem},
                                                 {"image_size", std::to_string(card.image_size)},
                                                 {"resize", format_number(double{card.resize})},
                                                 {"classes", join(card.classes, "\n")},
                                                 {"mean", join_three(card.normalization.mean)},
                                                 {"std", join_three(card.normalization.std)}};
  if (!card.privacy.empty()) metadata["privacy"] = card.privacy;
  return metadata;
}

void save_resnet(const std::string& path, const ParameterStore& store, const ResnetCard& card) {
  save_safetensors(path, store.named_tensors(), resnet_metadata(card));
}

}  // namespace heddle
