// Mistakes of a classifier: pairs of classes and the hardest images, counted by one learner or by
// several.
#include <doctest/doctest.h>

#include <cmath>

#include "apps/cli/format.h"
#include "apps/models/mistakes.h"
#include "apps/models/png.h"
#include "core/context.h"
#include "tests/app_helpers.h"
#include "tests/learner_net.h"
#include "tests/loader_helpers.h"

using namespace heddle;

namespace {

constexpr int64_t kClasses = 3;

Tensor labels_of(const std::vector<int32_t>& labels) {
  Tensor out = Tensor::empty_on(Device{}, {std::ssize(labels)}, DType::i32);
  std::ranges::copy(labels, out.data<int32_t>());
  return out;
}

Loader numbered(int64_t images) {
  return {std::make_shared<Numbered>(images), {.size = 8}, {.workers = 0}};
}

// Image i of 40 has label i % 3 and is taken for label i / 4 % 3, the surer the larger i is.
void add_range(Mistakes& mistakes, int64_t first, int64_t end) {
  std::vector<float> logits;
  std::vector<int32_t> labels;
  for (int64_t i = first; i < end; ++i) {
    labels.push_back(static_cast<int32_t>(i % kClasses));
    for (int64_t c = 0; c < kClasses; ++c)
      logits.push_back(c == i / 4 % kClasses ? 0.1f * static_cast<float>(i) : 0.0f);
  }
  const Tensor z = Tensor::empty_on(Device{}, {end - first, kClasses});
  std::ranges::copy(logits, z.data<float>());
  mistakes.add(z, labels_of(labels), first);
}

}  // namespace

TEST_CASE("mistakes: classes by what they are taken for, and the hardest images") {
  Context context;
  Mistakes mistakes(kClasses);
  const Tensor logits = Tensor::empty_on(Device{}, {4, kClasses});
  const std::vector<float> z = {2, 0, 0, 0, 3, 0, 5, 0, 0, 0, NAN, 0};
  std::ranges::copy(z, logits.data<float>());
  mistakes.add(logits, labels_of({0, 0, 2, 1}), 7);  // right, wrong, very wrong, not finite
  const auto json = mistakes.json(numbered(20), {"cat", "dog", "eel"});
  CHECK(json["classes"].dump() == R"(["cat","dog","eel"])");
  CHECK(json["confusion"].dump() == "[[0,0,1],[0,1,1],[2,0,1]]");
  REQUIRE(json["images"].size() == 3);
  const double sum = std::exp(5.0) + 2;
  CHECK(json["images"][0]["image"] == 9);
  CHECK(json["images"][0]["class"] == 2);
  CHECK(json["images"][0]["guess"] == 0);
  CHECK(json["images"][0]["probability"].get<double>() == doctest::Approx(std::exp(5.0) / sum));
  CHECK(json["images"][0]["loss"].get<double>() == doctest::Approx(std::log(sum)));
  CHECK(json["images"][1]["image"] == 8);
  CHECK(json["images"][2]["image"] == 7);
  // The pictures: image i is of the colour i.
  std::vector<uint8_t> sheet;
  for (const uint8_t image : {9, 8, 7}) sheet.insert(sheet.end(), 8 * 8 * 3, image);
  CHECK(json["side"] == 8);
  CHECK(json["sheet"] == base64(encode_png(sheet, 8, 3 * 8, 3)));
}

TEST_CASE("mistakes: only so many images; a label out of range") {
  Context context;
  Mistakes mistakes(kClasses);
  add_range(mistakes, 0, 25);
  add_range(mistakes, 25, 40);
  const auto json = mistakes.json(numbered(40), {});
  REQUIRE(json["images"].size() == Mistakes::kImages);
  CHECK(json["images"][0]["image"] == 38);  // 39 is right
  for (size_t i = 1; i < Mistakes::kImages; ++i)
    CHECK(json["images"][i - 1]["loss"] >= json["images"][i]["loss"]);
  const Tensor wrong = Tensor::empty_on(Device{}, {1, kClasses});
  wrong.fill_zero();
  CHECK(contains(message_of([&] { mistakes.add(wrong, labels_of({3}), 0); }), "3"));
}

TEST_CASE("mistakes: three learners have together what one has alone") {
  Context context;
  Mistakes alone(kClasses);
  add_range(alone, 0, 40);
  const auto expected = alone.json(numbered(40), {});
  expect_none(run_ranks(3, [&](Communicator& comm) {
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm);
    Mistakes mistakes(kClasses);
    if (comm.rank() < 2)  // the third one has seen nothing
      add_range(mistakes, comm.rank() == 0 ? 15 : 0, comm.rank() == 0 ? 40 : 15);
    mistakes.combine(optimizer);
    if (mistakes.json(numbered(40), {}) != expected) throw Error("the learners disagree");
  }));
}

TEST_CASE("format: base 64, with the examples of RFC 4648") {
  const std::pair<const char*, const char*> examples[] = {
      {"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
      {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe", "//4="}};
  for (const auto& [bytes, text] : examples) CHECK(base64(bytes) == text);
}
