// LGC (Abrahamyan et al., learned gradient compression), its instance for rings, reconstructed from
// the abstract and a public re-implementation (docs/algorithms.md says which is which): the leader
// of a step, rank step mod P, selects the largest elements for all, as in ScaleCom, and an
// autoencoder that the run trains on its own gradients codes their values in a quarter as many
// numbers.
//
//   stage 2, `train` steps        rank 0           rank 1 (leader)   rank 2
//   broadcast                     <- indices, rho  indices, rho ---> indices, rho
//   all-gather                    v0 v1 v2         v0 v1 v2          v0 v1 v2
//   sum in rank order             the same sums on all ranks
//   train on v / rho              E, D
//
//   then rank 0 decides: if the decoder's error is below `gate`, E and D are broadcast
//
//   stage 3                       rank 0           rank 1 (leader)   rank 2
//   broadcast                     <- indices, rho  indices, rho ---> indices, rho
//   encode                        E(v0 / rho)      E(v1 / rho)       E(v2 / rho)
//   all-reduce                    \_______________ mean code c _____________/
//   sum                           P rho D(c), the same on all ranks
//   residual                      each rank subtracts rho D(its own code)
//
// Stage 1 is the dense start of the run. A bucket's selected values are one sequence: in the order
// of the leader's values, each in units of its layer's rho, so that the leader's own sequence is a
// smooth curve (order=value), or in the order of their indices (order=index). What is coded
// imperfectly stays in the residuals; see Fit::gap for codec=paper. Once the gate is closed for
// good, v / rho replaces the code: then this is ScaleCom with exact selection.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/codecs/bits.h"
#include "compress/codecs/delta_code.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "compress/lgc_autoencoder.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

constexpr int kAttempts = 4;            // decisions before the gate stays closed
constexpr float kMaxGap = 0.1f;         // above it the run says so
constexpr float kMaxValue = 100;        // in units of rho; not trained above, coded as this
constexpr double kLeastSquare = 1e-40;  // less counts as zero
constexpr int64_t kWindow = 4096;       // values of a training step, at most
constexpr double kLinearRate = 0.01, kPaperRate = 0.001;  // lr=auto
constexpr double kErrorWeight = 0.05;                     // of a step in the means of error and gap

Tensor host_zeros(const Shape& shape, DType type = DType::f32) {
  Tensor x = Tensor::empty_on(Device{}, shape, type);
  x.fill_zero();
  return x;
}

class Lgc : public CompressedReducer {
 public:
  explicit Lgc(const ReducerSetup& setup)
      : CompressedReducer(setup),
        train_(setup.spec.values.at("train")),
        gate_(setup.spec.values.at("gate")),
        refresh_(setup.spec.values.at("refresh")),
        by_value_(setup.spec.values.at("order") == 0),
        autoencoder_(setup.spec.values.at("codec") == 1 ? GradientAutoencoder::Kind::paper
                                                        : GradientAutoencoder::Kind::linear,
                     setup.options.seed),
        state_(host_zeros({kStates})) {
    feedback_.emplace();
    const double lr = setup.spec.values.at("lr");
    lr_ = lr > 0 ? lr : setup.spec.values.at("codec") == 1 ? kPaperRate : kLinearRate;
  }

  Indices selection(const std::string& parameter, const Tensor& x) const override {
    return select_top(elements(x), kept_elements(layers_.at(parameter).now, x.size()));
  }
  NamedTensors named_state() const override {
    NamedTensors state = CompressedReducer::named_state();
    for (const auto& each : autoencoder_.named_state()) state.push_back(each);
    state.emplace_back("autoencoder.progress", state_);
    return state;
  }
  std::map<std::string, double> figures() const override {
    if (state(kSteps) == 0) return {};
    const bool coding = state(kCoding) > 0, measured = coding ? refresh_ > 0 : !closed();
    std::map<std::string, double> out = {{"stage", coding ? 3 : 2}};
    if (measured && state(kError) > 0)
      out.insert({{"decoder_error", state(kError)}, {"decoder_gap", state(kGap)}});
    return out;
  }
  std::string take_note() override { return std::exchange(note_, {}); }
  // Codes may be sent when the first attempt of the training ends.
  int64_t ramp() const override { return to_int64(train_); }

 protected:
  bool works_on_devices() const override { return true; }
  bool exchange(Exchange& e) override {
    const Selected selected = select(e);
    return trains(e) ? exchange_values(e, selected) : exchange_codes(e, selected);
  }

  // Returns the bytes of stage 3: one per value for its code, and the indices.
  int64_t bytes(const Layer& layer, double density) const override {
    const int64_t n = layer.size(), k = kept_elements(density, n);
    return k + (by_value_ ? packed_bytes(k, bits_below(n)) : DeltaCode{n, k}.max_bytes());
  }

 private:
  // The k elements of a bucket that the leader has selected, in the order of the sequence.
  struct Selected {
    int64_t k = 0;
    std::vector<float> rho;                  // by layer: root mean square of the leader's values
    std::vector<float> units;                // (k): rho of each element's layer
    std::vector<Tensor> indices;             // of each layer, (k of the layer) i32, on the device
    std::vector<std::vector<size_t>> where;  // of each of these: its position in the sequence
  };
  // Kept in a checkpoint. Equal on all ranks, except rank 0's error and gap while it trains.
  enum State : int64_t { kSteps, kCoding, kError, kGap, kStates };
  float& state(State which) const { return state_.data<float>()[which]; }

  // ------------------------------------------------------------------------------------- stages

  // Returns whether the autoencoder trains on this bucket's values: in stage 2, and, with
  // refresh=N, in the first bucket of every N-th step of stage 3.
  bool trains(const Exchange& e) const {
    if (state(kCoding) == 0) return !closed();
    const double coded = state(kSteps) - state(kCoding);
    return refresh_ > 0 && e.step != step_ && std::fmod(coded + 1, refresh_) == 0;
  }

  // Counts a step when its first bucket has been accepted; collective. Ends stage 2, and sends what
  // a step of stage 3 has learned, before anything is decoded by it.
  void accept(Exchange& e, bool trained) {
    if (e.step == step_) return;
    step_ = e.step;
    const double steps = ++state(kSteps);
    if (state(kCoding) == 0) {
      if (std::fmod(steps, train_) == 0 && steps / train_ <= kAttempts) decide(e, steps);
    } else if (trained) {
      broadcast(e, autoencoder_.weights());
    }
  }

  // Returns whether the last attempt has failed.
  bool closed() const { return state(kCoding) == 0 && state(kSteps) >= kAttempts * train_; }

  void decide(Exchange& e, double steps) {
    const bool good = autoencoder_.steps() > 0 && state(kError) < gate_;
    const Tensor verdict = Tensor::from({good ? 1.0f : 0.0f, state(kError), state(kGap)});
    broadcast(e, verdict);
    const float* from_first = verdict.data<float>();
    state(kError) = from_first[1];
    state(kGap) = from_first[2];
    const auto percent = [](float part) {
      return concat(std::lround(100 * std::min(part, 10.0f)), " %");
    };
    note_ = concat("lgc: after ", steps, " steps the autoencoder loses ", percent(state(kError)),
                   " of the energy of the values");
    if (from_first[0] == 0) {
      note_ += steps / train_ < kAttempts ? "; the training continues"
                                          : "; values are sent as they are, for good";
      return;
    }
    note_ += "; from now on codes are sent";
    if (state(kGap) > kMaxGap)
      note_ += concat(". Its decoder is so far from linear that ", percent(state(kGap)),
                      " of what is sent is lost for good");
    state(kCoding) = to_float(steps);
    broadcast(e, autoencoder_.weights());
  }

  // Sends x (n) f32 on the host from rank 0 to all.
  static void broadcast(Exchange& e, const Tensor& x) {
    const Tensor moved = x.to(e.device);
    e.ledger.book(e.comm, {{"autoencoder", PayloadKind::control, x.bytes()}},
                  [&] { e.comm.broadcast(moved, 0); });
    if (e.device.is_cuda()) x.copy_from(moved);
  }

  // ------------------------------------------------------------------------------------ indices

  static int64_t kept(const Item& item) { return kept_elements(item.layer->now, item.n()); }

  // Broadcasts what the leader selects: rho of each layer, and indices into the bucket's layers
  // laid end to end.
  Selected select(Exchange& e) const {
    Selected out;
    int64_t n = 0;
    for (const Item& item : e.compressed) n += item.n(), out.k += kept(item);
    const int64_t k = out.k;
    const int64_t bytes = by_value_ ? packed_bytes(k, bits_below(n)) : DeltaCode{n, k}.max_bytes();
    const int64_t head = 4 * std::ssize(e.compressed);
    Tensor message = host_zeros({head + bytes}, DType::u8);
    const auto leader = to_int(e.step % e.comm.size());
    if (e.comm.rank() == leader) encode_indices(e, n, message);
    message = message.to(e.device);
    std::vector<PayloadPart> parts = {{"rho", PayloadKind::control, head}};
    int64_t done = 0, booked = 0;
    for (const Item& item : e.compressed) {
      done += kept(item);
      parts.push_back({item.name(), PayloadKind::indices, bytes * done / k - booked});
      booked += parts.back().bytes;
    }
    e.ledger.book(e.comm, parts, [&] { e.comm.broadcast(message, leader); });
    decode_indices(e, n, message.to(Device{}), out);
    return out;
  }

  void encode_indices(const Exchange& e, int64_t n, const Tensor& message) const {
    const TraceRange range("compress", "select, as the leader");
    std::vector<std::pair<float, uint32_t>> chosen;  // value in units of rho, index
    std::vector<float> rho;
    uint32_t first = 0;
    for (const Item& item : e.compressed) {
      const Tensor indices = select_indices({item.n(), kept(item)}, item.tensor);
      const Tensor values = Tensor::empty_on(e.device, indices.shape());
      HEDDLE_DISPATCH(e.device, gather(item.tensor, indices, values));
      const Tensor of_item = indices.to(Device{}), numbers = values.to(Device{});
      const double mean = squared_norm(numbers) / to_double(numbers.size());
      rho.push_back(mean < kLeastSquare ? 0.0f : to_float(std::sqrt(mean)));
      for (int64_t j = 0; j < of_item.size(); ++j)
        chosen.emplace_back(in_units(numbers.data<float>()[j], rho.back()),
                            first + static_cast<uint32_t>(of_item.data<int32_t>()[j]));
      first += static_cast<uint32_t>(item.n());
    }
    if (by_value_) std::ranges::sort(chosen);
    Indices all;
    for (const auto& [value, index] : chosen) all.push_back(index);
    std::memcpy(message.raw(), rho.data(), 4 * rho.size());
    uint8_t* to = message.data<uint8_t>() + 4 * rho.size();
    const auto k = std::ssize(all);
    if (by_value_)
      pack_bits(all.data(), k, bits_below(n), to);
    else
      std::ranges::copy(DeltaCode{n, k}.encode(all), to);
  }
  static float in_units(float value, float rho) { return rho > 0 ? value / rho : 0.0f; }

  // Throws Error for indices that do not fit the layers.
  void decode_indices(const Exchange& e, int64_t n, const Tensor& message, Selected& out) const {
    const TraceRange range("compress", "decode indices");
    const size_t head = 4 * e.compressed.size();
    out.rho.resize(e.compressed.size());
    out.units.resize(to_size(out.k));
    std::memcpy(out.rho.data(), message.raw(), head);
    for (const float rho : out.rho)
      if (!(rho >= 0 && std::isfinite(rho)))
        throw Error(concat("lgc: expected a root mean square, found ", rho));
    Indices all(to_size(out.k));
    if (by_value_) {
      unpack_bits(message.data<uint8_t>() + head, out.k, bits_below(n), all.data());
    } else {
      std::span<const uint8_t> rest{message.data<uint8_t>() + head, to_size(message.size()) - head};
      all = DeltaCode{n, out.k}.decode(rest);
    }
    std::vector<int64_t> ends;  // of the layers
    for (const Item& item : e.compressed)
      ends.push_back((ends.empty() ? 0 : ends.back()) + item.n());
    std::vector<Indices> indices(ends.size());
    out.where.resize(ends.size());
    for (size_t j = 0; j < all.size(); ++j) {
      const auto layer =
          to_size(std::upper_bound(ends.begin(), ends.end(), int64_t{all[j]}) - ends.begin());
      if (layer == ends.size()) continue;
      indices[layer].push_back(
          static_cast<uint32_t>(all[j] - (ends[layer] - e.compressed[layer].n())));
      out.where[layer].push_back(j);
      out.units[j] = out.rho[layer];
    }
    for (size_t i = 0; i < ends.size(); ++i) {
      if (std::ssize(indices[i]) != kept(e.compressed[i]))
        throw Error(concat("lgc: the leader selects ", indices[i].size(), " elements of ",
                           e.compressed[i].name(), ", expected ", kept(e.compressed[i])));
      out.indices.push_back(index_tensor(indices[i]).to(e.device));
    }
    std::ranges::sort(all);
    if (std::ranges::adjacent_find(all) != all.end())
      throw Error("lgc: the leader selects an element twice");
  }

  // ------------------------------------------------------------------------------------- values

  // Returns this rank's values (k) f32 at the indices, on the host, in the order of the sequence.
  static Tensor gather_values(const Exchange& e, const Selected& selected) {
    const TraceRange range("compress", "gather values");
    Tensor out = Tensor::empty_on(Device{}, {selected.k});
    for (size_t i = 0; i < selected.indices.size(); ++i) {
      const Tensor values = Tensor::empty_on(e.device, selected.indices[i].shape());
      HEDDLE_DISPATCH(e.device, gather(e.compressed[i].tensor, selected.indices[i], values));
      explain_selection(e.compressed[i], values);
      const Tensor host = values.to(Device{});
      for (size_t j = 0; j < selected.where[i].size(); ++j)
        out.data<float>()[selected.where[i][j]] = host.data<float>()[j];
    }
    return out;
  }
  // Returns layer i's elements of a sequence, on the device.
  static Tensor of_layer(const Exchange& e, const Selected& selected, size_t i, const Tensor& x) {
    const Tensor out = Tensor::empty_on(Device{}, selected.indices[i].shape());
    for (size_t j = 0; j < selected.where[i].size(); ++j)
      out.data<float>()[j] = x.data<float>()[selected.where[i][j]];
    return out.to(e.device);
  }
  // Divides a tensor (n) among the layers in proportion to their selected elements, for the ledger.
  static NamedTensors shares(const Exchange& e, const Selected& selected, const Tensor& x) {
    NamedTensors out;
    int64_t done = 0, begin = 0;
    for (const Item& item : e.compressed) {
      done += kept(item);
      const int64_t end = x.size() * done / selected.k;
      out.emplace_back(item.name(), x.slice(std::exchange(begin, end), end));
    }
    return out;
  }

  // ------------------------------------------------------------------------------------ stage 2

  bool exchange_values(Exchange& e, const Selected& selected) {
    const int64_t k = selected.k, ranks = e.comm.size();
    const Tensor mine = gather_values(e, selected);
    std::vector<MessagePart> parts;
    for (const auto& [name, x] : shares(e, selected, mine))
      parts.push_back({name, PayloadKind::values, x});
    const Messages all = gather_messages(e, parts, 1 + 4 * k, 1 + 4 * k, "lgc");
    if (!all.finite) return false;
    const Tensor bytes = all.bytes.to(Device{}), values = Tensor::empty_on(Device{}, {ranks, k});
    const Tensor sums = host_zeros({k});
    for (int64_t r = 0; r < ranks; ++r) {
      float* row = values.data<float>() + r * k;
      std::memcpy(row, bytes.data<uint8_t>() + r * (1 + 4 * k) + 1, to_size(4 * k));
      for (int64_t j = 0; j < k; ++j) sums.data<float>()[j] += row[j];
    }
    if (largest_magnitude_of({values, sums}) > magnitude(kMaxSum)) return false;
    if (!e.dense.empty() && !all_reduce(e, e.dense)) return false;
    if (e.comm.rank() == 0 && sends(selected)) train(values, selected.units);
    accept(e, true);
    for (size_t i = 0; i < e.compressed.size(); ++i) {
      const Item& item = e.compressed[i];
      feedback_->keep_unsent(item.name(), item.old_residual(), selected.indices[i]);
      const Tensor sum = of_layer(e, selected, i, sums);
      HEDDLE_DISPATCH(e.device, scatter(sum, selected.indices[i], item.sum));
    }
    return true;
  }

  // Trains for one step on a window of the values (P, k), each divided by its unit.
  void train(const Tensor& values, const std::vector<float>& units) {
    const TraceRange range("compress", "train the autoencoder");
    const int64_t ranks = values.shape()[0], k = values.shape()[1], length = std::min(k, kWindow);
    const int64_t windows = ceil_div(k, kWindow);
    const double turns = state(kSteps) / (state(kCoding) > 0 ? refresh_ : 1);
    const int64_t turn = to_int64(turns) % windows;  // counts steps: several buckets train in turn
    const int64_t begin = std::min(turn * kWindow, k - length);
    const Tensor x = Tensor::empty_on(Device{}, {ranks, length});
    for (int64_t r = 0; r < ranks; ++r)
      for (int64_t j = 0; j < length; ++j)
        x.data<float>()[r * length + j] =
            in_units(values.data<float>()[r * k + begin + j], units[to_size(begin + j)]);
    if (largest_magnitude_of({x.reshape({x.size()})}) > magnitude(kMaxValue)) return;
    const bool first = state(kError) == 0;
    const GradientAutoencoder::Fit fit = autoencoder_.train(x, lr_);
    if (!std::isfinite(fit.error) || !std::isfinite(fit.gap)) return;
    const auto follow = [&](State which, double now) {
      state(which) += to_float((first ? 1 : kErrorWeight) * (now - state(which)));
    };
    follow(kGap, fit.gap);
    follow(kError, fit.error);
  }

  // ------------------------------------------------------------------------------------ stage 3

  bool exchange_codes(Exchange& e, const Selected& selected) {
    const auto ranks = to_float(e.comm.size());
    const bool sending = sends(selected);
    NamedTensors tensors = e.dense;
    Tensor mine, code;
    if (sending) {
      const TraceRange range("compress", "encode");
      const Tensor x = gather_values(e, selected);
      for (size_t j = 0; j < selected.units.size(); ++j) {
        float& v = x.data<float>()[j];
        const bool finite = std::isfinite(v);
        v = in_units(v, selected.units[j]);  // a code mixes layers: a huge value would disturb all
        if (!closed() && finite) v = std::clamp(v, -kMaxValue, kMaxValue);
      }
      mine = closed() ? x : autoencoder_.encode(x);
      code = mine.clone().to(e.device);
      for (const auto& share : shares(e, selected, code)) tensors.push_back(share);
    }
    if (!all_reduce(e, tensors)) return false;
    const TraceRange range("compress", "decode, residuals");
    Tensor own, sums;
    if (sending) {
      const Tensor mean = code.to(Device{});
      for (int64_t j = 0; j < mean.size(); ++j) mean.data<float>()[j] /= ranks;
      own = decoded(selected, mine, -1);
      sums = decoded(selected, mean, ranks);
      if (largest_magnitude_of({sums}) > magnitude(kMaxSum)) return false;
    }
    accept(e, false);
    for (size_t i = 0; i < e.compressed.size(); ++i) {
      const Item& item = e.compressed[i];
      item.sum.fill_zero();
      if (!sending) continue;
      const Tensor sent = of_layer(e, selected, i, own), sum = of_layer(e, selected, i, sums);
      HEDDLE_DISPATCH(e.device, scatter_add(sent, selected.indices[i], item.tensor));
      HEDDLE_DISPATCH(e.device, scatter(sum, selected.indices[i], item.sum));
    }
    return true;
  }
  // Returns what a code decodes to (the code itself once the gate is closed), times a factor, in
  // the gradients' own unit: (k).
  Tensor decoded(const Selected& selected, const Tensor& code, float factor) const {
    Tensor x = closed() ? code.clone() : autoencoder_.decode(code).slice(0, selected.k);
    for (size_t j = 0; j < selected.units.size(); ++j)
      x.data<float>()[j] *= factor * selected.units[j];
    return x;
  }
  // Returns whether the leader has selected anything but zeros.
  static bool sends(const Selected& selected) { return std::ranges::max(selected.rho) > 0; }

  double train_, lr_, gate_, refresh_;
  bool by_value_;
  GradientAutoencoder autoencoder_;
  Tensor state_;  // (kStates), see State
  std::string note_;
  int64_t step_ = -1;  // the last that was counted
};

}  // namespace

std::unique_ptr<Reducer> make_lgc(const ReducerSetup& setup) {
  return std::make_unique<Lgc>(setup);
}

}  // namespace heddle
