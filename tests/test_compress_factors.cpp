// PowerSGD: its two steps alone, and the whole against a plain implementation in double.
#include <algorithm>
#include <cmath>

#include "compress/low_rank.h"
#include "tests/compress_helpers.h"

using namespace heddle;

namespace {

using Matrix = std::vector<std::vector<double>>;  // by row

Matrix zeros(size_t rows, size_t columns) { return Matrix(rows, std::vector<double>(columns)); }

// a (n, k) b (k, m)
Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix c = zeros(a.size(), b[0].size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b[0].size(); ++j)
      for (size_t k = 0; k < b.size(); ++k) c[i][j] += a[i][k] * b[k][j];
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t = zeros(a[0].size(), a.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

// Columns, by Gram-Schmidt.
void orthogonalize_columns(Matrix& a) {
  for (size_t j = 0; j < a[0].size(); ++j) {
    for (size_t k = 0; k < j; ++k) {
      double share = 0;
      for (auto& row : a) share += row[j] * row[k];
      for (auto& row : a) row[j] -= share * row[k];
    }
    double norm = 0;
    for (auto& row : a) norm += row[j] * row[j];
    for (auto& row : a) row[j] /= std::sqrt(norm);
  }
}

Matrix matrix_of(const Values& x, size_t columns) {
  Matrix m = zeros(x.size() / columns, columns);
  for (size_t i = 0; i < x.size(); ++i) m[i / columns][i % columns] = x[i];
  return m;
}

double worst_difference(const Values& a, const Values& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

Values scaled_sum(const std::vector<RankRun>& runs, size_t step, const std::string& layer) {
  Values sum = part_of(runs[0].given[step], layer);
  for (size_t r = 1; r < runs.size(); ++r) {
    const Values more = part_of(runs[r].given[step], layer);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  return sum;
}

// Gradients of fc.weight and conv2.weight that are sums of `rank` products.
void fill_low_rank(CompressModel& model, int ranks, uint64_t key) {
  const Philox rng(4, key);
  for (Parameter& p : model.store.parameters()) {
    const int64_t rows = p.shape()[0], columns = p.size() / rows;
    for (int64_t i = 0; i < p.size(); ++i) {
      float v = 0;
      for (int k = 0; k < ranks; ++k)
        v += rng.normal(static_cast<uint64_t>(k * 10000 + i / columns)) *
             rng.normal(static_cast<uint64_t>(k * 10000 + 5000 + i % columns));
      p.grad.data<float>()[i] = v;
    }
  }
}

}  // namespace

TEST_CASE("orthogonalize: orthonormal rows, also of rows that depend on each other; zeros") {
  constexpr int64_t kRank = 4, kLength = 60;
  const Philox rng(1, 1);
  for (int kind = 0; kind < 6; ++kind) {
    CAPTURE(kind);
    std::vector<float> x(kRank * kLength);
    for (size_t i = 0; i < x.size(); ++i) x[i] = rng.normal(i) * (kind == 1 ? 1e-25f : 1);
    const auto row = [&](int64_t k) { return x.begin() + k * kLength; };
    if (kind == 2) std::copy_n(row(0), kLength, row(2));  // twice the same
    if (kind == 3) std::fill_n(row(1), kLength, 0.0f);
    if (kind == 4)  // all along one axis
      for (size_t i = 0; i < x.size(); ++i) x[i] = i % kLength == 7 ? x[i] : 0;
    if (kind == 5)  // in a space of two axes
      for (size_t i = 0; i < x.size(); ++i) x[i] = i % kLength == 7 || i % kLength == 9 ? x[i] : 0;
    orthogonalize(x.data(), kRank, kLength);
    int present = 0;
    for (int64_t a = 0; a < kRank; ++a)
      for (int64_t b = 0; b <= a; ++b) {
        double dot = 0;
        for (int64_t i = 0; i < kLength; ++i)
          dot += double{x[static_cast<size_t>(a * kLength + i)]} *
                 x[static_cast<size_t>(b * kLength + i)];
        if (a == b && dot == 0) continue;  // dropped
        present += a == b;
        CHECK(dot == doctest::Approx(a == b ? 1 : 0).epsilon(1e-6));
      }
    CHECK(present >= (kind == 4 ? 1 : kind == 5 ? 2 : 3));
    CHECK(present <= (kind == 4 ? 1 : kind == 5 ? 2 : 4));
  }
}

TEST_CASE("powersgd: exact where the gradients have the rank that travels, for any P") {
  for (int p : {1, 2, 3}) {
    CAPTURE(p);
    // The sum over ranks has rank 2, its parts are different.
    const RunOptions o{.steps = 4, .fill = [](CompressModel& m, int rank, int64_t step) {
                         fill_low_rank(m, 2, 1);
                         for (Parameter& x : m.store.parameters())
                           for (float& v : std::span(x.grad.data<float>(), x.size()))
                             v *= 1 + static_cast<float>(rank + step);
                       }};
    const auto runs = reduce_ranks(p, "powersgd:rank=2", o);
    for (size_t s = 0; s < 4; ++s)
      for (const std::string layer : {"fc.weight", "conv2.weight", "bn1.weight"}) {
        CAPTURE(layer);
        // From the second step on there is a residual where the ranks' own gradients differ from
        // their mean; sums of residuals stay zero.
        CHECK(worst_difference(part_of(runs[0].sums[s], layer), scaled_sum(runs, s, layer)) < 1e-3);
      }
  }
}

TEST_CASE("powersgd: five steps as a plain implementation in double") {
  constexpr int kRanks = 3;
  constexpr size_t kLow = 3, kColumns = 50, kRows = 35;
  const RunOptions o{.steps = 5};
  const auto runs = reduce_ranks(kRanks, "powersgd:rank=3", o);
  // The first factor is the reducer's; it is no part of the algorithm where it comes from.
  Matrix q = zeros(kColumns, kLow);
  {
    Context context;
    CompressModel model;
    const auto reducer = make_reducer(parse_compress("powersgd:rank=3"), o.reducer, model.store);
    for (const auto& [name, x] : reducer->named_state())
      if (name == "factor.fc.weight") q = transposed(matrix_of(x.to_vector(), kColumns));
  }
  CHECK(q[0].size() == kLow);
  std::vector<Matrix> error(kRanks, zeros(kRows, kColumns));
  for (size_t s = 0; s < 5; ++s) {
    std::vector<Matrix> m;
    Matrix p = zeros(kRows, kLow), next = zeros(kColumns, kLow);
    for (size_t r = 0; r < kRanks; ++r) {
      m.push_back(matrix_of(part_of(runs[r].given[s], "fc.weight"), kColumns));
      for (size_t i = 0; i < kRows; ++i)
        for (size_t j = 0; j < kColumns; ++j) m[r][i][j] += error[r][i][j];
      const Matrix mine = multiply(m[r], q);
      for (size_t i = 0; i < kRows; ++i)
        for (size_t k = 0; k < kLow; ++k) p[i][k] += mine[i][k] / kRanks;
    }
    orthogonalize_columns(p);
    for (size_t r = 0; r < kRanks; ++r) {
      const Matrix mine = multiply(transposed(m[r]), p);
      for (size_t j = 0; j < kColumns; ++j)
        for (size_t k = 0; k < kLow; ++k) next[j][k] += mine[j][k] / kRanks;
    }
    q = next;
    const Matrix mean = multiply(p, transposed(q));
    const Values got = part_of(runs[0].sums[s], "fc.weight");
    double worst = 0, worst_error = 0;
    for (size_t r = 0; r < kRanks; ++r)
      for (size_t i = 0; i < kRows; ++i)
        for (size_t j = 0; j < kColumns; ++j) {
          error[r][i][j] = m[r][i][j] - mean[i][j];
          worst = std::max(worst, std::abs(got[i * kColumns + j] / kRanks - mean[i][j]));
          const double kept = runs[r].states[s].at("residual.fc.weight")[i * kColumns + j];
          worst_error = std::max(worst_error, std::abs(kept - error[r][i][j]));
        }
    CHECK(worst < 1e-4);
    CHECK(worst_error < 1e-4);
  }
}

TEST_CASE("powersgd: one row of gradients, no gradient, and after both a full one") {
  const RunOptions o{.steps = 6, .fill = [](CompressModel& m, int, int64_t step) {
                       if (step >= 3) return fill_low_rank(m, 2, 9);
                       m.fill([](uint64_t) { return 0.0f; });
                       auto* row = m.store.find("fc.weight")->grad.data<float>() + 3 * 50;
                       for (int i = 0; i < 50 && step != 1; ++i) row[i] = static_cast<float>(i);
                     }};
  const auto runs = reduce_ranks(2, "powersgd:rank=2", o);
  for (size_t s = 0; s < 6; ++s)
    CHECK(worst_difference(part_of(runs[0].sums[s], "fc.weight"),
                           scaled_sum(runs, s, "fc.weight")) < 2e-3);
}

TEST_CASE("powersgd: a rank that does not pay sends the residual along and travels dense") {
  const RunOptions o{.steps = 4, .before = [](Reducer& reducer, int64_t step) {
                       if (step == 2) reducer.set_choice("fc.weight", 20);
                       if (step == 3) reducer.set_choice("fc.weight", 1);
                     }};
  const auto runs = reduce_ranks(2, "powersgd:rank=2", o);
  Values expected = scaled_sum(runs, 2, "fc.weight");
  for (const RankRun& run : runs)
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] += run.states[1].at("residual.fc.weight")[i];
  CHECK(worst_difference(part_of(runs[0].sums[2], "fc.weight"), expected) < 1e-5);
  CHECK(runs[0].states[2].at("residual.fc.weight") == Values(1750));
  CHECK(runs[0].states[3].at("factor.fc.weight").size() == 50);
}

TEST_CASE("powersgd: turned dense in a step that is refused, nothing is lost") {
  for (const bool single : {false, true}) {
    CAPTURE(single);  // with compressed layers beside it, and alone
    const RunOptions o{.steps = 4,
                       .fill =
                           [](CompressModel& m, int rank, int64_t step) {
                             m.fill_random(rank, step);
                             if (step == 2 && rank == 1)
                               m.store.find("fc.weight")->grad.data<float>()[20] = NAN;
                           },
                       .before =
                           [](Reducer& reducer, int64_t step) {
                             if (step == 2) reducer.set_choice("fc.weight", 20);
                           },
                       .single_layers = single};
    const auto runs = reduce_ranks(2, "powersgd:rank=2", o);
    Values expected = scaled_sum(runs, 3, "fc.weight");
    for (const RankRun& run : runs) {
      CHECK(run.accepted == std::vector<bool>{true, true, false, true});
      const Values& owed = run.states[1].at("residual.fc.weight");
      CHECK(run.states[2].at("residual.fc.weight") == owed);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += owed[i];
    }
    CHECK(worst_difference(part_of(runs[0].sums[3], "fc.weight"), expected) < 1e-5);
  }
}

TEST_CASE(
    "powersgd: after a change of rank what was owed is, and other layers know their factors") {
  const RunOptions o{.steps = 9, .before = [](Reducer& reducer, int64_t step) {
                       if (step == 3) reducer.set_choice("fc.weight", 1);
                       if (step == 6) reducer.set_choice("fc.weight", 4);
                     }};
  const auto runs = reduce_ranks(2, "powersgd:rank=2", o);  // of two, sums have one order
  const auto plain = reduce_ranks(2, "powersgd:rank=2", {.steps = 9});
  for (const size_t s : {3, 6, 8}) {
    CHECK(runs[0].states[s].at("factor.conv2.weight") ==
          plain[0].states[s].at("factor.conv2.weight"));
    for (const RankRun& run : runs)  // the same random numbers on all ranks
      CHECK(run.states[s].at("factor.fc.weight") == runs[0].states[s].at("factor.fc.weight"));
    CHECK(runs[0].states[s].at("factor.fc.weight").size() == (s == 3 ? 50 : 200));
  }
  Values missing(1750);
  for (size_t s = 0; s < 9; ++s) {
    const Values given = scaled_sum(runs, s, "fc.weight"),
                 sum = part_of(runs[0].sums[s], "fc.weight");
    for (size_t i = 0; i < missing.size(); ++i) missing[i] += given[i] - sum[i];
  }
  for (const RankRun& run : runs)
    for (size_t i = 0; i < missing.size(); ++i)
      missing[i] -= run.states[8].at("residual.fc.weight")[i];
  CHECK(worst_difference(missing, Values(1750)) < 2e-4);
}
