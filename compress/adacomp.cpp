// AdaComp (Chen et al. 2018, arXiv 1712.02679): every rank divides a layer into bins of a fixed
// length and sends the elements of each bin that have become as large as its largest, one where
// little changes and several where much does:
//
//   G = R + g                                  gradient plus residual; m is the largest |G| of a
//   bin sent where |G + (factor - 1) g| >= m       as sign(G) s; s is the mean of m over the bins
//   R = G - sent                               also where something was sent: s is not |G|
//
// Every rank gathers all messages, so traffic grows with the number of ranks, as it does for top-k.
// The rule and its constants are recalled, not read, and reproduce the ratios in the paper's
// abstract; the encoding and scale=bin, one scale for each bin, are this project's own
// (docs/algorithms.md).
//
// A message has, for each layer: the number of elements (u32); the scale (f32), which with
// scale=bin is the largest, followed by one code byte for each bin; one sign bit for each element;
// the indices as differences.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "compress/codecs/bits.h"
#include "compress/codecs/delta_code.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

// A bin's scale is the layer's largest scale times 2^(-code / 8).
constexpr uint8_t kNothingSent = 255;

uint8_t scale_code(float largest, float of_bin) {
  const long code = std::lround(8 * std::log2(double{largest} / of_bin));
  return static_cast<uint8_t>(std::clamp(code, 0L, long{kNothingSent}));
}

float scale_of(float largest, uint8_t code) {
  // Powers of 2^(-1/8), written out: they must be the same bits on all machines.
  constexpr double kEighths[] = {1.00000000000000000, 0.91700404320467123, 0.84089641525371454,
                                 0.77110541270397042, 0.70710678118654752, 0.64841977732550483,
                                 0.59460355750136053, 0.54525386633262884};
  return to_float(std::ldexp(largest * kEighths[code % 8], -(code / 8)));
}

class AdaComp : public CompressedReducer {
 public:
  explicit AdaComp(const ReducerSetup& setup)
      : CompressedReducer(setup),
        ahead_(to_float(setup.spec.values.at("factor") - 1)),
        by_bin_(setup.spec.values.at("scale") == 1) {
    feedback_.emplace();
    for (const auto& [name, layer] : layers_) {
      if (!layer.compressed) continue;
      layers_.at(name).choice = to_double(bin(layer, layer.choice));
      activity_[name] = Tensor::from({kFirstActivity});
    }
  }

  // Resolves bin=auto, as the constructor does.
  void set_choice(const std::string& parameter, double value) override {
    CompressedReducer::set_choice(parameter, value);
    Layer& layer = layers_.at(parameter);
    layer.choice = to_double(bin(layer, value));
  }
  // Adds the mean number of elements sent per bin, "activity.<parameter>" (1) f32, the same on all
  // ranks.
  NamedTensors named_state() const override {
    NamedTensors state = CompressedReducer::named_state();
    for (const auto& [name, x] : activity_) state.emplace_back("activity." + name, x);
    return state;
  }

 protected:
  bool works_on_devices() const override { return true; }
  int64_t chunk(const Layer& layer, const Exchange& /*e*/) const override {
    return bin(layer, layer.now);
  }
  bool exchange(Exchange& e) override {
    std::vector<MessagePart> parts;
    int64_t least = 1, most = 1;
    {
      const TraceRange range("compress", "select, encode");
      for (const Item& item : e.compressed) {
        encode(e, item, parts);
        const int64_t header = header_bytes(bins_of(item));
        least += header;
        most += header + 2 * packed_bytes(item.n(), 1);  // signs and differences of all elements
      }
    }
    const Messages all = gather_messages(e, parts, least, most, "adacomp");
    if (!all.finite) return false;
    std::vector<Sent> received;  // by rank and layer
    {
      const TraceRange range("compress", "decode");
      for (int r = 0; r < e.comm.size(); ++r)
        if (!decode(e, r, all.from(r), received)) return false;
    }
    if (!e.dense.empty() && !all_reduce(e, e.dense)) return false;
    const TraceRange range("compress", "add up, residuals");
    const size_t layers = e.compressed.size();
    for (size_t i = 0; i < layers; ++i) {
      const Item& item = e.compressed[i];
      const Sent& own = received[to_size(e.comm.rank()) * layers + i];
      item.sum.fill_zero();
      int64_t count = 0;
      for (size_t at = i; at < received.size(); at += layers) {
        HEDDLE_DISPATCH(e.device, scatter_add(received[at].values, received[at].indices, item.sum));
        count += received[at].indices.size();
      }
      scale(own.values, -1);
      HEDDLE_DISPATCH(e.device, scatter_add(own.values, own.indices, item.tensor));
      update_activity(item, to_double(count) / e.comm.size());
    }
    return true;
  }

  // Returns the bytes to be expected from the running mean of the elements sent per bin, which is
  // taken to be the same for every bin length.
  int64_t bytes(const Layer& layer, double setting) const override {
    const int64_t n = layer.size(), bins = ceil_div(n, bin(layer, setting));
    const double each = *activity_.at(layer.name()).data<float>();
    const int64_t k = std::clamp<int64_t>(std::llround(each * to_double(bins)), 0, n);
    return header_bytes(bins) + packed_bytes(k, 1) + DeltaCode{n, k}.max_bytes();
  }
  // Assumes that each bin sends its largest element only: a sum over steps has no newest gradient.
  std::vector<double> lost_norms(const Layer& layer, const Tensor& x,
                                 const std::vector<double>& bins) const override {
    return for_each_setting(bins, [&](double setting) {
      const int64_t length = bin(layer, setting), count = ceil_div(x.size(), length);
      const Tensor indices = Tensor::empty_on(Device{}, {count}, DType::i32);
      const Tensor magnitudes = Tensor::empty_like(indices);
      cpu::largest_of_chunks(x, length, true, indices, magnitudes);
      const Scales scales = scales_of(magnitudes);
      double squares = squared_norm(x);
      for (int64_t b = 0; b < count; ++b) {
        const double m = largest_in(magnitudes, b), s = m > 0 ? scales.at(b) : 0;
        squares -= s * (2 * m - s);
      }
      return std::sqrt(std::max(0.0, squares));
    });
  }

 private:
  static constexpr float kFirstActivity = 5;   // elements per bin
  static constexpr double kNewActivity = 0.1;  // weight of the newest step

  // Holds what one rank sends of a layer.
  struct Sent {
    Tensor indices;  // (k) i32
    Tensor values;   // (k) f32
  };
  // Holds the scale of a layer or, with scale=bin, its bins' largest scale and a code for each bin.
  struct Scales {
    float largest = 0;
    std::vector<uint8_t> codes = {};
    float at(int64_t b) const {
      return codes.empty() ? largest : scale_of(largest, codes[to_size(b)]);
    }
  };

  // Returns the length of bins for a setting; 0 chooses by the layer's shape.
  static int64_t bin(const Layer& layer, double setting) {
    if (setting > 0) return to_int64(setting);
    return layer.parameter->shape().rank() == 4 ? 50 : 500;
  }
  static int64_t bins_of(const Item& item) {
    return ceil_div(item.n(), bin(*item.layer, item.layer->now));
  }
  int64_t header_bytes(int64_t bins) const { return 8 + (by_bin_ ? bins : 0); }
  // Returns the largest |x| of a bin.
  static float largest_in(const Tensor& magnitudes, int64_t b) {
    return std::bit_cast<float>(magnitudes.data<int32_t>()[b]);
  }

  // Returns the scales for the bins' magnitudes, (bins) i32 on the host. Bins of zeros do not
  // count.
  Scales scales_of(const Tensor& magnitudes) const {
    double sum = 0;
    int64_t bins = 0;
    float largest = 0;
    for (int64_t b = 0; b < magnitudes.size(); ++b) {
      const float m = largest_in(magnitudes, b);
      sum += m;
      bins += m > 0 ? 1 : 0;
      largest = std::max(largest, m);
    }
    if (!by_bin_) return {bins > 0 ? to_float(sum / to_double(bins)) : 0};
    Scales scales{largest};
    for (int64_t b = 0; b < magnitudes.size(); ++b) {
      const float m = largest_in(magnitudes, b);
      scales.codes.push_back(m > 0 ? scale_code(largest, m) : kNothingSent);
    }
    return scales;
  }

  // Appends the parts of a layer: header, signs, indices.
  void encode(const Exchange& e, const Item& item, std::vector<MessagePart>& parts) const {
    const int64_t length = bin(*item.layer, item.layer->now);
    // Non-finite gradients have been replaced by zeros, but their magnitudes were found before
    // that.
    const Tensor magnitudes = e.finite ? item.magnitudes : Tensor::empty_like(item.magnitudes);
    if (!e.finite) magnitudes.fill_zero();
    const Scales scales = scales_of(magnitudes.to(Device{}));
    const Tensor active = HEDDLE_DISPATCH(
        e.device, select_active(item.tensor, item.old_residual(), ahead_, length, magnitudes));
    const Tensor found = Tensor::empty_on(e.device, active.shape());
    HEDDLE_DISPATCH(e.device, gather(item.tensor, active, found));
    const Tensor indices = active.to(Device{}), values = found.to(Device{});
    Indices sent;
    std::vector<uint32_t> negative;
    for (int64_t j = 0; j < indices.size(); ++j) {
      const auto i = static_cast<uint32_t>(indices.data<int32_t>()[j]);
      if (by_bin_ && scales.codes[i / to_size(length)] == kNothingSent) continue;
      sent.push_back(i);
      negative.push_back(std::signbit(values.data<float>()[j]) ? 1 : 0);
    }
    explain_sent(item, sent, scales, length);

    const int64_t k = std::ssize(sent);
    const Tensor header = bytes_of(header_bytes(bins_of(item)));
    const auto count = static_cast<uint32_t>(k);
    std::memcpy(header.raw(), &count, 4);
    std::memcpy(header.data<uint8_t>() + 4, &scales.largest, 4);
    std::ranges::copy(scales.codes, header.data<uint8_t>() + 8);
    const Tensor signs = bytes_of(packed_bytes(k, 1));
    pack_bits(negative.data(), k, 1, signs.data<uint8_t>());
    const std::vector<uint8_t> packed = DeltaCode{item.n(), k}.encode(sent);
    const Tensor packed_indices = bytes_of(std::ssize(packed));
    std::ranges::copy(packed, packed_indices.data<uint8_t>());
    parts.push_back({item.name(), PayloadKind::scales, header});
    // As recalled, the paper counts 8 bits for each element (sign, level and index in the bin), 16
    // where bins are longer than 64, and nothing for scales.
    parts.push_back({item.name(), PayloadKind::values, signs, k * (length <= 64 ? 1 : 2)});
    parts.push_back({item.name(), PayloadKind::indices, packed_indices});
  }

  // Appends what a rank sent of each layer. Returns false for a scale that encode() never sends.
  // Throws Error for a message that does not fit the layers.
  bool decode(const Exchange& e, int rank, const Tensor& message,
              std::vector<Sent>& received) const {
    const Tensor host = message.to(Device{});
    std::span<const uint8_t> rest{host.data<uint8_t>(), to_size(host.size())};
    const auto check_fits = [&](bool fits) {
      if (!fits)
        throw Error(concat("adacomp: the message of rank ", rank, " does not fit the layers"));
    };
    const auto take = [&](int64_t bytes) {
      check_fits(bytes <= std::ssize(rest));
      const std::span<const uint8_t> front = rest.first(to_size(bytes));
      rest = rest.subspan(to_size(bytes));
      return front;
    };
    for (const Item& item : e.compressed) {
      const std::span<const uint8_t> header = take(header_bytes(bins_of(item)));
      uint32_t k;
      Scales scales{0, {header.begin() + 8, header.end()}};
      std::memcpy(&k, header.data(), 4);
      std::memcpy(&scales.largest, header.data() + 4, 4);
      check_fits(k <= item.n());
      if (!(scales.largest >= 0 && scales.largest <= kMaxAddend)) return false;
      std::vector<uint32_t> negative(k);
      unpack_bits(take(packed_bytes(k, 1)).data(), k, 1, negative.data());
      const Indices indices = DeltaCode{item.n(), k}.decode(rest);
      const Tensor values = Tensor::empty_on(Device{}, {int64_t{k}});
      const int64_t length = bin(*item.layer, item.layer->now);
      for (size_t j = 0; j < k; ++j) {
        const int64_t b = indices[j] / length;
        check_fits(!by_bin_ || scales.codes[to_size(b)] != kNothingSent);
        const float s = scales.at(b);
        values.data<float>()[j] = negative[j] != 0 ? -s : s;
      }
      received.push_back({index_tensor(indices).to(e.device), values.to(e.device)});
    }
    check_fits(rest.empty());
    return true;
  }

  static Tensor bytes_of(int64_t n) { return Tensor::empty_on(Device{}, {n}, DType::u8); }

  // Updates the running mean; `sent` is the number of elements, averaged over the ranks. It counts
  // what was sent even if the optimizer then skips the step.
  void update_activity(const Item& item, double sent) {
    float& activity = *activity_.at(item.name()).data<float>();
    activity += to_float(kNewActivity * (sent / to_double(bins_of(item)) - activity));
  }

  // Records for --explain-step what this rank sends of a layer.
  static void explain_sent(const Item& item, const Indices& sent, const Scales& scales,
                           int64_t length) {
    explain("select", item.name(), [&] {
      const Tensor x = item.tensor.to(Device{});
      double kept = 0;
      int64_t bins = 0, last = -1;
      for (const uint32_t i : sent) {
        const double s = scales.at(i / length);
        kept += s * (2 * std::abs(double{elements(x)[i]}) - s);
        bins += i / length != last ? 1 : 0;
        last = i / length;
      }
      return Figures{{"chosen", to_double(sent.size()), Unit::count},
                     {"elements", to_double(item.n()), Unit::count},
                     {"bins with nothing sent", to_double(bins_of(item) - bins), Unit::count},
                     {"scale", scales.largest},
                     {"energy kept", kept > 0 ? 100 * kept / squared_norm(x) : 0, Unit::percent}};
    });
  }

  float ahead_;  // factor - 1
  bool by_bin_;
  std::map<std::string, Tensor> activity_;  // (1) f32 each, on the host
};

}  // namespace

std::unique_ptr<Reducer> make_adacomp(const ReducerSetup& setup) {
  return std::make_unique<AdaComp>(setup);
}

}  // namespace heddle
