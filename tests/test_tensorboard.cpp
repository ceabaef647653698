// Event files, read back by this test's own reader: records with their checksums computed bit by
// bit, protocol buffers field by field.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "apps/log/tensorboard.h"
#include "tests/report_files.h"

using namespace heddle;

namespace {

uint32_t plain_crc32c(const std::string& bytes) {
  uint32_t crc = ~0U;
  for (const unsigned char c : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool low = ((crc ^ c >> bit) & 1) != 0;
      crc = crc >> 1 ^ (low ? 0x82f63b78U : 0U);
    }
  return ~crc;
}

template <class T>
T take(const std::string& bytes, size_t at) {
  REQUIRE(at + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The fields of a message: numbers as their eight bytes, the rest as it is.
using Fields = std::multimap<int, std::string>;
Fields fields(const std::string& message) {
  Fields out;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    size_t length = 0;
    switch (key & 7) {
      case 0: {
        const uint64_t value = varint();
        out.emplace(static_cast<int>(key >> 3),
                    std::string(reinterpret_cast<const char*>(&value), 8));
        continue;
      }
      case 1:
        length = 8;
        break;
      case 5:
        length = 4;
        break;
      case 2:
        length = varint();
        break;
      default:
        FAIL("wire type ", key & 7);
    }
    REQUIRE(at + length <= message.size());
    out.emplace(static_cast<int>(key >> 3), message.substr(at, length));
    at += length;
  }
  return out;
}

std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> out;
  for (size_t at = 0; at < file.size();) {
    const auto length = take<uint64_t>(file, at);
    const auto masked = [&](const std::string& bytes) {
      const uint32_t crc = plain_crc32c(bytes);
      return (crc >> 15 | crc << 17) + 0xa282ead8U;
    };
    CHECK(take<uint32_t>(file, at + 8) == masked(file.substr(at, 8)));
    out.push_back(file.substr(at + 12, length));
    CHECK(take<uint32_t>(file, at + 12 + length) == masked(out.back()));
    at += length + 16;
  }
  return out;
}

struct Read {
  std::map<std::pair<std::string, int64_t>, float> scalars;
  std::map<std::pair<std::string, int64_t>, Fields> histograms;
  std::vector<int64_t> starts;  // steps of SessionLog START
};
Read read_events(const std::string& path) {
  Read out;
  bool first = true;
  for (const std::string& record : records(read(path))) {
    const Fields event = fields(record);
    CHECK(take<double>(event.find(1)->second, 0) > 1.6e9);
    if (first) CHECK(event.find(3)->second == "brain.Event:2");
    first = false;
    const auto number = event.find(2);
    const int64_t step = number == event.end() ? 0 : take<int64_t>(number->second, 0);
    if (event.contains(7)) {
      CHECK(take<int64_t>(fields(event.find(7)->second).find(1)->second, 0) == 1);
      out.starts.push_back(step);
    }
    if (!event.contains(5)) continue;
    for (const auto& [field, value] : fields(event.find(5)->second)) {
      const Fields entry = fields(value);
      const std::pair key(entry.find(1)->second, step);
      if (entry.contains(2)) out.scalars[key] = take<float>(entry.find(2)->second, 0);
      if (entry.contains(5)) out.histograms[key] = fields(entry.find(5)->second);
    }
  }
  return out;
}

double sum_of(const std::string& packed) {
  double sum = 0;
  for (size_t at = 0; at < packed.size(); at += 8) sum += take<double>(packed, at);
  return sum;
}

}  // namespace

TEST_CASE("tensorboard: checksums match published values") {
  CHECK(crc32c("123456789") == 0xe3069283U);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aaU);  // RFC 3720, B.4
  CHECK(crc32c("") == 0);
  CHECK(plain_crc32c("123456789") == 0xe3069283U);
}

TEST_CASE("tensorboard: an event file matches the metrics") {
  const TempFolder temp;
  const FakeRun run;
  std::string path;
  std::vector<nlohmann::ordered_json> lines;
  {
    EventFile events(temp.path);
    path = events.path();
    std::istringstream in(run.metrics());
    for (std::string line; std::getline(in, line);) {
      lines.push_back(nlohmann::ordered_json::parse(line));
      events.metric(lines.back());
    }
  }
  const Read back = read_events(path);
  CHECK(back.starts.empty());
  size_t expected = 0;
  const auto same = [&](const std::string& tag, int64_t step, double value) {
    const auto found = back.scalars.find({tag, step});
    REQUIRE_MESSAGE(found != back.scalars.end(), tag);
    CHECK(found->second == static_cast<float>(value));
    ++expected;
  };
  for (int s = 1; s <= run.steps; ++s) {
    const auto& line = lines[static_cast<size_t>(s)];
    same("loss/train", s, line["loss"]);
    same("lr", s, line["lr"]);
    same("samples_per_s/train", s, 100);
    for (const char* part :
         {"data", "forward", "backward", "update", "comm", "compress", "exposed"})
      same(std::string("time/") + part, s, line[std::string("t_") + part]);
    for (const char* part : {"sent", "received", "dense"})
      same(std::string("bytes/") + part, s, line[std::string("bytes_") + part]);
    same("ratio/wire", s, 50);
  }
  same("acc1/valid", 40, 60.25);
  same("loss/valid", 20, 2);
  same("quality/layer1.weight/contraction", 20, 0.7);
  same("compress/layer0.weight/ratio", run.steps, 6.0 * run.steps / 100);
  CHECK(expected == 14 * static_cast<size_t>(run.steps) + 4);

  const Fields& norms = back.histograms.at({"residual_norm", 10});  // 2, 3 and 4
  const auto value = [&](int field) { return take<double>(norms.find(field)->second, 0); };
  CHECK(value(1) == 2);
  CHECK(value(2) == 4);
  CHECK(value(3) == 3);
  CHECK(value(4) == 9);
  CHECK(value(5) == 29);
  CHECK(sum_of(norms.find(7)->second) == 3);
  CHECK(norms.find(6)->second.size() == norms.find(7)->second.size());
  // Equal values fall into one bucket.
  CHECK(sum_of(back.histograms.at({"gradient_norm", 20}).find(7)->second) == 3);
}

TEST_CASE("tensorboard: a resumed run invalidates later events") {
  const TempFolder temp;
  { EventFile(temp.path).metric({{"step", 7}, {"split", "train"}, {"loss", 1.0}}); }
  std::string path;
  {
    EventFile events(temp.path);
    path = events.path();
    events.metric({{"step", 5}, {"split", "train"}, {"loss", 2.0}});
    events.metric({{"step", 6}, {"split", "train"}, {"loss", nullptr}});
  }
  const Read back = read_events(path);
  CHECK(back.starts == std::vector<int64_t>{5});
  CHECK(back.scalars.at({"loss/train", 5}) == 2.0F);
  CHECK(back.scalars.size() == 1);
  CHECK_THROWS_AS(EventFile(temp.path + "/none"), std::exception);
}
