#include "apps/log/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "apps/log/quality_report.h"
#include "core/error.h"
#include "core/trace.h"

namespace heddle {
namespace {

constexpr double kFlushSeconds = 2;

double unix_seconds() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns the bytes of a number, the least significant one first.
template <class T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Encodes a protocol buffer, field by field.
class Message {
 public:
  void varint(int field, uint64_t value) {
    key(field, 0);
    plain(value);
  }
  void fixed64(int field, double value) {
    key(field, 1);
    bytes_ += little_endian(value);
  }
  void fixed32(int field, float value) {
    key(field, 5);
    bytes_ += little_endian(value);
  }
  void text(int field, const std::string& value) {
    key(field, 2);
    plain(value.size());
    bytes_ += value;
  }
  void packed(int field, const std::vector<double>& values) {
    std::string all;
    for (const double value : values) all += little_endian(value);
    text(field, all);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire) { plain(static_cast<uint64_t>(field) << 3 | wire); }
  void plain(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// Returns an Event whose field number `field` holds `content`.
std::string event_at(int64_t step, int field, const Message& content) {
  Message event;
  event.fixed64(1, unix_seconds());
  event.varint(2, static_cast<uint64_t>(step));
  event.text(field, content.bytes());
  return event.bytes();
}

// Returns a HistogramProto with buckets of equal width from the least to the largest value.
std::string histogram(const std::vector<double>& values) {
  constexpr int kBuckets = 20;
  const auto [low, high] = std::ranges::minmax(values);
  double sum = 0, squares = 0;
  std::vector<double> limits(kBuckets), counts(kBuckets);
  const double width = (high - low) / kBuckets;
  for (size_t b = 0; b < kBuckets; ++b)
    limits[b] = b + 1 == kBuckets ? high : low + width * to_double(b + 1);
  for (const double value : values) {
    sum += value;
    squares += value * value;
    const auto bucket = std::ranges::lower_bound(limits, value) - limits.begin();
    ++counts[to_size(std::min<int64_t>(bucket, kBuckets - 1))];
  }
  if (width == 0) limits = {high}, counts = {to_double(values.size())};
  Message out;
  out.fixed64(1, low);
  out.fixed64(2, high);
  out.fixed64(3, to_double(values.size()));
  out.fixed64(4, sum);
  out.fixed64(5, squares);
  out.packed(6, limits);
  out.packed(7, counts);
  return out.bytes();
}

// Returns the tag of a metric: "time/forward" for "t_forward", "loss/train" for "loss" in "train".
std::string tag(const std::string& key, const std::string& split) {
  if (key == "lr") return key;
  if (key == "ratio") return "ratio/wire";
  if (key.starts_with("t_")) return "time/" + key.substr(2);
  if (key.starts_with("bytes_")) return "bytes/" + key.substr(6);
  return key + "/" + split;
}

}  // namespace

uint32_t crc32c(const std::string& bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> out{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82f63b78U : 0U);
      out[i] = value;
    }
    return out;
  }();
  uint32_t crc = 0xffffffffU;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(const std::string& bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

EventFile::EventFile(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    resumes_ = resumes_ || entry.path().filename().string().starts_with("events.out.tfevents.");
  char host[256] = "host";
  (void)gethostname(host, sizeof host - 1);
  const double now = unix_seconds();
  // Viewers read the files of a folder in the order of their names.
  const std::string base =
      concat(folder, "/events.out.tfevents.", to_int64(now), ".", host, ".", getpid());
  path_ = base;
  for (int i = 2; std::filesystem::exists(std::filesystem::symlink_status(path_)); ++i)
    path_ = concat(base, ".", i);
  file_ = std::make_unique<AppendFile>(path_, AppendFile::Start::fresh);
  Message version;
  version.fixed64(1, now);
  version.text(3, "brain.Event:2");
  record(version.bytes());
}

void EventFile::record(const std::string& event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  const std::string bytes =
      length + little_endian(masked_crc32c(length)) + event + little_endian(masked_crc32c(event));
  const double now = steady_seconds();
  file_->write(bytes);
  if (now - flushed_at_ > kFlushSeconds) (void)file_->flush(), flushed_at_ = now;
}

void EventFile::write(int64_t step, const Scalars& scalars,
                      const std::map<std::string, std::vector<double>>& histograms) {
  if (resumes_) {  // SessionLog START: viewers ignore events of earlier files from this step on
    Message start;
    start.varint(1, 1);
    record(event_at(step, 7, start));
    resumes_ = false;
  }
  Message summary;
  for (const auto& [name, value] : scalars) {
    Message entry;
    entry.text(1, name);
    entry.fixed32(2, to_float(value));
    summary.text(1, entry.bytes());
  }
  for (const auto& [name, values] : histograms) {
    if (values.empty()) continue;
    Message entry;
    entry.text(1, name);
    entry.text(5, histogram(values));
    summary.text(1, entry.bytes());
  }
  record(event_at(step, 5, summary));
}

void EventFile::metric(const nlohmann::ordered_json& line) {
  if (line.contains("split")) step_line(line);
  if (line.contains("quality")) quality_line(line);
  if (line.contains("summary")) summary_ = line;
  if (line.contains("ledger")) ledger_line(line);
  if (line.contains("summary")) (void)file_->flush();
}

void EventFile::step_line(const nlohmann::ordered_json& line) {
  const auto split = line["split"].get<std::string>();
  Scalars scalars;
  for (const auto& [key, value] : line.items())
    if (value.is_number() && key != "step" && key != "epoch")
      scalars.emplace_back(tag(key, split), value.get<double>());
  write(line.at("step").get<int64_t>(), scalars);
}

void EventFile::quality_line(const nlohmann::ordered_json& line) {
  Scalars scalars = {{concat("quality/", kCorrelationKey), line.at(kCorrelationKey).get<double>()}};
  std::map<std::string, std::vector<double>> histograms;
  for (const auto& [layer, measures] : line["quality"].items())
    for (const auto& [key, value] : measures.items()) {
      if (!value.is_number() || !std::isfinite(value.get<double>())) continue;
      scalars.emplace_back(concat("quality/", layer, "/", key), value.get<double>());
      if (key == "residual_norm" || key == "gradient_norm")
        histograms[key].push_back(value.get<double>());
    }
  write(line.at("step").get<int64_t>(), scalars, histograms);
}

// Writes the ratio of dense bytes to bytes sent over the run, by layer. metrics.jsonl has the
// summary before the ledger.
void EventFile::ledger_line(const nlohmann::ordered_json& line) {
  if (!summary_.contains("layers")) return;
  double elements = 0;
  for (const auto& [layer, count] : summary_["layers"].items()) elements += count.get<double>();
  Scalars scalars;
  for (const auto& [layer, kinds] : line["ledger"].items()) {
    if (!summary_["layers"].contains(layer)) continue;
    double sent = 0;
    for (const auto& [kind, entry] : kinds.items()) sent += entry.at("sent").get<double>();
    const double dense = summary_.at("bytes_dense").get<double>() *
                         summary_["layers"][layer].get<double>() / elements;
    if (sent > 0) scalars.emplace_back(concat("compress/", layer, "/ratio"), dense / sent);
  }
  write(summary_.at("step").get<int64_t>(), scalars);
}

void begin_events(RunFolder& folder) {
  constexpr const char* kName = "events.out.tfevents";
  try {
    const auto events = std::make_shared<EventFile>(folder.path());
    folder.listen([events, &folder](const nlohmann::ordered_json& line) {
      events->metric(line);
      folder.note_trouble(kName, events->trouble());
    });
  } catch (const std::exception& error) {
    folder.note_trouble(kName, error.what());
  }
}

}  // namespace heddle
