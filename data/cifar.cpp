#include "data/cifar.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;
constexpr int kPlane = kSide * kSide;  // bytes of one channel

struct Format {
  std::string name;
  int label_bytes;            // before the pixels; the last of them is the label that is used
  std::array<int, 2> labels;  // how many values each label byte may take
  std::vector<std::string> train_files, valid_files;
  std::string names_file;
  Normalization normalization;

  int64_t record() const { return label_bytes + 3 * kPlane; }  // bytes
  int classes() const { return labels[label_bytes - 1]; }
};

const Format& cifar10() {
  static const Format format{
      .name = "cifar-10",
      .label_bytes = 1,
      .labels = {10, 0},
      .train_files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                      "data_batch_4.bin", "data_batch_5.bin"},
      .valid_files = {"test_batch.bin"},
      .names_file = "batches.meta.txt",
      .normalization = {{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}}};
  return format;
}

const Format& cifar100() {
  static const Format format{
      .name = "cifar-100",
      .label_bytes = 2,
      .labels = {20, 100},
      .train_files = {"train.bin"},
      .valid_files = {"test.bin"},
      .names_file = "fine_label_names.txt",
      .normalization = {{0.5071f, 0.4865f, 0.4409f}, {0.2673f, 0.2564f, 0.2762f}}};
  return format;
}

bool holds_any(const fs::path& folder, const Format& format) {
  std::error_code error;
  for (const auto* files : {&format.train_files, &format.valid_files})
    for (const auto& file : *files)
      if (fs::exists(folder / file, error)) return true;
  return false;
}

// A file mapped read-only.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    check(file >= 0, path.string(), ": cannot be opened: ", std::strerror(errno));
    struct stat status {};
    const bool known = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    if (known && status.st_size > 0) {
      size_ = status.st_size;
      void* address = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file, 0);
      if (address != MAP_FAILED) data_ = static_cast<const uint8_t*>(address);
    }
    const int mapping_error = errno;
    ::close(file);
    check(known, path.string(), ": expected a regular file");
    if (size_ > 0 && !data_)
      throw Error(concat(path.string(), ": cannot be mapped: ", std::strerror(mapping_error)));
  }
  ~MappedFile() {
    if (data_) ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;

  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }  // bytes

 private:
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

void check_records(const MappedFile& file, const std::string& name, const Format& format) {
  const int64_t record = format.record();
  check(file.size() > 0, name, ": expected records of ", record, " bytes, found an empty file");
  check(file.size() % record == 0, name, ": expected whole records of ", record, " bytes, found ",
        file.size() % record, " bytes in the last one, at offset ", file.size() / record * record,
        " of ", file.size());
  for (int64_t offset = 0; offset < file.size(); offset += record)
    for (int i = 0; i < format.label_bytes; ++i) {
      const int found = file.data()[offset + i];
      check(found < format.labels[i], name, ": expected a label from 0 to ", format.labels[i] - 1,
            " at offset ", offset + i, ", found ", found);
    }
}

// One name per line; empty when the file is not there.
std::vector<std::string> read_names(const fs::path& path, int expected) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  std::ifstream file(path);
  check(file.is_open(), path.string(), ": cannot be opened: ", std::strerror(errno));
  std::vector<std::string> names;
  for (std::string line; names.size() <= 1000 && std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) names.push_back(line.substr(0, 200));
  }
  check(static_cast<int>(names.size()) == expected, path.string(), ": expected ", expected,
        " class names, found ", names.size());
  return names;
}

DatasetInfo make_info(const fs::path& folder, const Format& format) {
  DatasetInfo info{format.name, read_names(folder / format.names_file, format.classes()), kSide,
                   format.normalization};
  if (info.classes.empty() && format.classes() == 10)
    info.classes = {"airplane", "automobile", "bird",  "cat",  "deer",
                    "dog",      "frog",       "horse", "ship", "truck"};
  for (int i = static_cast<int>(info.classes.size()); i < format.classes(); ++i)
    info.classes.push_back(concat("class ", i));
  return info;
}

class Cifar final : public ImageDataset {
 public:
  Cifar(const fs::path& folder, Split split, const Format& format)
      : ImageDataset(make_info(folder, format)), format_(format) {
    const auto& names = split == Split::train ? format.train_files : format.valid_files;
    std::string missing;
    for (const auto& name : names)
      if (std::error_code error; !fs::exists(folder / name, error))
        missing += (missing.empty() ? "" : ", ") + name;
    check(missing.empty(), folder.string(), ": ", format.name,
          " is incomplete, missing: ", missing);
    for (const auto& name : names) {
      const fs::path path = folder / name;
      files_.emplace_back(path);
      check_records(files_.back(), path.string(), format);
      ends_.push_back(size() + files_.back().size() / format.record());
    }
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  int label(int64_t index) const override { return record(index)[format_.label_bytes - 1]; }

  void read(int64_t index, Image& out) const override {
    const uint8_t* bytes = record(index);
    out.label = bytes[format_.label_bytes - 1];
    out.width = out.height = kSide;
    out.pixels.resize(3 * kPlane);
    const uint8_t* plane = bytes + format_.label_bytes;
    for (int i = 0; i < kPlane; ++i)
      for (int c = 0; c < 3; ++c) out.pixels[3 * i + c] = plane[c * kPlane + i];
  }

 private:
  const uint8_t* record(int64_t index) const {
    check(index >= 0 && index < size(), info().name, ": expected an image from 0 to ", size() - 1,
          ", found ", index);
    size_t file = 0;
    while (index >= ends_[file]) ++file;
    const int64_t first = file == 0 ? 0 : ends_[file - 1];
    return files_[file].data() + (index - first) * format_.record();
  }

  const Format& format_;
  std::vector<MappedFile> files_;
  std::vector<int64_t> ends_;  // images up to and with each file
};

}  // namespace

bool holds_cifar10(const fs::path& folder) { return holds_any(folder, cifar10()); }
bool holds_cifar100(const fs::path& folder) { return holds_any(folder, cifar100()); }

std::unique_ptr<ImageDataset> open_cifar10(const fs::path& folder, Split split) {
  return std::make_unique<Cifar>(folder, split, cifar10());
}

std::unique_ptr<ImageDataset> open_cifar100(const fs::path& folder, Split split) {
  return std::make_unique<Cifar>(folder, split, cifar100());
}

}  // namespace heddle
