// Batches of rows of tensors: what belongs together stays together, and ranks share each batch.
#include <doctest/doctest.h>

#include <set>

#include "core/context.h"
#include "core/error.h"
#include "data/row_batches.h"

using namespace heddle;

namespace {

// Row i is (i, 10 i), its label i.
std::vector<Tensor> numbered_rows(int64_t rows) {
  const Tensor x = Tensor::empty_on(Device{}, {rows, 2}),
               y = Tensor::empty_on(Device{}, {rows}, DType::i32);
  for (int64_t i = 0; i < rows; ++i) {
    x.data<float>()[2 * i] = static_cast<float>(i);
    x.data<float>()[2 * i + 1] = static_cast<float>(10 * i);
    y.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  return {x, y};
}

std::vector<int32_t> row_labels(RowBatches& batches, int64_t epoch, int64_t batch) {
  const std::vector<Tensor> found = batches.batch(epoch, batch);
  REQUIRE(found.size() == 2);
  std::vector<int32_t> labels(found[1].data<int32_t>(), found[1].data<int32_t>() + found[1].size());
  const std::vector<float> x = found[0].to_vector();
  for (size_t i = 0; i < labels.size(); ++i) {
    CHECK(x[2 * i] == static_cast<float>(labels[i]));
    CHECK(x[2 * i + 1] == static_cast<float>(10 * labels[i]));
  }
  return labels;
}

}  // namespace

TEST_CASE("row batches: every row at most once in an epoch, in another order in each") {
  Context context;
  RowBatches batches(numbered_rows(20), {.batch_size = 6, .seed = 3});
  REQUIRE(batches.per_epoch() == 3);
  std::vector<int32_t> first;
  std::set<int32_t> seen;
  for (int64_t b = 0; b < 3; ++b)
    for (const int32_t label : row_labels(batches, 0, b)) {
      first.push_back(label);
      CHECK(seen.insert(label).second);
    }
  CHECK(seen.size() == 18);
  CHECK(row_labels(batches, 1, 0) != std::vector<int32_t>(first.begin(), first.begin() + 6));
  CHECK(row_labels(batches, 0, 0) == std::vector<int32_t>(first.begin(), first.begin() + 6));
  RowBatches plain(numbered_rows(5), {.batch_size = 2, .shuffle = false});
  CHECK(row_labels(plain, 7, 1) == std::vector<int32_t>{2, 3});
}

TEST_CASE("row batches: ranks share the batch that one would have") {
  Context context;
  RowBatches whole(numbered_rows(13), {.batch_size = 6, .seed = 3});
  std::vector<int32_t> shared;
  for (int rank = 0; rank < 3; ++rank) {
    RowBatches part(numbered_rows(13), {.batch_size = 2, .seed = 3, .rank = rank, .world_size = 3});
    CHECK(part.per_epoch() == 2);
    for (const int32_t label : row_labels(part, 4, 1)) shared.push_back(label);
  }
  CHECK(shared == row_labels(whole, 4, 1));
}

TEST_CASE("row batches: what is refused") {
  Context context;
  const auto refused = [](const std::vector<Tensor>& columns, const RowBatchOptions& options) {
    CHECK_THROWS_AS(RowBatches(columns, options), InputError);
  };
  refused({}, {});
  refused({Tensor()}, {});
  refused({Tensor::zeros({})}, {.batch_size = 1});
  refused({Tensor::zeros({4, 2}), Tensor::zeros({3})}, {.batch_size = 1});
  refused({Tensor::zeros({0, 3}), Tensor::zeros({4})}, {.batch_size = 1});
  refused(numbered_rows(5), {.batch_size = 3, .world_size = 2});
  refused(numbered_rows(5), {.batch_size = 0});
  refused(numbered_rows(5), {.batch_size = 1, .rank = 1});
  RowBatches batches(numbered_rows(5), {.batch_size = 2});
  CHECK_THROWS_AS(batches.batch(0, 2), InputError);
  CHECK_THROWS_AS(batches.batch(-1, 0), InputError);
}
