#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/half.h"

namespace heddle {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxNumbers = 5;                  // axes of a shape
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

std::string list_file_types() {
  std::string out;
  for (const FileType& type : kFileTypes) out += (out.empty() ? "" : " ") + std::string(type.name);
  return out;
}

// Returns the extents as a shape. Zero extents do not hide an overflow of the others.
Shape checked_shape(const std::string& where, const std::vector<uint64_t>& extents) {
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;
  int64_t product = 1;
  for (const uint64_t extent : extents) {
    const uint64_t factor = std::max<uint64_t>(extent, 1);
    check(factor <= static_cast<uint64_t>(kMaxElements / product), where,
          ": shape: expected fewer than 2^60 elements, found more");
    product *= to_int64(factor);
  }
  return Shape(std::vector<int64_t>(extents.begin(), extents.end()));
}

// Parses the header. Throws InputError for text that is not JSON, for a key that occurs twice in an
// object, and for deeper nesting or longer arrays than a header has, before they are allocated.
json parse_header(const std::string& file, std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the open objects
  std::string entry;                        // the header's current entry
  size_t numbers = 0;                       // in the open array
  const auto watch = [&](int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::array_start) numbers = 0;
    if (event == json::parse_event_t::key && keys.size() == 1)
      entry = printable(value.get_ref<const std::string&>());
    check(depth != 1 || event != json::parse_event_t::array_start, file, ": header entry '", entry,
          "': expected an object, found an array");
    check(depth < 3 || event == json::parse_event_t::value, file, ": tensor '", entry,
          "': expected whole numbers in an array, found an array or an object");
    check(event != json::parse_event_t::value || depth < 3 || ++numbers <= kMaxNumbers, file,
          ": header: expected at most ", kMaxNumbers, " numbers in an array");
    if (event == json::parse_event_t::key)
      check(keys.back().insert(value).second, file, keys.size() == 1 ? ": tensor '" : ": header: '",
            printable(value.get_ref<const std::string&>()), "': found twice");
    return true;
  };
  size_t position = 0;  // of an error, from 1; 0: unknown
  try {
    return json::parse(text, watch);
  } catch (const json::parse_error& error) {
    position = error.byte;
  } catch (const json::exception&) {  // a number too large for a double
  }
  throw InputError(concat(file, ": offset ", kLengthBytes + position - (position > 0),
                          ": expected JSON in the header, found something else"));
}

// Describes a value of the header for an error message.
std::string found(const json& value) {
  if (value.is_number() || value.is_boolean())
    return "the " + std::string(value.type_name()) + " " + value.dump();
  return concat(value.is_array() || value.is_object() ? "an " : "a ", value.type_name());
}

// Returns the array of whole numbers under a key of a tensor's entry.
std::vector<uint64_t> read_numbers(const std::string& where, const json& entry, const char* key,
                                   size_t most) {
  check(entry.contains(key), where, ": expected ", key, ", found none");
  check(entry[key].size() <= most, where, ": ", key, ": expected at most ", most, " numbers");
  for (const json& number : entry[key])
    check(number.is_number_unsigned(), where, ": ", key,
          ": expected a whole number from 0 to 2^64-1, found ", found(number));
  return entry[key];
}

SafetensorsInfo read_entry(const std::string& where, const json& entry,
                           std::span<const std::byte> data) {
  check(entry.is_object(), where, ": expected an object, found ", found(entry));
  for (const auto& item : entry.items()) {
    const bool is_dtype = item.key() == "dtype";
    check(is_dtype || item.key() == "shape" || item.key() == "data_offsets", where, ": ",
          printable(item.key()), ": expected dtype, shape or data_offsets");
    check(is_dtype ? item.value().is_string() : item.value().is_array(), where, ": ", item.key(),
          is_dtype ? ": expected a string" : ": expected an array", ", found ",
          found(item.value()));
  }
  check(entry.contains("dtype"), where, ": expected a dtype, found none");
  const std::string dtype = entry["dtype"];
  const std::vector<uint64_t> shape = read_numbers(where, entry, "shape", kMaxNumbers),
                              offsets = read_numbers(where, entry, "data_offsets", 2);
  check(offsets.size() == 2, where, ": expected two data_offsets, found ", offsets.size());
  const FileType* type = find_file_type(dtype);
  check(type != nullptr, where, ": expected one of the dtypes ", list_file_types(), ", found '",
        printable(dtype), "'");
  const uint64_t begin = offsets[0], end = offsets[1];
  check(begin <= end && end <= data.size(), where, ": expected data_offsets within 0 to ",
        data.size(), ", found ", begin, " to ", end);
  SafetensorsInfo info{type->name, type->dtype, checked_shape(where, shape),
                       data.subspan(begin, end - begin)};
  const int64_t bytes = info.shape.elements() * type->bytes;
  check(end - begin == static_cast<uint64_t>(bytes), where, ": expected ", bytes, " bytes for ",
        dtype, " ", to_string(info.shape), ", found data_offsets ", begin, " to ", end);
  return info;
}

// Throws unless the tensors cover the data exactly: a file with an overlap or a gap is damaged.
void check_coverage(const std::string& file,
                    const std::map<std::string, SafetensorsInfo, std::less<>>& tensors,
                    std::span<const std::byte> data) {
  struct Range {
    int64_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, info] : tensors) {
    const int64_t begin = info.data.data() - data.data();
    ranges.push_back({begin, begin + to_int64(info.data.size()), &name});
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
  SafetensorsFile file;
  file.path_ = name;
  const json header = parse_header(name, {text, length});
  for (const auto& item : header.items()) {
    const std::string key = printable(item.key());
    if (item.key() != kMetadata) {
      file.tensors_[item.key()] =
          read_entry(concat(name, ": tensor '", key, "'"), item.value(), data);
      continue;
    }
    check(item.value().is_object(), name, ": header entry '", key, "': expected an object, found ",
          found(item.value()));
    for (const auto& entry : item.value().items()) {
      check(entry.value().is_string(), name, ": metadata '", printable(entry.key()),
            "': expected a string, found ", found(entry.value()));
      file.metadata_[entry.key()] = entry.value();
    }
  }
  check_coverage(name, file.tensors_, data);
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
    check(item.second.defined() && item.second.layout() == Layout::plain, path, ": tensor '",
          printable(item.first), "': expected one with values, in plain layout");
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
