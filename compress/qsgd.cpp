// QSGD (Alistarh et al. 2017, arXiv 1610.02132): every value in a few bits, a sign and a level
// between zero and the largest magnitude of its block ("bucket" in the paper), rounded at random so
// that it is unbiased. Exchanged block by block (block_exchange.h), so the sums over ranks are
// quantised, too.
#include <algorithm>
#include <cmath>
#include <optional>

#include "compress/block_exchange.h"
#include "compress/codecs/quantize.h"
#include "core/kernels.h"

namespace heddle {
namespace {

class Qsgd : public BlockExchange {
 public:
  explicit Qsgd(const ReducerSetup& setup)
      : BlockExchange(setup, {.block = to_int64(setup.spec.values.at("bucket")),
                              .coding = Coding::levels,
                              .stochastic = setup.spec.values.at("rounding") == 0}) {}

 protected:
  std::vector<double> settings(const Layer& /*layer*/) const override {
    return {2, 3, 4, 5, 6, 7, 8};
  }
  // Counts only the error of the rank's own encoding, not of encoding the sums.
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& bits) const override {
    return for_each_setting(bits, [&](double b) {
      double squares = 0;
      for (int64_t begin = 0; begin < x.size(); begin += form_.block)
        squares +=
            quantization_loss(x.data<float>() + begin, std::min(form_.block, x.size() - begin),
                              to_int(b), form_.stochastic);
      return std::sqrt(squares);
    });
  }
  // A rank encodes its elements, decodes as many to add up its share, and decodes as many sums.
  double codec_seconds(const Layer& layer, const Tensor& x, double setting) const override {
    const int bits = to_int(setting);
    std::optional<Philox> noise;
    if (form_.stochastic) noise.emplace(form_.seed, stream_id(Stream::codec, layer.index));
    std::vector<uint8_t> bytes(to_size(quantized_bytes(form_.block, bits)));
    std::vector<float> decoded(to_size(form_.block));
    return timed([&] {
      for (int64_t begin = 0; begin < x.size(); begin += form_.block) {
        const int64_t n = std::min(form_.block, x.size() - begin);
        quantize(x.data<float>() + begin, n, bits, noise, begin, bytes.data());
        for (int round = 0; round < 2; ++round) dequantize(bytes.data(), n, bits, decoded.data());
      }
    });
  }
  Figures rounding(const Item& item) const override {
    const Tensor x = item.tensor.to(Device{});
    const double lost = lost_norms(*item.layer, x, {item.layer->choice})[0];
    return {{"elements", to_double(item.n()), Unit::count},
            {"bits per element", item.layer->choice},
            {"rounding error over the norm", 100 * lost / norm(x), Unit::percent}};
  }
};

}  // namespace

std::unique_ptr<Reducer> make_qsgd(const ReducerSetup& setup) {
  return std::make_unique<Qsgd>(setup);
}

}  // namespace heddle
