#include "data/image_folder.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/scalar.h"
#include "data/text.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCheckedHeaders = 50'000;

struct Sample {
  std::string file;  // within the class's folder
  int label;
};

bool is_image_name(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Returns the sorted names of a folder's sub-folders or image files, without hidden ones.
std::vector<std::string> list_folder(const fs::path& folder, bool folders) {
  std::vector<std::string> names;
  try {
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      if (name.starts_with('.')) continue;
      if (folders == is_folder(entry.path()) && (folders || is_image_name(name)))
        names.push_back(std::move(name));
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError(concat(folder.string(), ": cannot be listed: ", error.code().message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> list_classes(const fs::path& folder) {
  auto classes = list_folder(folder, true);
  check(!classes.empty(), folder.string(),
        ": expected a folder for each class (or CIFAR's *.bin files), found no folder");
  for (const std::string& name : classes) check_text(name, (folder / name).string());
  return classes;
}

fs::path find_valid(const fs::path& folder) {
  for (const char* name : {"val", "valid", "test"})
    if (is_folder(folder / name)) return folder / name;
  throw InputError(concat(folder.string(), ": expected val/, valid/ or test/ next to train/"));
}

class ImageFolder final : public ImageDataset {
 public:
  // `hold_out` 0: the split has every image of `root`.
  ImageFolder(DatasetInfo info, fs::path root, Split split, int hold_out)
      : ImageDataset(std::move(info)), root_(std::move(root)) {
    for (const auto& name : list_classes(root_)) {
      const auto known = std::lower_bound(classes().begin(), classes().end(), name);
      check(known != classes().end() && *known == name, (root_ / name).string(),
            ": expected a class that is in train/ too");
      add_class(to_int(known - classes().begin()), split, hold_out);
    }
    check_headers();
  }

  int64_t size() const override { return to_int64(samples_.size()); }
  int label(int64_t index) const override { return at(index).label; }

  void read(int64_t index, Image& out) const override {
    const Sample& sample = at(index);
    read_image_file(path_of(sample), out);
    out.label = sample.label;
  }

 private:
  const Sample& at(int64_t index) const {
    check(index >= 0 && index < size(), root_.string(), ": expected an image from 0 to ",
          size() - 1, ", found ", index);
    return samples_[to_size(index)];
  }

  fs::path path_of(const Sample& sample) const {
    return root_ / classes()[to_size(sample.label)] / sample.file;
  }

  void add_class(int label, Split split, int hold_out) {
    const fs::path folder = root_ / classes()[to_size(label)];
    const auto files = list_folder(folder, false);
    check(!files.empty(), folder.string(), ": expected JPEG or PNG files, found none");
    check(hold_out == 0 || files.size() > 1, folder.string(),
          ": expected at least 2 images, one to train and one to validate, found 1");
    for (size_t i = 0; i < files.size(); ++i) {
      const bool held_out = hold_out != 0 && i % to_size(hold_out) == 0;
      if (hold_out == 0 || held_out == (split == Split::valid))
        samples_.push_back({files[i], label});
    }
  }

  void check_headers() const {
    const int64_t step = (size() + kCheckedHeaders - 1) / kCheckedHeaders;
    for (int64_t i = 0; i < size(); i += step) check_image_header(path_of(at(i)));
  }

  fs::path root_;
  std::vector<Sample> samples_;
};

}  // namespace

std::unique_ptr<ImageDataset> open_image_folder(const fs::path& folder, Split split, int hold_out) {
  check(hold_out == 0 || hold_out > 1, "hold_out: expected 0 or more than 1, found ", hold_out);
  const bool divided = is_folder(folder / "train");
  const fs::path train = divided ? folder / "train" : folder;
  const fs::path root = divided && split == Split::valid ? find_valid(folder) : train;
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(folder, error);
  DatasetInfo info{(error ? folder : whole).filename().string(), list_classes(train), 0, kImageNet};
  check(info.classes.size() > 1, train.string(), ": expected at least two classes, found 1");
  return std::make_unique<ImageFolder>(std::move(info), root, split, divided ? 0 : hold_out);
}

}  // namespace heddle
