#include "tests/comm_suite.h"

#include <algorithm>

#include "comm/feature_store.h"
#include "core/kernels.h"

namespace heddle {
namespace {

class Suite {
 public:
  Suite(Communicator& comm, std::vector<std::string>& failures)
      : comm_(comm), failures_(failures), p_(comm.size()), r_(comm.rank()) {}

  template <class T>
  void run_type(int64_t n) {
    all_reduce<T>(n);
    reduce_scatter<T>(n);
    for (int root = 0; root < p_; ++root) broadcast<T>(n, root);
    all_gather<T>(n);
    all_to_all<T>(n);
  }

  // Parcels between random pairs, and some of no bytes; several graphs without a barrier between
  // them, so that parcels of two exchanges could mix. `large`: the longest, in bytes.
  void run_exchanges(int64_t large) {
    exchange<uint8_t>("ring", [&](int64_t from, int64_t to) {
      const int64_t length[] = {1, large, 0, 13};
      return to == (from + 1) % p_ || from == (to + 1) % p_ ? length[from % 4] : -1;
    });
    for (int64_t graph = 0; graph < 6; ++graph)
      exchange<float>("random", [&](int64_t from, int64_t to) {
        const int64_t chance = (from * 7919 + to * 104729 + graph * 1299709) % 1000;
        return chance < 400 ? chance * large / 1600 : -1;
      });
    exchange<int64_t>("everyone", [&](int64_t from, int64_t to) { return from + 2 * to; });
    exchange<int32_t>("nobody", [&](int64_t, int64_t) { return -1; });
    // All but the last rank, which has no peers.
    exchange<float>("alone", [&](int64_t from, int64_t to) {
      return from == p_ - 1 || to == p_ - 1 ? -1 : 100;
    });
  }

  // Rows of a matrix that the ranks own in turn, of two types; the second rank fetches none.
  void run_features() {
    constexpr int64_t kRows = 61, kWidth = 13;
    std::vector<int32_t> owners, ids;
    int64_t own = 0, remote = 0;
    for (int32_t i = 0; i < kRows; ++i) {
      owners.push_back(static_cast<int32_t>(i * 5 % p_));
      own += owners.back() == r_ ? 1 : 0;
    }
    for (int64_t i = 0; i < 40 && r_ != 1; ++i) {
      ids.push_back(static_cast<int32_t>((i * i * 7 + r_ * 11) % kRows));  // some more than once
      remote += owners[static_cast<size_t>(ids.back())] != r_ ? 1 : 0;
    }
    for (const DType type : {DType::f32, DType::u8}) {
      const Tensor rows = Tensor::empty_on(Device{}, {own, kWidth}, type);
      const auto feature = [](int64_t row, int64_t c) { return 50 + value(row, c, 3); };
      const auto fill = [&]<class T>() {
        for (int64_t row = 0, at = 0; row < kRows; ++row)
          for (int64_t c = 0; c < kWidth && owners[static_cast<size_t>(row)] == r_; ++c)
            rows.data<T>()[at++] = static_cast<T>(feature(row, c));
      };
      type == DType::f32 ? fill.template operator()<float>() : fill.template operator()<uint8_t>();
      const FeatureStore store(owners, static_cast<int>(r_), rows);
      if (store.remote(ids) != remote) failures_.push_back("features: wrong number of remote rows");
      tag("features", dtype_size(type));
      Ledger ledger;
      const Tensor x = store.fetch(ids, comm_, ledger);
      const auto expected = [&](int64_t i) {
        return feature(ids[static_cast<size_t>(i / kWidth)], i % kWidth);
      };
      type == DType::f32 ? expect<float>(x, "features", expected)
                         : expect<uint8_t>(x, "features", expected);
      if (p_ == 1) continue;
      const int64_t row_bytes = kWidth * dtype_size(type);
      const auto& entries = ledger.entries();
      const int64_t asked = entries.at({"features ids", PayloadKind::features}).sent,
                    received = entries.at({"features", PayloadKind::features}).received;
      if (asked != 4 * remote || received != row_bytes * remote)
        failures_.push_back(concat("rank ", r_, ": ", remote, " rows of ", row_bytes,
                                   " bytes cost ", asked, " and ", received));
      try {
        (void)store.fetch(std::vector{int32_t{kRows}}, comm_, ledger);
        failures_.push_back("features: a row that nobody has was fetched");
      } catch (const InputError&) {
      }
    }
  }

 private:
  // Values that differ by rank, index and use, small enough for exact sums in every type but bf16.
  static int64_t value(int64_t rank, int64_t i, int64_t use) {
    return (rank * 37 + i * 11 + use * 5 + i / 97) % 101 - 50;
  }
  template <class T>
  static Tensor make(const Shape& shape, int64_t rank, int64_t use) {
    const Tensor x = Tensor::empty_on(Device{}, shape, dtype_of<T>());
    T* out = x.data<T>();
    for (int64_t i = 0, n = x.size(); i < n; ++i) out[i] = static_cast<T>(value(rank, i, use));
    return x;
  }
  template <class T>
  void expect(const Tensor& x, const std::string& what, auto&& expected) {
    const T* found = x.data<T>();
    for (int64_t i = 0, n = x.size(); i < n; ++i)
      if (found[i] != static_cast<T>(expected(i))) {
        failures_.push_back(concat("rank ", r_, " of ", p_, ", ", what, ", ", n,
                                   " elements: element ", i, ": expected ", expected(i), ", found ",
                                   static_cast<double>(found[i])));
        return;
      }
  }
  int64_t sum(int64_t i, int64_t use) const {
    int64_t total = 0;
    for (int64_t q = 0; q < p_; ++q) total += value(q, i, use);
    return total;
  }

  // Compares the bytes counted by a call with the formula of comm/collectives.h.
  void expect_bytes(const char* collective, int64_t sent, int64_t tolerance) {
    const Traffic t = comm_.traffic().at({collective, comm_.tag()});
    if (std::abs(t.sent - sent) > tolerance)
      failures_.push_back(concat("rank ", r_, ", ", collective, " ", comm_.tag(), ": expected ",
                                 sent, " bytes sent, counted ", t.sent));
  }
  void tag(const char* type, int64_t n) { comm_.set_tag(concat(type, " ", n, " #", ++calls_)); }

  template <class T>
  void all_reduce(int64_t n) {
    tag(dtype_name(dtype_of<T>()), n);
    const Tensor x = make<T>({n}, r_, 1);
    comm_.all_reduce(x);
    expect<T>(x, "all_reduce", [&](int64_t i) { return sum(i, 1); });
    const auto element = static_cast<int64_t>(sizeof(T));
    expect_bytes("all_reduce", 2 * n * element * (p_ - 1) / p_, 2 * p_ * element);
  }
  template <class T>
  void reduce_scatter(int64_t n) {
    tag(dtype_name(dtype_of<T>()), n);
    const Tensor all = make<T>({p_, n}, r_, 2), before = all.clone();
    const Tensor mine = Tensor::empty_on(Device{}, {n}, dtype_of<T>());
    comm_.reduce_scatter(all, mine);
    expect<T>(mine, "reduce_scatter", [&](int64_t i) { return sum(r_ * n + i, 2); });
    expect<T>(all, "reduce_scatter's input",
              [&](int64_t i) { return static_cast<int64_t>(before.data<T>()[i]); });
    expect_bytes("reduce_scatter", n * static_cast<int64_t>(sizeof(T)) * (p_ - 1), 0);
  }
  template <class T>
  void broadcast(int64_t n, int root) {
    tag(dtype_name(dtype_of<T>()), n);
    const Tensor x = make<T>({n}, r_, 3);
    comm_.broadcast(x, root);
    expect<T>(x, concat("broadcast from ", root), [&](int64_t i) { return value(root, i, 3); });
  }
  template <class T>
  void all_gather(int64_t n) {
    tag(dtype_name(dtype_of<T>()), n);
    const Tensor mine = make<T>({n}, r_, 4);
    const Tensor all = Tensor::empty_on(Device{}, {p_, n}, dtype_of<T>());
    comm_.all_gather(mine, all);
    expect<T>(all, "all_gather", [&](int64_t i) { return value(i / n, i % n, 4); });
    expect_bytes("all_gather", n * static_cast<int64_t>(sizeof(T)) * (p_ - 1), 0);
  }
  template <class T>
  void all_to_all(int64_t n) {
    tag(dtype_name(dtype_of<T>()), n);
    const Tensor sent = make<T>({p_, n}, r_, 5);
    const Tensor received = Tensor::empty_on(Device{}, {p_, n}, dtype_of<T>());
    comm_.all_to_all(sent, received);
    expect<T>(received, "all_to_all", [&](int64_t i) { return value(i / n, r_ * n + i % n, 5); });
    expect_bytes("all_to_all", n * static_cast<int64_t>(sizeof(T)) * (p_ - 1), 0);
  }

  // `elements` returns how many a rank sends to another; -1: no parcel.
  template <class T>
  void exchange(const std::string& graph, auto&& elements) {
    tag(graph.c_str(), 0);
    std::vector<Parcel> out, in;
    int64_t sent = 0, received = 0;
    for (int64_t q = 0; q < p_; ++q) {
      if (q == r_) continue;
      const int64_t to = elements(r_, q), from = elements(q, r_);
      if (to >= 0) out.push_back({static_cast<int>(q), make<T>({to}, r_, q + 8 * calls_)});
      if (from < 0) continue;
      in.push_back({static_cast<int>(q), Tensor::empty_on(Device{}, {from}, dtype_of<T>())});
      std::fill_n(in.back().data.data<T>(), from, static_cast<T>(99));  // which nobody sends
    }
    for (const auto& [peer, data] : out) sent += data.bytes();
    for (const auto& [peer, data] : in) received += data.bytes();
    std::ranges::reverse(in);  // the order of parcels does not matter
    comm_.exchange(out, in);
    for (const Parcel& parcel : in)
      expect<T>(parcel.data, concat("exchange, ", graph, ", from ", parcel.peer),
                [&](int64_t i) { return value(parcel.peer, i, r_ + 8 * calls_); });
    expect_bytes("exchange", sent, 0);
    if (const Traffic t = comm_.traffic().at({"exchange", comm_.tag()}); t.received != received)
      failures_.push_back(concat("rank ", r_, ", ", graph, ": expected ", received,
                                 " bytes received, counted ", t.received));
  }

  Communicator& comm_;
  std::vector<std::string>& failures_;
  int64_t p_, r_;
  int64_t calls_ = 0;
};

}  // namespace

std::vector<std::string> check_collectives(Communicator& comm, int64_t large) {
  std::vector<std::string> failures;
  Suite suite(comm, failures);
  const int64_t p = comm.size();
  for (int64_t n : {int64_t{0}, int64_t{1}, p - 1, p, 2 * p + 1, int64_t{1000}, large}) {
    suite.run_type<float>(n);
    suite.run_type<int32_t>(n);
    suite.run_type<int64_t>(n);
    comm.barrier();
  }
  suite.run_exchanges(large);
  suite.run_features();
  comm.set_tag("");
  return failures;
}

}  // namespace heddle
