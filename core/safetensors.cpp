#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/half.h"
#include "core/scalar.h"

namespace heddle {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr const char* kMetadata = "__metadata__";

struct FileType {
  const char* name;
  int64_t bytes;
  DType dtype;
};
constexpr std::array<FileType, 7> kFileTypes{{{"F64", 8, DType::f32},
                                              {"I64", 8, DType::i64},
                                              {"F32", 4, DType::f32},
                                              {"I32", 4, DType::i32},
                                              {"BF16", 2, DType::bf16},
                                              {"F16", 2, DType::f32},
                                              {"U8", 1, DType::u8}}};

const FileType* find_file_type(std::string_view name) {
  for (const FileType& type : kFileTypes)
    if (type.name == name) return &type;
  return nullptr;
}

// A tensor's header entry as far as it has been read.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

std::string list_file_types() {
  std::string out;
  for (const FileType& type : kFileTypes) out += (out.empty() ? "" : " ") + std::string(type.name);
  return out;
}

// The extents as a shape. Zero extents do not hide an overflow of the others.
Shape checked_shape(const std::string& where, const std::vector<uint64_t>& extents) {
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;
  int64_t product = 1;
  for (const uint64_t extent : extents) {
    const uint64_t factor = std::max<uint64_t>(extent, 1);
    check(factor <= static_cast<uint64_t>(kMaxElements / product), where,
          ": shape: expected fewer than 2^60 elements, found more");
    product *= static_cast<int64_t>(factor);
  }
  return Shape(std::vector<int64_t>(extents.begin(), extents.end()));
}

SafetensorsInfo check_entry(const std::string& file, const Entry& entry,
                            std::span<const std::byte> data) {
  const std::string where = concat(file, ": tensor '", printable(entry.name), "'");
  check(entry.dtype.has_value(), where, ": expected a dtype, found none");
  check(entry.shape.has_value(), where, ": expected a shape, found none");
  check(entry.offsets && entry.offsets->size() == 2, where, ": expected two data_offsets, found ",
        entry.offsets ? entry.offsets->size() : 0);
  const FileType* type = find_file_type(*entry.dtype);
  check(type != nullptr, where, ": expected one of the dtypes ", list_file_types(), ", found '",
        printable(*entry.dtype), "'");
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  check(begin <= end && end <= data.size(), where, ": expected data_offsets within 0 to ",
        data.size(), ", found ", begin, " to ", end);
  SafetensorsInfo info;
  info.file_dtype = type->name;
  info.dtype = type->dtype;
  info.shape = checked_shape(where, *entry.shape);
  const int64_t bytes = info.shape.elements() * type->bytes;
  check(end - begin == static_cast<uint64_t>(bytes), where, ": expected ", bytes, " bytes for ",
        *entry.dtype, " ", to_string(info.shape), ", found data_offsets ", begin, " to ", end);
  info.data = data.subspan(begin, end - begin);
  return info;
}

// Receives the header's JSON event by event. No document is built, so that deep nesting costs
// nothing and duplicate keys are seen.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(const std::string& file, std::span<const std::byte> data)
      : file_(file), data_(data) {}

  std::map<std::string, SafetensorsInfo, std::less<>> tensors;
  std::map<std::string, std::string> metadata;

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return unexpected(concat("the number ", value)); }
  bool number_float(double, const std::string& text) override {
    return unexpected("the number " + printable(text));
  }
  bool binary(json::binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (numbers_ == nullptr) return unexpected(concat("the number ", value));
    const size_t limit = numbers_ == &entry_.shape ? 5 : 2;
    check((*numbers_)->size() < limit, where(), ": expected at most ", limit, " numbers");
    (*numbers_)->push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      check(metadata.emplace(key_, value).second, where(), ": found twice");
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return unexpected("a string");
    check(!entry_.dtype, where(), ": found twice");
    entry_.dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = key_ == kMetadata ? Place::metadata : Place::tensor;
      if (place_ == Place::tensor) entry_.name = key_;
      if (place_ == Place::metadata)
        check(!std::exchange(metadata_seen_, true), where(), ": found twice");
      key_.clear();
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(std::string& value) override {
    key_ = value;
    check(
        place_ != Place::tensor || value == "dtype" || value == "shape" || value == "data_offsets",
        where(), ": expected dtype, shape or data_offsets");
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      check(tensors.emplace(entry_.name, check_entry(file_, entry_, data_)).second, file_,
            ": tensor '", printable(entry_.name), "': found twice");
      entry_ = Entry();
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    key_.clear();
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::tensor || numbers_ != nullptr ||
        (key_ != "shape" && key_ != "data_offsets"))
      return unexpected("an array");
    numbers_ = key_ == "shape" ? &entry_.shape : &entry_.offsets;
    check(!*numbers_, where(), ": found twice");
    numbers_->emplace();
    return true;
  }

  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    throw InputError(concat(file_, ": offset ", kLengthBytes + position - (position > 0),
                            ": expected JSON in the header, found something else"));
  }

 private:
  enum class Place { outside, top, metadata, tensor };

  std::string where() const {
    if (place_ == Place::metadata) return concat(file_, ": metadata '", printable(key_), "'");
    if (place_ == Place::tensor)
      return concat(file_, ": tensor '", printable(entry_.name), "': ", printable(key_));
    return concat(file_, ": header entry '", printable(key_), "'");
  }

  const char* expected() const {
    if (place_ == Place::outside || place_ == Place::top) return "an object";
    if (place_ == Place::metadata || key_ == "dtype") return "a string";
    return numbers_ == nullptr ? "an array" : "a whole number from 0 to 2^64-1";
  }

  bool unexpected(const std::string& found) const {
    throw InputError(concat(where(), ": expected ", expected(), ", found ", found));
  }

  const std::string& file_;
  std::span<const std::byte> data_;
  Entry entry_;
  Place place_ = Place::outside;
  std::string key_;
  std::optional<std::vector<uint64_t>>* numbers_ = nullptr;  // the array being read
  bool metadata_seen_ = false;
};

// The tensors must cover the data exactly: an overlap or a hole is a damaged or forged file.
void check_coverage(const std::string& file, const HeaderReader& header,
                    std::span<const std::byte> data) {
  struct Range {
    int64_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, info] : header.tensors) {
    const int64_t begin = info.data.data() - data.data();
    ranges.push_back({begin, begin + static_cast<int64_t>(info.data.size()), &name});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t covered = 0;
  for (const Range& range : ranges) {
    check(range.begin == covered, file, ": tensor '", printable(*range.name),
          "': expected data to begin at ", covered, ", found ", range.begin);
    covered = range.end;
  }
  check(covered == std::ssize(data), file, ": expected ", covered, " bytes of data, found ",
        data.size());
}

template <class Source>
void convert_to_float(std::span<const std::byte> from, float* to) {
  for (size_t i = 0; i < from.size() / sizeof(Source); ++i) {
    Source value;
    std::memcpy(&value, from.data() + i * sizeof(Source), sizeof(Source));
    to[i] = to_float(value);
  }
}

const char* file_type_name(DType dtype) {
  for (const FileType& type : kFileTypes)
    if (type.dtype == dtype && type.bytes == dtype_size(dtype)) return type.name;
  throw Error(concat("safetensors: no file type for ", dtype_name(dtype)));
}

std::string make_header(const std::vector<const std::pair<std::string, Tensor>*>& order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::object();
  if (!metadata.empty()) entries[kMetadata] = metadata;
  int64_t begin = 0;
  for (const auto* item : order) {
    const auto& [name, tensor] = *item;
    const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
    const int64_t end = begin + tensor.bytes();
    entries[name] = {{"dtype", file_type_name(tensor.dtype())},
                     {"shape", shape},
                     {"data_offsets", std::array{begin, end}}};
    begin = end;
  }
  try {
    std::string header = entries.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    return header;
  } catch (const json::exception& e) {
    throw InputError(concat("safetensors: names and metadata: expected UTF-8: ", e.what()));
  }
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  auto content = std::make_shared<const std::string>(read_text_file(path));
  SafetensorsFile file = parse(std::as_bytes(std::span(*content)), path);
  file.content_ = std::move(content);
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  check(bytes.size() >= kLengthBytes, name, ": expected a safetensors file of at least ",
        kLengthBytes, " bytes, found ", bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const uint64_t limit = std::min<uint64_t>(bytes.size() - kLengthBytes, kMaxHeaderBytes);
  check(length <= limit, name, ": offset 0: expected a header length of at most ", limit,
        ", found ", length);
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  check(length >= 2 && text[0] == '{', name, ": offset 8: expected a JSON object as header");

  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + length);
  HeaderReader reader(name, data);
  json::sax_parse(text, text + length, &reader);
  check_coverage(name, reader, data);
  SafetensorsFile file;
  file.path_ = name;
  file.tensors_ = std::move(reader.tensors);
  file.metadata_ = std::move(reader.metadata);
  return file;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  for (const auto& item : tensors_) out.push_back(item.first);
  return out;
}

const SafetensorsInfo& SafetensorsFile::info(std::string_view name) const {
  const auto found = tensors_.find(name);
  check(found != tensors_.end(), path_, ": expected a tensor '", printable(name), "', found none");
  return found->second;
}

Tensor SafetensorsFile::load(std::string_view name) const {
  const SafetensorsInfo& from = info(name);
  Tensor out = Tensor::empty_on(Device{}, from.shape, from.dtype);
  if (from.file_dtype == "F16") {
    convert_to_float<Half>(from.data, out.data<float>());
  } else if (from.file_dtype == "F64") {
    convert_to_float<double>(from.data, out.data<float>());
  } else if (!from.data.empty()) {
    std::memcpy(out.raw(), from.data.data(), from.data.size());
  }
  return out;
}

void save_safetensors(const std::string& path,
                      const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<std::string, Tensor>*> order;
  for (const auto& item : tensors) {
    check(item.second.layout() == Layout::plain, path, ": tensor '", printable(item.first),
          "': expected plain layout, found ", layout_name(item.second.layout()));
    check(item.first != kMetadata, path, ": a tensor cannot be named ", kMetadata);
    order.push_back(&item);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const int64_t wide_a = dtype_size(a->second.dtype()), wide_b = dtype_size(b->second.dtype());
    return wide_a != wide_b ? wide_a > wide_b : a->first < b->first;
  });
  std::map<std::string_view, int> seen;
  for (const auto* item : order)
    check(++seen[item->first] == 1, path, ": two tensors named '", printable(item->first), "'");

  const std::string header = make_header(order, metadata);
  const uint64_t length = header.size();
  check(length <= kMaxHeaderBytes, path, ": expected a header of at most ", kMaxHeaderBytes,
        " bytes, found ", length);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const auto* item : order) {
    const Tensor host = item->second.to(Device{});
    file.write({static_cast<const std::byte*>(host.raw()), to_size(host.bytes())});
  }
  file.commit();
}

}  // namespace heddle
