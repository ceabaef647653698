// Top-k with local error feedback (Aji and Heafield 2017, arXiv 1704.05021): every rank sends its
// own k largest elements with their indices, and all add up what all sent. The baseline that
// ScaleCom is compared with: the traffic of the all-gather grows with the number of ranks.
//
// Indices travel as differences (delta_code.h), whose length depends on the gradients: the ranks
// gather their messages' lengths first, and then messages of the longest one's. With indices=plain
// a length follows from the layers' shapes, as everywhere else, and one collective is enough.
#include <algorithm>

#include "compress/codecs/delta_code.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

class TopK : public CompressedReducer {
 public:
  explicit TopK(const ReducerSetup& setup)
      : CompressedReducer(setup), delta_(setup.spec.values.at("indices") == 0) {
    feedback_.emplace();
  }

 protected:
  bool works_on_devices() const override { return true; }
  bool exchange(Exchange& e) override {
    Outgoing mine = encode(e);
    Tensor all;
    std::vector<int64_t> lengths(static_cast<size_t>(e.comm.size()), mine.bytes);
    // Booked together: waiting for the others' lengths is time of this exchange.
    e.ledger.book(e.comm, mine.parts, [&] {
      if (delta_) lengths = gather_lengths(e.comm, mine);
      const int64_t longest = *std::ranges::max_element(lengths);
      if (delta_) mine.parts.push_back({"padding", PayloadKind::control, longest - mine.bytes});
      all = Tensor::empty_on(e.device, {e.comm.size(), longest}, DType::u8);
      e.comm.all_gather(mine.message.slice(0, longest), all);
    });

    const Tensor sent = Tensor::empty_on(e.device, {e.comm.size(), mine.values});
    std::vector<Sparse> received;  // by rank and layer
    if (!unpack(e, mine, all, lengths, sent, received)) return false;
    if (!e.dense.empty() && !all_reduce(e, e.dense)) return false;
    const TraceRange range("compress", "add up, residuals");
    for (size_t i = 0; i < mine.codes.size(); ++i) {
      const Item& item = e.compressed[i];
      feedback_->keep_unsent(item.name(), item.sum, mine.indices[i]);
      for (size_t at = i; at < received.size(); at += mine.codes.size())
        HEDDLE_DISPATCH(e.device, scatter_add(received[at].values, received[at].indices, item.sum));
    }
    return true;
  }

  // Of differences the most that they may take.
  int64_t bytes(const Layer& layer, double density) const override {
    const int64_t n = layer.parameter->size(), k = kept_elements(density, n);
    return k * 4 + index_bytes({n, k});
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
    Tensor indices, values;
  };
  // A rank's message: a flag, the values of all layers, the indices of all layers.
  struct Outgoing {
    std::vector<IndexCode> codes;
    std::vector<Tensor> indices;  // of each layer
    std::vector<PayloadPart> parts;
    int64_t values = 0;  // elements
    Tensor message;      // with room for any indices, zero behind `bytes`
    int64_t bytes = 0;
    int64_t first_index() const { return 1 + 4 * values; }  // its byte
  };

  int64_t index_bytes(const IndexCode& code) const {
    return delta_ ? DeltaCode{code.n, code.k}.max_bytes() : code.bytes();
  }

  Outgoing encode(const Exchange& e) const {
    const TraceRange range("compress", "select, encode");
    Outgoing out;
    const Tensor flag = Tensor::empty_on(Device{}, {1}, DType::u8);
    *flag.data<uint8_t>() = e.finite ? 0 : 1;
    std::vector<Tensor> pieces = {flag};
    out.parts.push_back({"flag", PayloadKind::control, 1});
    int64_t most = 1;
    for (const Item& item : e.compressed) {
      const IndexCode code{item.n(), kept_elements(item.layer->now, item.n())};
      out.codes.push_back(code);
      out.indices.push_back(select_indices(code, item.tensor));
      pieces.push_back(Tensor::empty_on(e.device, {code.k}));
      HEDDLE_DISPATCH(e.device, gather(item.tensor, out.indices.back(), pieces.back()));
      explain_selection(item, pieces.back());
      out.parts.push_back({item.name(), PayloadKind::values, pieces.back().bytes()});
      out.values += code.k;
      most += code.k * 4 + index_bytes(code);
    }
    for (size_t i = 0; i < out.codes.size(); ++i) {
      pieces.push_back(pack(out.codes[i], out.indices[i]));
      out.parts.push_back({e.compressed[i].name(), PayloadKind::indices, pieces.back().bytes()});
    }
    out.message = Tensor::empty_on(e.device, {most}, DType::u8);
    for (const Tensor& piece : pieces) {
      const Tensor part = out.message.slice(out.bytes, out.bytes + piece.bytes());
      HEDDLE_DISPATCH(e.device, copy_bytes(piece.to(e.device), part));
      out.bytes += piece.bytes();
    }
    out.message.slice(out.bytes, most).fill_zero();
    return out;
  }

  // Differences are coded on the host, each where the one before ends.
  Tensor pack(const IndexCode& code, const Tensor& indices) const {
    if (!delta_) {
      Tensor bytes = Tensor::empty_on(indices.device(), {code.bytes()}, DType::u8);
      HEDDLE_DISPATCH(indices.device(), encode_indices(code, indices, bytes));
      return bytes;
    }
    const Tensor host = indices.to(Device{});
    const auto* first = reinterpret_cast<const uint32_t*>(host.data<int32_t>());
    const auto packed = DeltaCode{code.n, code.k}.encode({first, first + host.size()});
    Tensor bytes = Tensor::empty_on(Device{}, {std::ssize(packed)}, DType::u8);
    std::ranges::copy(packed, bytes.data<uint8_t>());
    return bytes;
  }

  // How long each rank's message is: from its flag and values on to what has room in `mine`.
  static std::vector<int64_t> gather_lengths(Communicator& comm, Outgoing& mine) {
    const int64_t least = mine.first_index(), most = mine.message.size();
    const Tensor own = Tensor::empty_on(Device{}, {1}, DType::i64);
    const Tensor all = Tensor::empty_on(Device{}, {comm.size(), 1}, DType::i64);
    *own.data<int64_t>() = mine.bytes;
    mine.parts.push_back({"lengths", PayloadKind::control, own.bytes()});
    comm.all_gather(own, all);
    std::vector<int64_t> lengths(all.data<int64_t>(), all.data<int64_t>() + comm.size());
    for (size_t r = 0; r < lengths.size(); ++r)
      if (lengths[r] < least || lengths[r] > most)
        throw Error(concat("top-k: rank ", r, " announces ", lengths[r], " bytes, expected ", least,
                           " to ", most));
    return lengths;
  }

  // All ranks' messages. False when one of them is not to be used, or their sum would be none.
  bool unpack(const Exchange& e, const Outgoing& mine, const Tensor& all,
              const std::vector<int64_t>& lengths, const Tensor& sent,
              std::vector<Sparse>& received) const {
    const TraceRange range("compress", "decode");
    bool accepted = true;
    for (int r = 0; r < e.comm.size(); ++r) {
      const Tensor row = all.slice(r, r + 1).reshape({all.shape()[1]});
      const Tensor from = row.slice(0, lengths[static_cast<size_t>(r)]);
      accepted &= *from.slice(0, 1).to(Device{}).data<uint8_t>() == 0;
      decode(mine, r, from, sent.slice(r, r + 1).reshape({mine.values}), received);
    }
    return accepted && largest_magnitude_of({sent}) <= magnitude(kMaxSum);
  }

  // One rank's message, its values in `sent`.
  void decode(const Outgoing& mine, int rank, const Tensor& message, const Tensor& sent,
              std::vector<Sparse>& received) const {
    const Device device = message.device();
    int64_t at = mine.first_index();
    HEDDLE_DISPATCH(device, copy_bytes(message.slice(1, at), sent));
    const Tensor host = delta_ ? message.slice(at, message.size()).to(Device{}) : Tensor{};
    std::span<const uint8_t> rest;
    if (delta_) rest = {host.data<uint8_t>(), static_cast<size_t>(host.size())};
    int64_t done = 0;
    for (const IndexCode& code : mine.codes) {
      Tensor indices;
      if (delta_) {
        indices = index_tensor(DeltaCode{code.n, code.k}.decode(rest)).to(device);
      } else {
        const Tensor bytes = message.slice(at, at + code.bytes());
        indices = HEDDLE_DISPATCH(device, decode_indices(code, bytes));
        at += code.bytes();
      }
      received.push_back({indices, sent.slice(done, done + code.k)});
      done += code.k;
    }
    if (!rest.empty())
      throw Error(concat("top-k: rank ", rank, " sent ", rest.size(), " bytes too many"));
  }

  bool delta_;
};

}  // namespace

std::unique_ptr<Reducer> make_top_k(const ReducerSetup& setup) {
  return std::make_unique<TopK>(setup);
}

}  // namespace heddle
