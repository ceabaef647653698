// The safetensors reader and writer, and writing files atomically.
#include "core/safetensors.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/context.h"

using namespace heddle;
namespace fs = std::filesystem;

namespace {

// A folder that is gone at the end of the test.
struct ScratchFolder {
  fs::path path = fs::temp_directory_path() / concat("heddle_test_", ::getpid());
  ScratchFolder() { fs::create_directories(path); }
  ~ScratchFolder() {
    fs::permissions(path, fs::perms::owner_all);
    fs::remove_all(path);
  }
  std::string file(const char* name) const { return (path / name).string(); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path), {}));
  }
};

std::string with_length(const std::string& header, const std::string& data = {}) {
  const uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

SafetensorsFile parse_text(const std::string& bytes) {
  return SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "test.safetensors");
}

// The message of the InputError that the bytes give; "" when they are accepted.
std::string refusal(const std::string& bytes) {
  try {
    parse_text(bytes);
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

void check_refused(const std::string& bytes, const std::string& expected_part) {
  const std::string message = refusal(bytes);
  CAPTURE(message);
  CHECK(message.find(expected_part) != std::string::npos);
  CHECK(message.starts_with("test.safetensors: "));
  CHECK(message.find('\n') == std::string::npos);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

}  // namespace

TEST_CASE("safetensors: round trip") {
  Context context;
  const ScratchFolder folder;
  Tensor counter = Tensor::empty({}, DType::i64);
  *counter.data<int64_t>() = 1234567890123;
  Tensor half = Tensor::empty({2}, DType::bf16);
  half.data<bfloat16>()[0] = bfloat16(1.5f);
  half.data<bfloat16>()[1] = bfloat16(-2.0f);
  Tensor bytes = Tensor::empty({3}, DType::u8);
  std::memcpy(bytes.raw(), "abc", 3);
  const Tensor none = Tensor::empty({0, 4});
  const Tensor weight = Tensor::from({1, -2, 3.25f, NAN, INFINITY, 0}, {2, 3});
  const std::string path = folder.file("a.safetensors");
  save_safetensors(path,
                   {{"z.bytes", bytes},
                    {"fc.weight", weight},
                    {"half \"quoted\"", half},
                    {"bn.counter", counter},
                    {"none", none}},
                   {{"format", "pt"}, {"", "empty key"}});
  CHECK(folder.entries() == 1);

  const auto file = SafetensorsFile::open(path);
  CHECK(file.names() ==
        std::vector<std::string>{"bn.counter", "fc.weight", "half \"quoted\"", "none", "z.bytes"});
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"", "empty key"}});
  CHECK(*file.load("bn.counter").data<int64_t>() == 1234567890123);
  CHECK(file.load("bn.counter").shape().rank() == 0);
  CHECK(file.load("fc.weight").shape() == Shape{2, 3});
  CHECK(std::memcmp(file.load("fc.weight").raw(), weight.raw(), 24) == 0);
  CHECK(file.load("half \"quoted\"").to_vector() == std::vector<float>{1.5f, -2.0f});
  CHECK(file.load("z.bytes").data<uint8_t>()[2] == 'c');
  CHECK(file.load("none").shape() == Shape{0, 4});
  CHECK_FALSE(file.has("fc.bias"));
  CHECK_THROWS_AS(file.load("fc.bias"), InputError);
  // Data begins at a multiple of eight, and every tensor at a multiple of its type.
  for (const std::string& name : file.names()) {
    const auto& info = file.info(name);
    CHECK(reinterpret_cast<uintptr_t>(info.data.data()) %
              static_cast<uintptr_t>(dtype_size(info.dtype)) ==
          0);
  }
}

TEST_CASE("safetensors: a file of the reference implementation") {
  Context context;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"F64","shape":[1,1],"data_offsets":[8,16]},)"
      R"("c":{"dtype":"I32","shape":[],"data_offsets":[16,20]}}   )";
  const uint16_t half[4] = {0x3c00, 0xc500, 0x0001, 0x7c00};  // 1, -5, the least subnormal, Inf
  const double wide = 0.1;
  const int32_t whole = -7;
  std::string data(20, '\0');
  std::memcpy(data.data(), half, 8);
  std::memcpy(data.data() + 8, &wide, 8);
  std::memcpy(data.data() + 16, &whole, 4);
  const std::string bytes = with_length(header, data);
  const auto file = parse_text(bytes);
  CHECK(file.load("a").to_vector() == std::vector<float>{1, -5, 0x1p-24f, INFINITY});
  CHECK(file.load("b").item() == 0.1f);
  CHECK(*file.load("c").data<int32_t>() == -7);
  CHECK(file.info("a").file_dtype == "F16");
  CHECK(file.info("a").dtype == DType::f32);
  CHECK(parse_text(with_length("{}")).names().empty());
}

TEST_CASE("safetensors: every half-precision number") {
  Context context;
  std::string data(131072, '\0');
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    std::memcpy(data.data() + 2 * i, &half, 2);
  }
  const std::string bytes = with_length(entry(R"("F16")", "[65536]", "[0,131072]"), data);
  const Tensor loaded = parse_text(bytes).load("a");
  const float* values = loaded.data<float>();
  int wrong = 0;
  for (uint32_t i = 0; i < 65536; ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), fraction = static_cast<int>(i & 1023);
    double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) expected = fraction == 0 ? INFINITY : NAN;
    if (i >> 15 != 0) expected = -expected;
    const bool same = std::isnan(expected) ? std::isnan(values[i]) : values[i] == expected;
    wrong += !same || std::signbit(values[i]) != (i >> 15 != 0);
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: damaged and forged files are refused with the reason") {
  const std::string good = entry(R"("F32")", "[2]", "[0,8]");
  CHECK(refusal(with_length(good, std::string(8, 'x'))) == "");

  check_refused("", "expected a safetensors file of at least 8 bytes, found 0");
  check_refused("1234567", "found 7");
  check_refused(with_length(good).substr(0, 40), "offset 0: expected a header length");
  check_refused(std::string(8, '\xff'), "found 18446744073709551615");
  check_refused(with_length("[]"), "expected a JSON object");
  check_refused(with_length(""), "expected a JSON object");
  check_refused(with_length("{\"a\":"), "expected JSON");
  check_refused(with_length("{}x"), "offset 10: expected JSON");
  check_refused(with_length("{\"\xff\":{}}"), "expected JSON");
  check_refused(with_length("{\"a\":" + std::string(1000000, '[')), "expected an object");
  check_refused(with_length("{\"a\":1}"), "'a': expected an object, found the number 1");
  check_refused(with_length("{\"a\":{\"b\":{}}}"), "expected dtype, shape or data_offsets");
  check_refused(with_length("{\"a\":{\"shape\":{}}}"), "shape: expected an array");
  check_refused(with_length("{\"a\":{}}"), "expected a dtype, found none");
  check_refused(with_length("{\"__metadata__\":{\"x\":1}}"), "metadata 'x': expected a string");
  check_refused(with_length("{\"__metadata__\":{},\"__metadata__\":{}}"), "found twice");
  check_refused(with_length("{\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"}}"), "found twice");
  check_refused(with_length(entry(R"("F8_E4M3")", "[8]", "[0,8]"), std::string(8, 'x')),
                "found 'F8_E4M3'");
  check_refused(with_length(entry("5", "[2]", "[0,8]")), "dtype: expected a string");
  check_refused(with_length(entry(R"("F32","dtype":"F32")", "[2]", "[0,8]")), "found twice");
  const std::string two = good.substr(0, good.size() - 1) + "," + good.substr(1);
  check_refused(with_length(two, std::string(8, 'x')), "tensor 'a': found twice");
  check_refused(with_length(entry("\"\\nF\\u001b\"", "[2]", "[0,0]")), "found '?F?'");
}

TEST_CASE("safetensors: wrong shapes and offsets are refused") {
  const std::string data(8, 'x');
  const auto shape = [&](const char* text) {
    return with_length(entry(R"("F32")", text, "[0,8]"), data);
  };
  check_refused(shape("[-2]"), "found the number -2");
  check_refused(shape("[2.0]"), "expected a whole number");
  check_refused(shape("[\"2\"]"), "expected a whole number");
  check_refused(shape("[99999999999999999999]"), "expected a whole number");
  check_refused(shape("[18446744073709551615]"), "expected fewer than 2^60 elements");
  check_refused(shape("[4294967296,4294967296]"), "expected fewer than 2^60 elements");
  check_refused(shape("[0,4294967296,4294967296]"), "expected fewer than 2^60 elements");
  check_refused(shape("[1,1,1,1,1,2]"), "at most 5");
  check_refused(shape("[3]"), "expected 12 bytes for F32 (3), found data_offsets 0 to 8");
  check_refused(shape("[]"), "expected 4 bytes for F32 ()");
  check_refused(shape("[[2]]"), "found an array");

  const auto offsets = [&](const char* text) {
    return with_length(entry(R"("F32")", "[2]", text), data);
  };
  check_refused(offsets("[8,0]"), "expected data_offsets within 0 to 8, found 8 to 0");
  check_refused(offsets("[0,9]"), "within 0 to 8");
  check_refused(offsets("[18446744073709551608,18446744073709551615]"), "within 0 to 8");
  check_refused(offsets("[0]"), "expected two data_offsets, found 1");
  check_refused(offsets("[0,8,8]"), "at most 2");
  check_refused(offsets("[0,4]"), "expected 8 bytes");

  const auto pair = [&](const char* first, const char* second, size_t bytes) {
    return with_length(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(first) +
                           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                       std::string(bytes, 'x'));
  };
  CHECK(refusal(pair("[4,8]", "[0,4]", 8)) == "");
  check_refused(pair("[0,4]", "[3,7]", 7), "'b': expected data to begin at 4, found 3");
  check_refused(pair("[0,4]", "[0,4]", 4), "expected data to begin at 4");
  check_refused(pair("[0,4]", "[5,9]", 9), "expected data to begin at 4, found 5");
  check_refused(pair("[1,5]", "[5,9]", 9), "'a': expected data to begin at 0");
  check_refused(pair("[0,4]", "[4,8]", 9), "expected 8 bytes of data, found 9");
}

TEST_CASE("safetensors: files that cannot be read or written") {
  Context context;
  const ScratchFolder folder;
  CHECK_THROWS_AS(SafetensorsFile::open(folder.file("missing")), InputError);
  CHECK_THROWS_AS(SafetensorsFile::open(folder.path.string()), InputError);
  CHECK_THROWS_AS(SafetensorsFile::open("/dev/zero"), InputError);
  std::ofstream(folder.file("empty")).close();
  CHECK_THROWS_AS(SafetensorsFile::open(folder.file("empty")), InputError);

  const Tensor one = Tensor::from({1});
  CHECK_THROWS_AS(save_safetensors(folder.file("x"), {{"a", one}, {"a", one}}), InputError);
  CHECK_THROWS_AS(save_safetensors(folder.file("x"), {{"\xff", one}}), InputError);
  CHECK_THROWS_AS(save_safetensors(folder.file("x"), {{"__metadata__", one}}), InputError);
  CHECK_THROWS_AS(save_safetensors(folder.file("x"), {{"undefined", Tensor()}}), InputError);
  CHECK_THROWS_WITH_AS(
      save_safetensors(folder.file("no/x"), {{"a", one}}),
      concat(folder.file("no/x"), ": cannot write: No such file or directory").c_str(), Error);
  CHECK(folder.entries() == 1);
}

TEST_CASE("files: a failed write leaves the old content and nothing else") {
  Context context;
  const ScratchFolder folder;
  const std::string path = folder.file("w.safetensors");
  save_safetensors(path, {{"a", Tensor::from({1, 2, 3})}});
  const std::string before = read_text_file(path);

  // A limit on the size of files stands in for a full disk.
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  ExitCode code = ExitCode::ok;
  try {
    save_safetensors(path, {{"a", Tensor::zeros({1000})}});
  } catch (const Error& error) {
    message = error.what();
    code = error.exit_code();
  }
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  CHECK(message == path + ": cannot write: File too large");
  CHECK(code == ExitCode::runtime);
  CHECK(read_text_file(path) == before);
  CHECK(folder.entries() == 1);

  {
    AtomicFile abandoned(path);
    abandoned.write("half");
  }
  CHECK(read_text_file(path) == before);
  CHECK(folder.entries() == 1);
  write_file_atomically(path, "new");
  CHECK(read_text_file(path) == "new");
  CHECK(folder.entries() == 1);
}

TEST_CASE("printable: no control characters, and a limited length") {
  CHECK(printable("a\tb\x1b[2J\x7f") == "a?b?[2J?");
  CHECK(printable("\xc2\x9b"
                  "31m \xc3\x9f \xc2\xb5") == "\xc2?31m \xc3\x9f \xc2\xb5");
  CHECK(printable("weights", 3) == "wei...");
}
