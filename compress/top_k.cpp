// Top-k with local error feedback (Aji and Heafield 2017, arXiv 1704.05021): every rank sends its
// own k largest elements with their indices, and all add up what all sent. The baseline that
// ScaleCom is compared with: the traffic of the all-gather grows with the number of ranks.
#include "compress/codec.h"
#include "compress/compressed_reducer.h"
#include "compress/magnitude.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

class TopK : public CompressedReducer {
 public:
  explicit TopK(const ReducerSetup& setup) : CompressedReducer(setup) { feedback_.emplace(); }

 protected:
  bool works_on_devices() const override { return true; }
  // A rank's message: a flag, then layer by layer k values and k indices.
  bool exchange(Exchange& e) override {
    std::vector<PayloadPart> parts = {{"flag", PayloadKind::control, 1}};
    std::vector<IndexCode> codes;
    int64_t bytes = 1, values = 0;
    for (const Item& item : e.compressed) {
      codes.push_back({item.n(), kept_elements(item.layer->choice, item.n())});
      parts.push_back({item.name(), PayloadKind::values, codes.back().k * 4});
      parts.push_back({item.name(), PayloadKind::indices, codes.back().bytes()});
      bytes += codes.back().k * 4 + codes.back().bytes();
      values += codes.back().k;
    }
    const Tensor message = Tensor::empty_on(e.device, {bytes}, DType::u8);
    const std::vector<Tensor> mine = encode(e, codes, message);
    const Tensor all = Tensor::empty_on(e.device, {e.comm.size(), bytes}, DType::u8);
    e.ledger.book(e.comm, parts, [&] { e.comm.all_gather(message, all); });

    const Tensor sent = Tensor::empty_on(e.device, {e.comm.size(), values});
    std::vector<Sparse> received;  // by rank and layer
    bool accepted = true;
    for (int r = 0; r < e.comm.size(); ++r) {
      const Tensor from = all.slice(r, r + 1).reshape({bytes});
      accepted &= *from.slice(0, 1).to(Device{}).data<uint8_t>() == 0;
      decode(codes, from, sent.slice(r, r + 1).reshape({values}), received);
    }
    accepted = accepted && largest_magnitude_of(sent) <= magnitude(kSummable);
    if (!accepted || (!e.dense.empty() && !all_reduce(e, e.dense))) return false;
    for (size_t i = 0; i < codes.size(); ++i) {
      const Item& item = e.compressed[i];
      feedback_->keep_unsent(item.name(), item.sum, mine[i]);
      for (size_t at = i; at < received.size(); at += codes.size())
        HEDDLE_DISPATCH(e.device, add_at(received[at].values, received[at].places, item.sum));
    }
    return true;
  }

  int64_t bytes(const Layer& layer, double density) const override {
    const int64_t n = layer.parameter->size(), k = kept_elements(density, n);
    return k * 4 + IndexCode{n, k}.bytes();
  }
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& densities) const override {
    std::vector<double> lost;
    lost.reserve(densities.size());
    for (const double density : densities)
      lost.push_back(unsent_norm(x, select_top(elements(x), kept_elements(density, x.size()))));
    return lost;
  }

 private:
  struct Sparse {
    Tensor places, values;
  };

  // Writes the message; the places of what it holds, by layer.
  static std::vector<Tensor> encode(const Exchange& e, const std::vector<IndexCode>& codes,
                                    const Tensor& message) {
    const Tensor flag = Tensor::empty_on(Device{}, {1}, DType::u8);
    *flag.data<uint8_t>() = e.finite ? 0 : 1;
    message.slice(0, 1).copy_from(flag);
    std::vector<Tensor> places;
    int64_t at = 1;
    for (size_t i = 0; i < codes.size(); ++i) {
      const IndexCode& code = codes[i];
      const Tensor& x = e.compressed[i].tensor;
      const Tensor values = Tensor::empty_on(e.device, {code.k});
      places.push_back(select_places(code, x));
      HEDDLE_DISPATCH(e.device, take(x, places[i], values));
      explain_selection(e.compressed[i], values);
      HEDDLE_DISPATCH(e.device, copy_bytes(values, message.slice(at, at + code.k * 4)));
      at += code.k * 4;
      HEDDLE_DISPATCH(e.device,
                      encode_places(code, places[i], message.slice(at, at + code.bytes())));
      at += code.bytes();
    }
    return places;
  }

  // One rank's message, its values in `sent`.
  static void decode(const std::vector<IndexCode>& codes, const Tensor& message, const Tensor& sent,
                     std::vector<Sparse>& received) {
    int64_t at = 1, done = 0;
    for (const IndexCode& code : codes) {
      const Tensor values = sent.slice(done, done + code.k);
      HEDDLE_DISPATCH(values.device(), copy_bytes(message.slice(at, at + code.k * 4), values));
      at += code.k * 4;
      const Tensor bytes = message.slice(at, at + code.bytes());
      received.push_back({HEDDLE_DISPATCH(bytes.device(), decode_places(code, bytes)), values});
      at += code.bytes();
      done += code.k;
    }
  }
};

}  // namespace

std::unique_ptr<Reducer> make_top_k(const ReducerSetup& setup) {
  return std::make_unique<TopK>(setup);
}

}  // namespace heddle
