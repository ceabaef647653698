// Sparse products and graph convolutions, against dense computations in double.
#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "core/context.h"
#include "core/error.h"
#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/graph_net.h"
#include "layers/sparse.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

using Rows = std::vector<std::vector<double>>;

Rows dense(const Tensor& x) {
  const std::vector<float> values = x.to_vector();
  Rows out;
  for (int64_t r = 0; r < x.shape()[0]; ++r)
    out.emplace_back(values.begin() + r * x.shape()[1], values.begin() + (r + 1) * x.shape()[1]);
  return out;
}

Rows dense(const SparseMatrix& a) {
  Rows out(to_size(a.rows()), std::vector<double>(to_size(a.cols())));
  const SparseMatrix host = a.to(Device{});
  for (int64_t r = 0; r < a.rows(); ++r)
    for (int32_t i = host.starts().data<int32_t>()[r]; i < host.starts().data<int32_t>()[r + 1];
         ++i)
      out[to_size(r)][to_size(host.columns().data<int32_t>()[i])] +=
          double{host.weights().data<float>()[i]};
  return out;
}

Rows product(const Rows& a, const Rows& b, bool transpose_b = false) {
  Rows out(a.size(), std::vector<double>(transpose_b ? b.size() : b[0].size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < out[0].size(); ++j)
      for (size_t k = 0; k < a[0].size(); ++k)
        out[i][j] += a[i][k] * (transpose_b ? b[j][k] : b[k][j]);
  return out;
}

void check_close(const Tensor& found, const Rows& expected) {
  REQUIRE(found.shape()[0] == std::ssize(expected));
  const Rows rows = dense(found);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < rows[i].size(); ++j)
      CHECK(rows[i][j] == doctest::Approx(expected[i][j]).epsilon(1e-5));
}

// Rows of 0 to 7 entries; an entry may come twice in a row.
SparseMatrix random_matrix(int64_t rows, int64_t cols, uint64_t seed) {
  std::vector<int32_t> starts = {0}, columns;
  std::vector<float> weights;
  const Philox rng(seed, 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (uint32_t i = rng.below(to_size(1000 + r), 8); i > 0; --i) {
      columns.push_back(to_int(rng.below(to_size(8 * r + i), static_cast<uint32_t>(cols))));
      weights.push_back(rng.uniform(to_size(5000 + 8 * r + i)) - 0.5f);
    }
    starts.push_back(to_int(columns.size()));
  }
  return {cols, starts, columns, weights};
}

}  // namespace

TEST_CASE("sparse matrix: transpose, bits, and what is refused") {
  Context context(on_test_device());
  const SparseMatrix a = random_matrix(9, 6, 1).with_transpose();
  const Rows rows = dense(a), columns = dense(*a.transpose());
  CHECK(columns.size() == 6);
  for (size_t r = 0; r < 9; ++r)
    for (size_t c = 0; c < 6; ++c) CHECK(rows[r][c] == columns[c][r]);
  const Tensor bits = Tensor::empty_on(Device{}, {2, 2}, DType::u8);
  const uint8_t set[] = {0b10000001, 0b10, 0, 0b100};  // columns 0, 7, 9 and 10
  std::copy_n(set, 4, bits.data<uint8_t>());
  const Rows ones = dense(SparseMatrix::from_bits(bits, 11));
  for (size_t c = 0; c < 11; ++c) {
    CHECK(ones[0][c] == (c == 0 || c == 7 || c == 9 ? 1 : 0));
    CHECK(ones[1][c] == (c == 10 ? 1 : 0));
  }
  CHECK_THROWS_AS(SparseMatrix::from_bits(bits, 10), InputError);  // bit 10 is set
  CHECK_THROWS_AS(SparseMatrix::from_bits(bits, 8), InputError);
  CHECK_THROWS_AS(SparseMatrix(2, {0, 1}, {2}, {1}), InputError);
  CHECK_THROWS_AS(SparseMatrix(2, {0, 1}, {-1}, {1}), InputError);
  CHECK_THROWS_AS(SparseMatrix(2, {0, 2}, {1}, {1}), InputError);
  CHECK_THROWS_AS(SparseMatrix(2, {0, 2, 1}, {1}, {1}), InputError);
  CHECK_THROWS_AS(SparseMatrix(2, {1, 1}, {1}, {1}), InputError);
  CHECK_THROWS_AS(SparseMatrix(2, {0, 1}, {1}, {1, 1}), InputError);
  CHECK_THROWS_AS(SparseMatrix(2, {}, {}, {}), InputError);
}

TEST_CASE("sparse product: a dense one, its gradient, equal bits for any number of threads") {
  Context context(on_test_device());
  for (const int64_t width : {1, 7, 64, 119, 500}) {
    CAPTURE(width);
    const SparseMatrix a = random_matrix(40, 33, 2).with_transpose().to(context.device());
    const Tensor x = random_tensor({33, width}, 3);
    const GradCheck::Network network = [&](Tape& tape, const std::vector<Var>& in) {
      return sparse_matmul(tape, a, in[0]);
    };
    const Tensor y = forward_value(network, {x});
    check_close(y, product(dense(a), dense(x)));
    ParameterStore none;
    none.finalize(1);
    GradCheck(none, {x}, network).run();
    const int threads = omp_get_max_threads();
    omp_set_num_threads(3);
    CHECK(forward_value(network, {x}).to_vector() == y.to_vector());
    omp_set_num_threads(threads);
  }
  Tape tape;
  const SparseMatrix a = random_matrix(4, 3, 5).to(context.device());
  CHECK_THROWS_AS(sparse_matmul(tape, a, Var(Tensor::zeros({4, 2}))), InputError);
  CHECK_THROWS_AS(sparse_matmul(tape, a, Var(Tensor::zeros({3, 2}), true)), InputError);
  CHECK_NOTHROW(sparse_matmul(tape, a, Var(Tensor::zeros({3, 2}))));
  CHECK(tape.size() == 0);  // nothing there needs a gradient
}

TEST_CASE("sparse product: long, short and empty rows, for any number of threads") {
  Context context(on_test_device());
  std::vector<int32_t> starts = {0}, columns;
  std::vector<float> weights;
  for (int r = 0; r < 100; ++r) {  // all entries in row 0 and in every seventh from 21 to 63
    for (int i = 0; i < (r == 0 ? 400 : r % 7 == 0 && r > 20 && r < 64 ? r : 0); ++i) {
      columns.push_back((i * 13 + r) % 50);
      weights.push_back(static_cast<float>(i % 5) - 1.5f);
    }
    starts.push_back(to_int(columns.size()));
  }
  const auto of = [&](int rows) {
    const std::vector<int32_t> some(starts.begin(), starts.begin() + rows + 1);
    const std::vector<int32_t> ends(columns.begin(), columns.begin() + some.back());
    const std::vector<float> factors(weights.begin(), weights.begin() + some.back());
    return SparseMatrix(50, some, ends, factors).to(context.device());
  };
  const Tensor x = random_tensor({50, 40}, 3);
  const int threads = omp_get_max_threads();
  for (const int rows : {0, 1, 17, 100}) {
    CAPTURE(rows);
    const SparseMatrix a = of(rows);
    for (const int n : {1, 2, 5}) {
      omp_set_num_threads(n);
      Tape tape;
      check_close(sparse_matmul(tape, a, Var(here(x))).value(), product(dense(a), dense(x)));
    }
  }
  omp_set_num_threads(threads);
}

TEST_CASE("sparse product: bf16 is summed in fp32") {
  Context context(on_test_device());
  const SparseMatrix a = SparseMatrix(2, {0, 3}, {0, 1, 1}, {1, 1, -1}).to(context.device());
  const Tensor x = Tensor::from({1, 300.0f}, {2, 1}).to(context.device());
  Tape tape({.training = false});
  CHECK(sparse_matmul(tape, a, Var(converted(x, DType::bf16, Layout::plain))).value().to_vector() ==
        std::vector<float>{1});  // rounded after each addition it would be 0 or 2
}

TEST_CASE("sparse linear, bias: values and gradients, also added to others") {
  Context context(on_test_device());
  ParameterStore store;
  Parameter& weight = store.add("w", {5, 33}, uniform_init(1.0f));
  Parameter& bias = store.add("b", {5}, uniform_init(1.0f));
  store.finalize(3);
  const SparseMatrix x = random_matrix(17, 33, 4).with_transpose().to(context.device());
  const GradCheck::Network network = [&](Tape& tape, const std::vector<Var>&) {
    return add_bias(tape, sparse_linear(tape, x, weight), bias);
  };
  Rows expected = product(dense(x), dense(weight.value), true);
  for (Rows::value_type& row : expected)
    for (size_t c = 0; c < 5; ++c) row[c] += double{bias.value.to_vector()[c]};
  check_close(forward_value(network, {}), expected);
  GradCheck(store, {}, network, {.samples = 60}).run();
  Tape tape;
  CHECK_THROWS_AS(sparse_linear(tape, random_matrix(4, 33, 5), weight), InputError);
  CHECK_THROWS_AS(sparse_linear(tape, random_matrix(4, 32, 5).with_transpose(), weight),
                  InputError);
}

TEST_CASE("first rows and sums: values and gradients") {
  Context context(on_test_device());
  ParameterStore none;
  none.finalize(1);
  const Tensor x = random_tensor({5, 3}, 1), z = random_tensor({2, 3}, 2);
  GradCheck(none, {x, z}, [](Tape& tape, const std::vector<Var>& in) {
    return add(tape, first_rows(tape, in[0], 2), in[1]);
  }).run();
  Tape tape;
  CHECK(first_rows(tape, Var(x), 2).value().to_vector() == x.slice(0, 2).to_vector());
  CHECK(first_rows(tape, Var(x), 0).value().size() == 0);
  CHECK_THROWS_AS(first_rows(tape, Var(x), 6), InputError);
}

TEST_CASE("graph network: both convolutions against dense products, and their gradients") {
  Context context(on_test_device());
  for (const GraphConv conv : {GraphConv::sage, GraphConv::gcn}) {
    CAPTURE(conv == GraphConv::sage);
    ParameterStore store;
    const GraphNet model(store, {.conv = conv, .features = 6, .hidden = 8, .classes = 3});
    store.finalize(1);
    randomize(store, 12, 0.5f);
    // Node 0 of the batch has no neighbours.
    const SparseMatrix outer = random_matrix(7, 11, 3).with_transpose().to(context.device());
    const SparseMatrix inner = SparseMatrix(7, {0, 0, 2, 3}, {1, 5, 6}, {0.5f, 0.5f, 1})
                                   .with_transpose()
                                   .to(context.device());
    for (const bool sparse : {false, true}) {
      CAPTURE(sparse);
      NodeFeatures features{random_tensor({11, 6}, 4)};
      if (sparse) features = {{}, random_matrix(11, 6, 5).with_transpose().to(context.device())};
      const GradCheck::Network network = [&](Tape& tape, const std::vector<Var>&) {
        return model.forward(tape, features, {outer, inner});
      };
      const auto parameter = [&](const std::string& name) {
        return dense(store.find(name)->value);
      };
      const auto bias = [&](const std::string& name) {
        return store.find(name)->value.to_vector();
      };
      Rows h = sparse ? dense(features.sparse) : dense(features.dense);
      for (size_t layer = 0; layer < 2; ++layer) {
        const std::string name = concat("convs.", layer);
        const Rows mixed = product(dense(layer == 0 ? outer : inner), h);
        const bool sage = conv == GraphConv::sage;
        Rows y = product(mixed, parameter(name + (sage ? ".lin_l.weight" : ".lin.weight")), true);
        const Rows own = sage ? product(h, parameter(name + ".lin_r.weight"), true) : Rows{};
        const std::vector<float> b = bias(name + (sage ? ".lin_l.bias" : ".bias"));
        for (size_t i = 0; i < y.size(); ++i) {
          for (size_t j = 0; j < y[i].size(); ++j) {
            y[i][j] += double{b[j]} + (sage ? own[i][j] : 0);
            if (layer == 0) y[i][j] = std::max(0.0, y[i][j]);
          }
        }
        h = y;
      }
      check_close(forward_value(network, {}), h);
      GradCheck(store, {}, network, {.max_skipped = 0.1}).run();
    }
  }
  ParameterStore store;
  CHECK_THROWS_AS(GraphNet(store, {.features = 6, .classes = 0}), InputError);
  const GraphNet model(store, {.features = 6, .classes = 2, .layers = 1});
  Tape tape;
  CHECK_THROWS_AS(model.forward(tape, {Tensor::zeros({1, 6})}, {}), InputError);
}
