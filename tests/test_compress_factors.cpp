// PowerSGD: its two steps separately, and the whole against a plain implementation in double.
#include <algorithm>
#include <cmath>

#include "compress/codecs/low_rank.h"
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

// a += factor * b.
void add(Matrix& a, double factor, const Matrix& b) {
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j) a[i][j] += factor * b[i][j];
}

// ||a - b|| / ||b||
double distance(Matrix a, const Matrix& b) {
  double difference = 0, norm = 0;
  add(a, -1, b);
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j)
      difference += a[i][j] * a[i][j], norm += b[i][j] * b[i][j];
  return std::sqrt(difference / norm);
}

// Bounds the distance between a step in f32 and one in double, for rank r = 3: an element of the
// result is rounded once as p, 2 r times by Gram-Schmidt's two rounds, once as q, 2 r - 1 times in
// the product of the factors and once as a mean, each time by at most 2^-24 of itself. That makes
// 14 roundings, which add up like a random walk, so that five steps with their residuals stay below
// their sum as well (measured: 7).
constexpr double kRounding = 14 * 0x1p-24;

// PowerSGD's algorithms 1 and 2 literally, for all learners at once.
struct PlainPowerSgd {
  Matrix q;                       // (columns, rank)
  std::vector<Matrix> residuals;  // by learner
  // Gradients by learner (rows, columns); returns what is applied.
  Matrix step(const std::vector<Matrix>& gradients) {
    const size_t learners = gradients.size(), rows = gradients[0].size(), rank = q[0].size();
    residuals.resize(learners, zeros(rows, q.size()));
    Matrix p = zeros(rows, rank), next = zeros(q.size(), rank);
    for (size_t r = 0; r < learners; ++r) {
      add(residuals[r], 1, gradients[r]);
      add(p, 1.0 / static_cast<double>(learners), multiply(residuals[r], q));
    }
    orthogonalize_columns(p);
    for (const Matrix& m : residuals)
      add(next, 1.0 / static_cast<double>(learners), multiply(transposed(m), p));
    q = next;
    const Matrix mean = multiply(p, transposed(q));
    for (Matrix& m : residuals) add(m, -1, mean);
    return mean;
  }
};

// The same with the reducer's functions. Products with a whole gradient, which the reducer leaves
// to a library, are in double.
struct WithKernels {
  Matrix q;
  std::vector<Matrix> residuals;
  Matrix step(const std::vector<Matrix>& gradients) {
    const size_t rank = q[0].size(), rows = gradients[0].size(), columns = q.size();
    residuals.resize(gradients.size(), zeros(rows, columns));
    Matrix p_sum = zeros(rows, rank), q_sum = zeros(columns, rank);
    for (size_t r = 0; r < gradients.size(); ++r) {
      add(residuals[r], 1, gradients[r]);
      add(p_sum, 1, multiply(residuals[r], q));
    }
    const Tensor p = factor_of(p_sum), next = factor_of(q);
    cpu::orthogonalize({p});
    for (const Matrix& m : residuals) add(q_sum, 1, multiply(transposed(m), columns_of(p)));
    const Tensor sum = Tensor::zeros({std::ssize(gradients[0]), std::ssize(q)});
    cpu::multiply_factors(p, factor_of(q_sum), sum);
    const int learners = static_cast<int>(gradients.size());
    cpu::next_factor(factor_of(q_sum), learners, next);
    q = columns_of(next);
    Matrix mean = zeros(rows, columns);
    add(mean, 1.0 / learners, matrix_of(sum.to_vector(), columns));
    for (Matrix& m : residuals) add(m, -1, mean);
    return mean;
  }

 private:
  // A factor stores each column of the matrix as a contiguous row.
  static Tensor factor_of(const Matrix& m) {
    const Tensor out = Tensor::zeros({std::ssize(m[0]), std::ssize(m)});
    for (size_t i = 0; i < m.size(); ++i)
      for (size_t j = 0; j < m[i].size(); ++j)
        out.data<float>()[j * m.size() + i] = static_cast<float>(m[i][j]);
    return out;
  }
  static Matrix columns_of(const Tensor& factor) {
    return transposed(matrix_of(factor.to_vector(), static_cast<size_t>(factor.shape()[1])));
  }
};

// The columns of q as next_factor() scales them, by powers of two.
Matrix scaled_columns(Matrix q) {
  for (size_t k = 0; k < q[0].size(); ++k) {
    double size = 0;
    for (const auto& row : q) size += std::abs(row[k]);
    for (auto& row : q) row[k] = std::ldexp(row[k], -std::ilogb(size));
  }
  return q;
}

// Fills every parameter's gradient with a sum of `ranks` outer products.
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

TEST_CASE("orthogonalize: orthonormal rows, also from dependent rows and zeros") {
  Context context;
  constexpr int64_t kRank = 4, kLength = 60;
  const Philox rng(1, 1);
  for (int kind = 0; kind < 6; ++kind) {
    CAPTURE(kind);
    const Tensor factor = Tensor::zeros({kRank, kLength});
    const std::span<float> x(factor.data<float>(), kRank * kLength);
    for (size_t i = 0; i < x.size(); ++i) x[i] = rng.normal(i) * (kind == 1 ? 1e-25f : 1);
    const auto row = [&](int64_t k) { return x.begin() + k * kLength; };
    if (kind == 2) std::copy_n(row(0), kLength, row(2));  // two equal rows
    if (kind == 3) std::fill_n(row(1), kLength, 0.0f);
    if (kind == 4)  // all along one axis
      for (size_t i = 0; i < x.size(); ++i) x[i] = i % kLength == 7 ? x[i] : 0;
    if (kind == 5)  // in a space of two axes
      for (size_t i = 0; i < x.size(); ++i) x[i] = i % kLength == 7 || i % kLength == 9 ? x[i] : 0;
    cpu::orthogonalize({factor});
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

TEST_CASE("powersgd: exact for gradients of the low rank that is sent, for any P") {
  for (int p : {1, 2, 3}) {
    CAPTURE(p);
    // The sum over ranks has rank 2; the ranks' gradients differ by a factor.
    const ReduceOptions o{.steps = 4, .fill = [](CompressModel& m, int rank, int64_t step) {
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

TEST_CASE("powersgd: five steps match a reference in double, in fp32 and in double") {
  constexpr int kRanks = 3;
  constexpr size_t kLow = 3;
  const ReduceOptions o{.steps = 5};
  const auto runs = reduce_ranks(kRanks, "powersgd:rank=3", o);
  for (const std::string layer : {"fc.weight", "conv2.weight"}) {
    CAPTURE(layer);
    // The first factor is the reducer's: the algorithm does not say where it comes from.
    Context context;
    CompressModel model;
    const auto reducer = make_reducer(parse_compress("powersgd:rank=3"), o.reducer, model.store);
    const Parameter& weight = *model.store.find(layer);
    const auto columns = static_cast<size_t>(weight.size() / weight.shape()[0]);
    Matrix q;
    for (const auto& [name, x] : reducer->named_state())
      if (name == "factor." + layer) q = transposed(matrix_of(x.to_vector(), columns));
    REQUIRE(q.size() == columns);
    CHECK(q[0].size() == kLow);
    PlainPowerSgd plain{q, {}};
    WithKernels same{q, {}};
    for (size_t s = 0; s < 5; ++s) {
      std::vector<Matrix> gradients;
      for (const RankRun& run : runs)
        gradients.push_back(matrix_of(part_of(run.given[s], layer), columns));
      const Matrix mean = plain.step(gradients);
      CHECK(distance(same.step(gradients), mean) < kRounding);
      CHECK(distance(same.q, scaled_columns(plain.q)) < kRounding);
      Values sum = part_of(runs[0].sums[s], layer);
      for (float& v : sum) v /= kRanks;
      CHECK(distance(matrix_of(sum, columns), mean) < kRounding);
      for (size_t r = 0; r < kRanks; ++r) {
        CHECK(distance(same.residuals[r], plain.residuals[r]) < kRounding);
        const Values& kept = runs[r].states[s].at("residual." + layer);
        CHECK(distance(matrix_of(kept, columns), plain.residuals[r]) < kRounding);
      }
    }
  }
}

TEST_CASE("powersgd: exact at full rank and for gradients of low rank") {
  Context context;
  const Philox rng(5, 5);
  const auto random = [&](size_t rows, size_t columns, uint64_t key) {
    Matrix m = zeros(rows, columns);
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j)
        m[i][j] = static_cast<double>(rng.normal(key * 100000 + i * 1000 + j));
    return m;
  };
  const auto check_exact = [](WithKernels learners, const std::vector<Matrix>& gradients) {
    Matrix mean = zeros(gradients[0].size(), gradients[0][0].size());
    for (const Matrix& g : gradients) add(mean, 1.0 / std::ssize(gradients), g);
    for (int step = 0; step < 3; ++step)
      CHECK(distance(learners.step(gradients), mean) < kRounding);
  };
  check_exact({random(50, 35, 1), {}}, {random(35, 50, 2), random(35, 50, 3)});
  check_exact({random(35, 35, 1), {}}, {random(50, 35, 2), random(50, 35, 3)});
  const Matrix left = random(35, 4, 4), right = random(4, 50, 5);
  check_exact({random(50, 4, 1), {}}, {multiply(left, right), multiply(random(35, 4, 4), right)});
}

TEST_CASE("powersgd: one row of gradients, then none, then a full gradient") {
  const ReduceOptions o{.steps = 6, .fill = [](CompressModel& m, int, int64_t step) {
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

TEST_CASE("powersgd: a layer too small for its rank is sent dense, with its residual") {
  const ReduceOptions o{.steps = 4, .before = [](Reducer& reducer, int64_t step) {
                          if (step == 2) reducer.set_choice("fc.weight", 20);
                          if (step == 3) reducer.set_choice("fc.weight", 1);
                        }};
  const auto runs = reduce_ranks(2, "powersgd:rank=2", o);
  Values expected = scaled_sum(runs, 2, "fc.weight");
  for (const RankRun& run : runs)
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] += run.states[1].at("residual.fc.weight")[i];
  CHECK(worst_difference(part_of(runs[0].sums[2], "fc.weight"), expected) < 1e-5);
  CHECK(
      !runs[0].states[2].contains("residual.fc.weight"));  // no residual is kept once it is applied
  CHECK(runs[0].states[3].at("factor.fc.weight").size() == 50);
}

TEST_CASE("powersgd: no loss if a layer becomes dense in a rejected step") {
  for (const bool single : {false, true}) {
    CAPTURE(single);  // alone, and with other compressed layers
    const ReduceOptions o{.steps = 4,
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

TEST_CASE("powersgd: a change of rank keeps residuals and other layers' factors") {
  const ReduceOptions o{.steps = 9, .before = [](Reducer& reducer, int64_t step) {
                          if (step == 3) reducer.set_choice("fc.weight", 1);
                          if (step == 6) reducer.set_choice("fc.weight", 4);
                        }};
  const auto runs = reduce_ranks(2, "powersgd:rank=2", o);  // sums of two have only one order
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

// Gradients of all steps are so large that a product with a factor of their own size would
// overflow.
TEST_CASE("powersgd: gradients of 1e20 and 1e30 are delivered like ordinary ones") {
  const auto run = [](float size) {
    return reduce_ranks(
        2, "powersgd:rank=2",
        {.steps = 5, .fill = [size](CompressModel& m, int rank, int64_t step) {
           m.fill_random(rank, step);
           for (float& x : std::span(m.store.grads().data<float>(), m.store.grads().size()))
             x *= size;
         }});
  };
  const auto plain = run(1);
  for (const float size : {0x1p66f, 0x1p94f}) {  // 7e19; 2e28, which residuals raise 50-fold
    CAPTURE(size);
    const auto large = run(size);
    CHECK(large[0].accepted == std::vector<bool>(5, true));
    for (size_t s = 0; s < 5; ++s) {  // powers of two are exact
      Values expected = plain[1].sums[s];
      for (float& x : expected) x *= size;
      CHECK(large[1].sums[s] == expected);
      CHECK(large[0].states[s].at("factor.fc.weight").size() == 100);
    }
  }
}

TEST_CASE("powersgd: ordinary gradients pass after bursts of 1e30, applied and rejected") {
  constexpr int64_t kBurst = 2, kInfinite = 4, kSteps = 200;
  const auto runs = reduce_ranks(
      2, "powersgd:rank=2", {.steps = kSteps, .fill = [](CompressModel& m, int, int64_t step) {
                               fill_low_rank(m, 2, 3);
                               const auto values =
                                   std::span(m.store.grads().data<float>(), m.store.grads().size());
                               const float largest = *std::ranges::max_element(
                                   values, {}, [](float x) { return std::abs(x); });
                               if (step == kBurst)
                                 for (float& x : values) x *= 0.99e30f / std::abs(largest);
                               if (step == kInfinite)
                                 m.store.find("fc.weight")->grad.data<float>()[3] = INFINITY;
                             }});
  std::vector<bool> accepted(kSteps, true);
  accepted[kInfinite] = false;  // that step only
  CHECK(runs[0].accepted == accepted);
  const auto error = [&](size_t s) {
    const Values given = scaled_sum(runs, s, "fc.weight");
    double largest = 0;
    for (const float x : given) largest = std::max(largest, double{std::abs(x)});
    return worst_difference(part_of(runs[0].sums[s], "fc.weight"), given) / largest;
  };
  CHECK(error(kBurst) < 1e-4);
  CHECK(error(kSteps - 1) < 1e-2);  // what rounding had left of the burst has been sent by then
}
