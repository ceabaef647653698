// PowerSGD (Vogels et al. 2019, arXiv 1905.13727, algorithm 1): a layer (O, ...) is a matrix M of O
// rows, residual included, and is sent as two factors of low rank, found by one step of power
// iteration from the last step's factor. A bucket takes two sums over ranks: all P = M Q with the
// dense layers, then, with P orthonormal, all Q = M^T P. As in the paper a rank's residual is its
// own M minus the mean over ranks of P Q^T, not minus its own approximation.
#include <algorithm>
#include <cmath>

#include "compress/codecs/low_rank.h"
#include "compress/compressed_reducer.h"
#include "core/gemm.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

constexpr int kIterations = 5;  // to estimate the error of a low rank, as L-GreCo's authors do

class PowerSgd : public CompressedReducer {
 public:
  explicit PowerSgd(const ReducerSetup& setup)
      : CompressedReducer(setup), seed_(setup.options.seed) {
    feedback_.emplace();
  }

  NamedTensors named_state() const override {
    auto state = CompressedReducer::named_state();
    for (const auto& [name, layer] : layers_)
      if (layer.compressed && shrinks(layer)) state.emplace_back("factor." + name, factor(layer));
    return state;
  }

 protected:
  bool shrinks(const Layer& layer) const override {
    const Matrix m = matrix(layer);
    return bytes(layer, layer.choice) * 2 < m.rows * m.columns * 4;
  }

  // From half the low rank to twice that, as long as the factors are smaller than half the layer.
  std::vector<double> settings(const Layer& layer) const override {
    std::vector<double> ranks;
    Layer other = layer;
    other.choice = std::max(1.0, std::floor(layer.choice / 2));
    for (; other.choice <= 2 * layer.choice && shrinks(other); ++other.choice)
      ranks.push_back(other.choice);
    return ranks;
  }
  int64_t bytes(const Layer& layer, double rank) const override {
    const Matrix m = matrix(layer);
    return to_int64(rank) * (m.rows + m.columns) * value_bytes();
  }
  // Takes a few steps of power iteration from the first factor. The leading rows of orthonormal
  // factors are those of an iteration with fewer rows, so one iteration serves all low ranks.
  std::vector<double> lost_norms(const Layer& layer, const Tensor& x,
                                 const std::vector<double>& ranks) const override {
    const auto [rows, columns, rank] = matrix(layer);
    const auto most = to_int64(ranks.back());
    const Tensor m = x.reshape({rows, columns}), q = first_factor(layer, most);
    const Tensor p = Tensor::empty_on(Device{}, {most, rows});
    for (int i = 0; i < kIterations; ++i) {
      cpu::next_factor(q, 1, q);
      gemm(q, m, p, {.transpose_b = true});
      cpu::orthogonalize({p});
      gemm(p, m, q);
    }
    std::vector<double> lost;
    double rest = squared_norm(x);
    for (int64_t k = 0; k < most; ++k) {
      rest -= squared_norm(q.slice(k, k + 1));
      if (k + 1 == ranks[lost.size()]) lost.push_back(std::sqrt(std::max(0.0, rest)));
    }
    return lost;
  }

  // The work of a step with this layer, except for its residual.
  double codec_seconds(const Layer& layer, const Tensor& x, double rank) const override {
    const Matrix now = matrix(layer);
    const auto r = to_int64(rank);
    const Tensor m = x.reshape({now.rows, now.columns}), q = first_factor(layer, r);
    const Tensor p = Tensor::empty_on(Device{}, {r, now.rows});
    const Tensor product = Tensor::empty_on(Device{}, {x.size()});
    const auto work = [&] {
      gemm(q, m, p, {.transpose_b = true});
      cpu::orthogonalize({p});
      gemm(p, m, q);
      cpu::multiply_factors(p, q, product);
    };
    work();  // the first product of a size also generates its kernel
    return timed(work);
  }

  bool works_on_devices() const override { return true; }
  bool leaves_checks_to_sums() const override { return true; }
  bool exchange(Exchange& e) override {
    NamedTensors p, q;
    multiply(e, p);
    if (!sum_values(e, e.dense, p, coding_of_values())) return false;
    orthogonalize_and_multiply(e, p, q);
    if (!sum_values(e, {}, q, coding_of_values())) return false;
    const TraceRange range("compress", "P Q^T, residuals");
    for (size_t i = 0; i < p.size(); ++i)
      finish(e.compressed[i], p[i].second, q[i].second, e.comm.size());
    return true;
  }

 private:
  // P = M Q, for every layer.
  void multiply(const Exchange& e, NamedTensors& p) const {
    const TraceRange range("compress", "P = M Q");
    for (const Item& item : e.compressed) {
      const Matrix m = matrix(*item.layer);
      p.emplace_back(item.name(), Tensor::empty_on(e.device, {m.rank, m.rows}));
      gemm(factor(*item.layer, e.device), item.tensor.reshape({m.rows, m.columns}), p.back().second,
           {.transpose_b = true});
      explain("select", item.name(), [&] {
        return Figures{
            {"rank", to_double(m.rank)},
            {"values in two factors", to_double(m.rank * (m.rows + m.columns)), Unit::count},
            {"elements", to_double(item.n()), Unit::count}};
      });
    }
  }

  // Makes P orthonormal, then Q = M^T P.
  static void orthogonalize_and_multiply(const Exchange& e, const NamedTensors& p,
                                         NamedTensors& q) {
    const TraceRange range("compress", "Q = M^T P");
    std::vector<Tensor> factors;
    for (const auto& [name, x] : p) factors.push_back(x);
    HEDDLE_DISPATCH(e.device, orthogonalize(factors));
    for (size_t i = 0; i < p.size(); ++i) {
      const Item& item = e.compressed[i];
      const Matrix m = matrix(*item.layer);
      q.emplace_back(item.name(), Tensor::empty_on(e.device, {m.rank, m.columns}));
      gemm(p[i].second, item.tensor.reshape({m.rows, m.columns}), q.back().second);
    }
  }

  struct Matrix {
    int64_t rows, columns, rank;
  };
  static Matrix matrix(const Layer& layer) {
    const int64_t rows = layer.parameter->shape()[0];
    return {rows, layer.size() / rows, to_int64(layer.choice)};
  }

  // Returns the factor (low rank, columns) that a step begins with, moved to `device`. Random at
  // first and after a change of the low rank, the same on all ranks.
  Tensor factor(const Layer& layer, Device device = {}) const {
    const Matrix m = matrix(layer);
    Tensor& q = factors_[layer.parameter->name];
    if (!q.defined() || q.shape()[0] != m.rank) q = first_factor(layer, m.rank);
    return q = q.to(device);
  }
  Tensor first_factor(const Layer& layer, int64_t rank) const {
    Tensor q = Tensor::empty_on(Device{}, {rank, matrix(layer).columns});
    normal_init(1)(q.data<float>(), q.size(), Philox(seed_, stream_id(Stream::codec, layer.index)));
    return q;
  }

  // Writes the sum of the ranks' approximations and the new residual. p is orthonormal, q the sum
  // over ranks.
  void finish(const Item& item, const Tensor& p, const Tensor& q, int ranks) {
    const Device device = item.sum.device();
    HEDDLE_DISPATCH(device, multiply_factors(p, q, item.sum));
    axpy(to_float(-1.0 / ranks), item.sum, item.tensor);
    HEDDLE_DISPATCH(device, next_factor(q, ranks, factor(*item.layer, device)));
  }

  uint64_t seed_;
  mutable std::map<std::string, Tensor> factors_;
};

}  // namespace

std::unique_ptr<Reducer> make_power_sgd(const ReducerSetup& setup) {
  return std::make_unique<PowerSgd>(setup);
}

}  // namespace heddle
