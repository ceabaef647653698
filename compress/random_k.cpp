// Random-k (Stich et al. 2018, arXiv 1809.07599): every rank draws the same indices from random
// numbers that depend on seed, step and layer alone, so that only values are sent.
#include <cmath>

#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "core/kernels.h"

namespace heddle {
namespace {

class RandomK : public CompressedReducer {
 public:
  explicit RandomK(const ReducerSetup& setup)
      : CompressedReducer(setup), seed_(setup.options.seed) {
    feedback_.emplace();
  }

 protected:
  bool works_on_devices() const override { return true; }
  bool leaves_checks_to_sums() const override { return true; }
  bool exchange(Exchange& e) override {
    return sum_at_indices(e, *feedback_, choose(e), coding_of_values());
  }

  int64_t bytes(const Layer& layer, double density) const override {
    return kept_elements(density, layer.size()) * value_bytes();
  }
  // The root of the mean square over all selections: each element is equally likely to be sent.
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& densities) const override {
    const double all = squared_norm(x), n = to_double(x.size());
    return for_each_setting(densities, [&](double density) {
      return std::sqrt(all * (1 - to_double(kept_elements(density, x.size())) / n));
    });
  }
  double codec_seconds(const Layer& layer, const Tensor& x, double density) const override {
    const Philox rng(seed_, stream_id(Stream::selection, layer.index));
    return timed([&] { (void)select_random(x.size(), kept_elements(density, x.size()), rng); });
  }

 private:
  std::vector<Tensor> choose(const Exchange& e) const {
    const TraceRange range("compress", "select");
    std::vector<Tensor> chosen;
    for (const Item& item : e.compressed) {
      const uint64_t key = static_cast<uint64_t>(e.step) << 20 | item.layer->index;
      const Philox rng(seed_, stream_id(Stream::selection, key));
      const int64_t k = kept_elements(item.layer->now, item.n());
      chosen.push_back(index_tensor(select_random(item.n(), k, rng)).to(e.device));
    }
    return chosen;
  }

  uint64_t seed_;
};

}  // namespace

std::unique_ptr<Reducer> make_random_k(const ReducerSetup& setup) {
  return std::make_unique<RandomK>(setup);
}

}  // namespace heddle
