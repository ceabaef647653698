// Top-k with local error feedback (Aji and Heafield 2017, arXiv 1704.05021): every rank sends its
// own k largest elements with their indices, and all add up what all sent. The baseline that
// ScaleCom is compared with: the traffic of the all-gather grows with the number of ranks.
#include <cstring>

#include "compress/compressed_reducer.h"
#include "compress/magnitude.h"

namespace heddle {
namespace {

class TopK : public CompressedReducer {
 public:
  explicit TopK(const ReducerSetup& setup) : CompressedReducer(setup) { feedback_.emplace(); }

 protected:
  // A rank's message: a flag, then layer by layer k values and k indices.
  bool exchange(Exchange& e) override {
    std::vector<PayloadPart> parts = {{"flag", PayloadKind::control, 1}};
    std::vector<IndexCode> codes;
    std::vector<Sparse> mine;
    int64_t bytes = 1;
    for (const Item& item : e.compressed) {
      codes.push_back({item.n(), kept_elements(item.layer->choice, item.n())});
      const IndexCode& code = codes.back();
      parts.push_back({item.name(), PayloadKind::values, code.k * 4});
      parts.push_back({item.name(), PayloadKind::indices, code.bytes()});
      bytes += code.k * 4 + code.bytes();
      mine.push_back({select_top(elements(item.tensor), code.k), {}});
      for (const uint32_t i : mine.back().indices) mine.back().values.push_back(item.x()[i]);
    }
    const Tensor message = Tensor::empty_on(Device{}, {bytes}, DType::u8);
    const Tensor all = Tensor::empty_on(Device{}, {e.comm.size(), bytes}, DType::u8);
    auto* to = message.data<uint8_t>();
    *to++ = e.finite ? 0 : 1;
    for (size_t i = 0; i < codes.size(); ++i) {
      std::memcpy(to, mine[i].values.data(), mine[i].values.size() * 4);
      codes[i].encode(mine[i].indices, to += codes[i].k * 4);
      to += codes[i].bytes();
    }
    e.ledger.book(e.comm, parts, [&] { e.comm.all_gather(message, all); });

    std::vector<Sparse> received;  // by rank and layer
    bool accepted = true;
    const auto* from = all.data<uint8_t>();
    for (int r = 0; r < e.comm.size(); ++r) {
      accepted &= *from++ == 0;
      for (const IndexCode& code : codes) {
        Sparse& sparse = received.emplace_back();
        sparse.values.resize(static_cast<size_t>(code.k));
        std::memcpy(sparse.values.data(), from, sparse.values.size() * 4);
        sparse.indices = code.decode(from += code.k * 4);
        from += code.bytes();
        accepted &= summable(sparse.values.data(), code.k);
      }
    }
    if (!accepted || (!e.dense.empty() && !all_reduce(e, e.dense))) return false;
    for (size_t i = 0; i < codes.size(); ++i) {
      const Item& item = e.compressed[i];
      feedback_->keep_unsent(item.name(), item.sum, mine[i].indices);
      float* sum = item.sum.data<float>();
      for (size_t at = i; at < received.size(); at += codes.size())
        for (size_t j = 0; j < received[at].indices.size(); ++j)
          sum[received[at].indices[j]] += received[at].values[j];
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
    Indices indices;
    std::vector<float> values;
  };
};

}  // namespace

std::unique_ptr<Reducer> make_top_k(const ReducerSetup& setup) {
  return std::make_unique<TopK>(setup);
}

}  // namespace heddle
