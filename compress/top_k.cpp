// Top-k with local error feedback (Aji and Heafield 2017, arXiv 1704.05021): every rank sends its
// own k largest elements with their indices, and all ranks add up what all sent. The baseline that
// ScaleCom is compared with: the traffic of the all-gather grows with the number of ranks.
//
// Indices are sent as differences (codecs/delta_code.h), whose length depends on the gradients.
// With indices=plain the length follows from the layers' shapes.
#include <algorithm>

#include "compress/codecs/delta_code.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "core/kernels.h"
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
    const Outgoing mine = encode(e);
    const int64_t values_and_flag = 1 + value_bytes() * mine.values;
    const Messages all =
        gather_messages(e, mine.parts, values_and_flag + (delta_ ? 0 : mine.index_bytes),
                        values_and_flag + mine.index_bytes, "top-k");
    if (!all.finite) return false;
    const Tensor values = Tensor::empty_on(e.device, {e.comm.size(), mine.values});
    std::vector<Sparse> received;  // by rank and layer
    {
      const TraceRange range("compress", "decode");
      for (int r = 0; r < e.comm.size(); ++r)
        decode(mine, r, all.from(r), values.slice(r, r + 1).reshape({mine.values}), received);
    }
    if (largest_magnitude_of({values}) > magnitude(kMaxSum)) return false;
    if (!e.dense.empty() && !all_reduce(e, e.dense)) return false;
    const TraceRange range("compress", "add up, residuals");
    for (size_t i = 0; i < mine.codes.size(); ++i) {
      const Item& item = e.compressed[i];
      feedback_->keep_unsent(item.name(), item.old_residual(), mine.indices[i], mine.lost[i]);
      for (size_t at = i; at < received.size(); at += mine.codes.size())
        HEDDLE_DISPATCH(e.device, scatter_add(received[at].values, received[at].indices, item.sum));
    }
    return true;
  }

  // An upper bound for differences.
  int64_t bytes(const Layer& layer, double density) const override {
    const int64_t n = layer.size(), k = kept_elements(density, n);
    return k * value_bytes() + most_bytes({n, k});
  }
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& densities) const override {
    return for_each_setting(densities, [&](double density) {
      return unsent_norm(x, select_top(elements(x), kept_elements(density, x.size())));
    });
  }

 private:
  struct Sparse {
    Tensor indices, values;
  };
  // The message of this rank: the values of all layers, then the indices of all layers.
  struct Outgoing {
    std::vector<IndexCode> codes;  // of each layer
    std::vector<Tensor> indices;   // of each layer, (k) i32
    std::vector<Tensor> lost;      // of each layer, (k) f32, by rounding values; undefined: nothing
    std::vector<MessagePart> parts;
    int64_t values = 0;       // elements
    int64_t index_bytes = 0;  // an upper bound for differences
  };

  DType type_of_values() const {
    return coding_of_values() == Coding::bf16 ? DType::bf16 : DType::f32;
  }
  int64_t most_bytes(const IndexCode& code) const {
    return delta_ ? DeltaCode{code.n, code.k}.max_bytes() : code.bytes();
  }

  Outgoing encode(const Exchange& e) const {
    const TraceRange range("compress", "select, encode");
    Outgoing out;
    for (const Item& item : e.compressed) {
      const IndexCode code{item.n(), kept_elements(item.layer->now, item.n())};
      out.codes.push_back(code);
      out.indices.push_back(select_indices(code, item.tensor));
      const Tensor values = Tensor::empty_on(e.device, {code.k});
      HEDDLE_DISPATCH(e.device, gather(item.tensor, out.indices.back(), values));
      explain_selection(item, values);
      const Tensor coded = converted(values, type_of_values(), Layout::plain);
      out.parts.push_back({item.name(), PayloadKind::values, coded});
      out.lost.emplace_back();
      if (coded.dtype() != DType::f32) {
        axpy(-1, converted(coded, DType::f32, Layout::plain), values);
        out.lost.back() = values;
      }
      out.values += code.k;
      out.index_bytes += most_bytes(code);
    }
    for (size_t i = 0; i < out.codes.size(); ++i)
      out.parts.push_back(
          {e.compressed[i].name(), PayloadKind::indices, pack(out.codes[i], out.indices[i])});
    return out;
  }

  // Encodes indices as u8; differences on the host.
  Tensor pack(const IndexCode& code, const Tensor& indices) const {
    if (!delta_) {
      Tensor bytes = Tensor::empty_on(indices.device(), {code.bytes()}, DType::u8);
      HEDDLE_DISPATCH(indices.device(), encode_indices(code, indices, bytes));
      return bytes;
    }
    const Tensor host = indices.to(Device{});
    const auto packed = DeltaCode{code.n, code.k}.encode({words(host), words(host) + host.size()});
    Tensor bytes = Tensor::empty_on(Device{}, {std::ssize(packed)}, DType::u8);
    std::ranges::copy(packed, bytes.data<uint8_t>());
    return bytes;
  }

  // Copies the values of one rank's message to `values` and appends its layers, as views of it, to
  // `received`. Throws Error for indices that do not fit the layers.
  void decode(const Outgoing& mine, int rank, const Tensor& message, const Tensor& values,
              std::vector<Sparse>& received) const {
    const Device device = message.device();
    const bool rounded = coding_of_values() == Coding::bf16;
    const Tensor coded =
        rounded ? Tensor::empty_on(device, values.shape(), type_of_values()) : values;
    int64_t at = coded.bytes();
    coded.as_bytes().copy_from(message.slice(0, at));
    if (rounded) convert(coded, values);
    const Tensor host = delta_ ? message.slice(at, message.size()).to(Device{}) : Tensor{};
    std::span<const uint8_t> rest;
    if (delta_) rest = {host.data<uint8_t>(), to_size(host.size())};
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
      received.push_back({indices, values.slice(done, done + code.k)});
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
