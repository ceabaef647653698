#include "data/cifar.h"

#include <array>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/scalar.h"
#include "data/lines.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;
constexpr int kPlane = kSide * kSide;  // bytes of one channel

struct Format {
  std::string name;
  int label_bytes;            // before the pixels; the last one is the label
  std::array<int, 2> labels;  // number of values of each label byte
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

// An open file of records, and their labels. Pixels stay in the file.
struct Records {
  InputFile file;
  std::vector<uint8_t> labels;
};

Records open_records(const std::string& name, const Format& format) {
  Records records{InputFile(name), {}};
  const int64_t record = format.record(), size = records.file.size();
  check(size > 0, name, ": expected records of ", record, " bytes, found an empty file");
  check(size % record == 0, name, ": expected whole records of ", record, " bytes, found ",
        size % record, " bytes in the last one, at offset ", size / record * record, " of ", size);
  std::vector<uint8_t> bytes(to_size(record));
  for (int64_t offset = 0; offset < size; offset += record) {
    records.file.read(offset, std::as_writable_bytes(std::span(bytes)));
    for (int i = 0; i < format.label_bytes; ++i)
      check(bytes[i] < format.labels[i], name, ": expected a label from 0 to ",
            format.labels[i] - 1, " at offset ", offset + i, ", found ", int{bytes[i]});
    records.labels.push_back(bytes[format.label_bytes - 1]);
  }
  return records;
}

// Reads one name per line; returns none if the file does not exist.
std::vector<std::string> read_names(const fs::path& path, int expected) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  std::vector<std::string> names;
  for (Lines lines(path.string()); names.size() <= 1000 && lines.next();) {
    lines.expect_text();
    lines.expect(lines.line().size() <= 200, "a class name of at most 200 bytes");
    if (!lines.line().empty()) names.emplace_back(lines.line());
  }
  check(to_int(names.size()) == expected, path.string(), ": expected ", expected,
        " class names, found ", names.size());
  return names;
}

DatasetInfo make_info(const fs::path& folder, const Format& format) {
  DatasetInfo info{format.name, read_names(folder / format.names_file, format.classes()), kSide,
                   format.normalization};
  if (info.classes.empty() && format.classes() == 10)
    info.classes = {"airplane", "automobile", "bird",  "cat",  "deer",
                    "dog",      "frog",       "horse", "ship", "truck"};
  for (int i = to_int(info.classes.size()); i < format.classes(); ++i)
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
      files_.push_back(open_records((folder / name).string(), format));
      ends_.push_back(size() + std::ssize(files_.back().labels));
    }
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  int label(int64_t index) const override {
    const auto [file, number] = find(index);
    return file.labels[to_size(number)];
  }

  void read(int64_t index, Image& out) const override {
    const auto [file, number] = find(index);
    out.label = file.labels[to_size(number)];
    out.width = out.height = kSide;
    out.pixels.resize(3 * kPlane);
    std::array<uint8_t, 3 * kPlane> planes;
    file.file.read(number * format_.record() + format_.label_bytes,
                   std::as_writable_bytes(std::span(planes)));
    for (int i = 0; i < kPlane; ++i)
      for (int c = 0; c < 3; ++c) out.pixels[3 * i + c] = planes[c * kPlane + i];
  }

 private:
  // Returns the file that holds an image, and the image's index in it.
  std::pair<const Records&, int64_t> find(int64_t index) const {
    check(index >= 0 && index < size(), info().name, ": expected an image from 0 to ", size() - 1,
          ", found ", index);
    size_t file = 0;
    while (index >= ends_[file]) ++file;
    return {files_[file], file == 0 ? index : index - ends_[file - 1]};
  }

  const Format& format_;
  std::vector<Records> files_;
  std::vector<int64_t> ends_;  // images up to and including each file
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
