// ScaleCom (Chen et al. 2020, arXiv 2104.11125), CLT-k: the leader of a step, rank step mod P,
// picks the largest elements of its own compensated gradients x = m + g, and all ranks send theirs
// at its indices. What is not sent stays in a low-pass filtered residual m.
//
//   step 1, P = 3          rank 0          rank 1 (leader)     rank 2
//   select                                 largest of x1
//   broadcast              <-- indices --  indices  -- indices -->
//   gather                 x0[indices]     x1[indices]         x2[indices]
//   all-reduce             \______________ sum of values ______________/
//   residual               m0              m1                  m2      what was not sent
//   scatter                the same sums on all ranks
#include <algorithm>

#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "core/joined_launches.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

// Returns the rate of a layer for rate=auto. The bins are ScaleCom's, as recalled; that they count
// multiply-accumulates per weight and sample, and which bin holds 196, is reconstructed from the
// rates that the paper prints, not read in it.
double automatic_rate(double uses_per_sample) {
  if (uses_per_sample > 196) return 25;
  return uses_per_sample >= 128 ? 50 : 400;
}

class ScaleCom : public CompressedReducer {
 public:
  explicit ScaleCom(const ReducerSetup& setup)
      : CompressedReducer(setup), exact_(setup.spec.values.at("select") == 1) {
    feedback_.emplace(setup.spec.values.at("beta"));
  }

  Indices selection(const std::string& parameter, const Tensor& x) const override {
    return select(x, code(x.size(), layers_.at(parameter).now));
  }

 protected:
  bool works_on_devices() const override { return true; }
  bool leaves_checks_to_sums() const override { return true; }
  // The leader's pass that adds residuals searches the chunks, except while a rule has yet to set
  // the rate.
  int64_t chunk(const Layer& layer, const Exchange& e) const override {
    return exact_ || e.comm.rank() != leader_of(e) ? 0 : to_int64(layer.now);
  }

  bool exchange(Exchange& e) override {
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
    std::vector<Tensor> slots;
    for (int64_t at = 0; const PayloadPart& part : parts) {
      slots.push_back(message.slice(at, at + part.bytes));
      at += part.bytes;
    }
    explain("select", e.comm.tag(), [&] {
      return Figures{{"leader: rank", to_double(leader)},
                     {"its indices", to_double(bytes), Unit::bytes}};
    });
    std::vector<Tensor> chosen;
    if (e.comm.rank() == leader) {
      const TraceRange range("compress", "select, as the leader");
      for (size_t i = 0; i < codes.size(); ++i) {
        const Item& item = e.compressed[i];
        chosen.push_back(item.chunk_indices.defined() ? item.chunk_indices
                                                      : select_indices(codes[i], item.tensor));
      }
      JoinedLaunches joined;
      for (size_t i = 0; i < codes.size(); ++i)
        HEDDLE_DISPATCH(e.device, encode_indices(codes[i], chosen[i], slots[i]));
      joined.launch();
    }
    e.ledger.book(e.comm, parts, [&] { e.comm.broadcast(message, leader); });
    if (e.comm.rank() != leader) {
      const TraceRange range("compress", "decode indices");
      JoinedLaunches joined;
      for (size_t i = 0; i < codes.size(); ++i)
        chosen.push_back(HEDDLE_DISPATCH(e.device, decode_indices(codes[i], slots[i])));
      joined.launch();
    }
    return sum_at_indices(e, *feedback_, chosen, coding_of_values());
  }

  int64_t bytes(const Layer& layer, double rate) const override {
    const IndexCode indices = code(layer.size(), rate);
    return indices.k * value_bytes() + indices.bytes();
  }
  // Computes the loss of the rank's own selection, as the leader. Under another leader it loses
  // more, especially if the ranks' gradients are weakly correlated.
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& rates) const override {
    return for_each_setting(
        rates, [&](double rate) { return unsent_norm(x, select(x, code(x.size(), rate))); });
  }

 private:
  static int leader_of(const Exchange& e) { return to_int(e.step % e.comm.size()); }
  // Settles rate=auto when a layer is first sent, by the counts of rank 0: other ranks may have
  // used a layer less often, or not at all.
  void agree_on_rates(Exchange& e) const {
    const auto open = [](const Item& item) { return item.layer->choice == 0; };
    if (std::none_of(e.compressed.begin(), e.compressed.end(), open)) return;
    const Tensor rates = Tensor::empty_on(Device{}, {std::ssize(e.compressed)});
    for (size_t i = 0; i < e.compressed.size(); ++i)
      rates.data<float>()[i] =
          to_float(automatic_rate(e.compressed[i].layer->parameter->uses_per_sample));
    e.ledger.book(e.comm, {{"rates", PayloadKind::control, rates.bytes()}},
                  [&] { e.comm.broadcast(rates, 0); });
    for (size_t i = 0; i < e.compressed.size(); ++i)
      if (Layer& layer = *e.compressed[i].layer; open(e.compressed[i])) {
        layer.choice = rates.data<float>()[i];
        layer.now = layers_.ramped(layer.choice, e.compressed_steps);
      }
  }
  IndexCode code(int64_t n, double rate) const {
    const auto chunk = to_int64(rate);
    return {n, (n + chunk - 1) / chunk, exact_ ? 0 : chunk};
  }
  Indices select(const Tensor& x, const IndexCode& code) const {
    return exact_ ? select_top(elements(x), code.k) : select_chunks(elements(x), code.chunk);
  }

  bool exact_;
};

}  // namespace

std::unique_ptr<Reducer> make_scalecom(const ReducerSetup& setup) {
  return std::make_unique<ScaleCom>(setup);
}

}  // namespace heddle
