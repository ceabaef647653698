// Sparse exchange in which all ranks send the elements at the same indices, so that the sum over
// ranks of what is sent is what is sent of the sum, and one all-reduce of the values will do: the
// traffic of a learner does not grow with their number. How the indices come about:
//
// ScaleCom (Chen et al. 2020, arXiv 2104.11125), CLT-k: the leader of a step, rank step mod P,
// picks the largest elements of its own compensated gradients; a bucket's indices travel in one
// broadcast. What is not sent stays in a low-pass filtered residual.
//
// Random-k (Stich et al. 2018, arXiv 1809.07599): every rank draws the same indices from random
// numbers that depend on seed, step and layer alone, so that nothing but values travels.
#include <algorithm>
#include <cmath>

#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

class SharedIndices : public CompressedReducer {
 public:
  using CompressedReducer::CompressedReducer;

 protected:
  // For each compressed item, in tensors (k) i32 on the items' device; the same on all ranks.
  virtual std::vector<Tensor> choose(Exchange& e) = 0;

  bool works_on_devices() const override { return true; }
  bool exchange(Exchange& e) override {
    const std::vector<Tensor> chosen = choose(e);
    NamedTensors sums = e.dense;
    {
      const TraceRange range("compress", "take values");
      for (size_t i = 0; i < chosen.size(); ++i) {
        const Tensor values = Tensor::empty_on(e.device, chosen[i].shape());
        HEDDLE_DISPATCH(e.device, gather(e.compressed[i].tensor, chosen[i], values));
        explain_selection(e.compressed[i], values);
        sums.emplace_back(e.compressed[i].name(), values);
      }
    }
    if (!all_reduce(e, sums)) return false;
    const TraceRange range("compress", "residuals, sums");
    for (size_t i = 0; i < chosen.size(); ++i) {
      const Item& item = e.compressed[i];
      feedback_->keep_unsent(item.name(), item.sum, chosen[i]);
      HEDDLE_DISPATCH(e.device, scatter(sums[e.dense.size() + i].second, chosen[i], item.sum));
    }
    return true;
  }
};

// The rate of a layer for rate=auto. The bins are ScaleCom's, as recalled; that they count
// multiply-accumulates per weight and sample, and which bin holds 196, is reconstructed from the
// rates that the paper prints, not read in it.
double automatic_rate(double uses_per_sample) {
  if (uses_per_sample > 196) return 25;
  return uses_per_sample >= 128 ? 50 : 400;
}

class ScaleCom : public SharedIndices {
 public:
  explicit ScaleCom(const ReducerSetup& setup)
      : SharedIndices(setup), exact_(setup.spec.values.at("select") == 1) {
    feedback_.emplace(setup.spec.values.at("beta"));
  }

  Indices selection(const std::string& parameter, const Tensor& x) const override {
    return select(x, code(x.size(), layers_.at(parameter).now));
  }

 protected:
  // Chunks have been searched by the leader already, unless the rate is about to be settled.
  int64_t chunk(const Layer& layer, const Exchange& e) const override {
    return exact_ || e.comm.rank() != leader_of(e) ? 0 : static_cast<int64_t>(layer.now);
  }

  std::vector<Tensor> choose(Exchange& e) override {
    agree_on_rates(e);
    const int leader = leader_of(e);
    std::vector<IndexCode> codes;
    std::vector<PayloadPart> parts;
    int64_t bytes = 0;
    for (const Item& item : e.compressed) {
      codes.push_back(code(item.n(), item.layer->now));
      parts.push_back({item.name(), PayloadKind::indices, codes.back().bytes()});
      bytes += parts.back().bytes;
    }
    const Tensor message = Tensor::empty_on(e.device, {bytes}, DType::u8);
    const auto for_parts = [&](const auto& each) {
      int64_t at = 0;
      for (size_t i = 0; i < codes.size(); at += parts[i++].bytes)
        each(i, message.slice(at, at + parts[i].bytes));
    };
    explain("select", e.comm.tag(), [&] {
      return Figures{{"leader: rank", static_cast<double>(leader)},
                     {"its indices", static_cast<double>(bytes), Unit::bytes}};
    });
    if (e.comm.rank() == leader) {
      const TraceRange range("compress", "select, as the leader");
      for_parts([&](size_t i, const Tensor& part) {
        const Item& item = e.compressed[i];
        const Tensor indices = item.chunk_indices.defined() ? item.chunk_indices
                                                            : select_indices(codes[i], item.tensor);
        HEDDLE_DISPATCH(e.device, encode_indices(codes[i], indices, part));
      });
    }
    e.ledger.book(e.comm, parts, [&] { e.comm.broadcast(message, leader); });
    const TraceRange range("compress", "decode indices");
    std::vector<Tensor> chosen;
    for_parts([&](size_t i, const Tensor& part) {
      chosen.push_back(HEDDLE_DISPATCH(e.device, decode_indices(codes[i], part)));
    });
    return chosen;
  }

  int64_t bytes(const Layer& layer, double rate) const override {
    const IndexCode indices = code(layer.parameter->size(), rate);
    return indices.k * 4 + indices.bytes();
  }
  // By the rank's own selection: what it would lose as the leader. Under another leader it loses
  // more, by how much less alike the gradients are.
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& rates) const override {
    std::vector<double> lost;
    lost.reserve(rates.size());
    for (const double rate : rates) lost.push_back(unsent_norm(x, select(x, code(x.size(), rate))));
    return lost;
  }

 private:
  static int leader_of(const Exchange& e) { return static_cast<int>(e.step % e.comm.size()); }
  // rate=auto is settled when a layer is first sent, by the first rank: another one may have used a
  // layer less often, or not at all.
  void agree_on_rates(Exchange& e) const {
    const auto open = [](const Item& item) { return item.layer->choice == 0; };
    if (std::none_of(e.compressed.begin(), e.compressed.end(), open)) return;
    const Tensor rates = Tensor::empty_on(Device{}, {std::ssize(e.compressed)});
    for (size_t i = 0; i < e.compressed.size(); ++i)
      rates.data<float>()[i] =
          static_cast<float>(automatic_rate(e.compressed[i].layer->parameter->uses_per_sample));
    e.ledger.book(e.comm, {{"rates", PayloadKind::control, rates.bytes()}},
                  [&] { e.comm.broadcast(rates, 0); });
    for (size_t i = 0; i < e.compressed.size(); ++i)
      if (Layer& layer = *e.compressed[i].layer; open(e.compressed[i])) {
        layer.choice = rates.data<float>()[i];
        layer.now = ramped(layer.choice, e.compressed_steps);
      }
  }
  IndexCode code(int64_t n, double rate) const {
    const auto chunk = static_cast<int64_t>(rate);
    return {n, (n + chunk - 1) / chunk, exact_ ? 0 : chunk};
  }
  Indices select(const Tensor& x, const IndexCode& code) const {
    return exact_ ? select_top(elements(x), code.k) : select_chunks(elements(x), code.chunk);
  }

  bool exact_;
};

class RandomK : public SharedIndices {
 public:
  explicit RandomK(const ReducerSetup& setup) : SharedIndices(setup), seed_(setup.options.seed) {
    feedback_.emplace();
  }

 protected:
  std::vector<Tensor> choose(Exchange& e) override {
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

  int64_t bytes(const Layer& layer, double density) const override {
    return kept_elements(density, layer.parameter->size()) * 4;
  }
  // The root of the mean square over all selections: any element is as likely to be sent.
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& densities) const override {
    const double all = squared_norm(x), n = static_cast<double>(x.size());
    std::vector<double> lost;
    lost.reserve(densities.size());
    for (const double density : densities)
      lost.push_back(
          std::sqrt(all * (1 - static_cast<double>(kept_elements(density, x.size())) / n)));
    return lost;
  }
  double codec_seconds(const Layer& layer, const Tensor& x, double density) const override {
    const Philox rng(seed_, stream_id(Stream::selection, layer.index));
    return timed([&] { (void)select_random(x.size(), kept_elements(density, x.size()), rng); });
  }

 private:
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<Reducer> make_scalecom(const ReducerSetup& setup) {
  return std::make_unique<ScaleCom>(setup);
}

std::unique_ptr<Reducer> make_random_k(const ReducerSetup& setup) {
  return std::make_unique<RandomK>(setup);
}

}  // namespace heddle
