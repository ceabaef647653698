// Top-k: its messages, with indices as differences and plain, and messages that are invalid.
#include <algorithm>
#include <cstring>
#include <limits>

#include "compress/codecs/delta_code.h"
#include "tests/compress_helpers.h"

using namespace heddle;

TEST_CASE("top-k: differences of indices give the same sums as plain ones in fewer bytes") {
  for (int p : {1, 2, 3, 4})
    for (const bool single : {false, true}) {
      CAPTURE(p);
      CAPTURE(single);
      const ReduceOptions o{.steps = 5, .single_layers = single};
      const auto runs = reduce_ranks(p, "topk:density=0.02", o);
      const auto plain = reduce_ranks(p, "topk:density=0.02,indices=plain", o);
      for (size_t r = 0; r < runs.size(); ++r) {
        const RankRun& run = runs[r];
        CHECK(run.sums == plain[r].sums);
        CHECK(run.states == plain[r].states);
        if (p > 1) CHECK(run.traffic.sent < plain[r].traffic.sent);
        // The ledger's bytes equal those of the codec for the largest elements of every step.
        for (const std::string layer : {"conv2.weight", "fc.weight"}) {
          int64_t expected = 0;
          for (size_t s = 0; s < 5; ++s) {
            Values x = part_of(run.given[s], layer);
            for (size_t i = 0; s > 0 && i < x.size(); ++i)
              x[i] += run.states[s - 1].at("residual." + layer)[i];
            const DeltaCode code{std::ssize(x), kept_elements(0.02, std::ssize(x))};
            expected += std::ssize(code.encode(select_top(x, code.k)));
          }
          const auto& entry = run.ledger.entries().at({layer, PayloadKind::indices});
          CHECK(entry.payload == expected);
          CHECK(entry.payload <
                plain[r].ledger.entries().at({layer, PayloadKind::indices}).payload);
        }
        CHECK(run.ledger.entries().at({"lengths", PayloadKind::control}).payload ==
              (single ? 2 : 1) * 5 * 8);
      }
    }
}

TEST_CASE("top-k: an invalid message is refused, residuals are unchanged") {
  // A message of fc.weight: a flag, 35 values, 35 indices.
  constexpr size_t kIndicesAt = 1 + 35 * 4;
  std::vector<uint8_t> good(kIndicesAt);
  Indices indices(35);
  for (uint32_t i = 0; i < 35; ++i) indices[i] = 50 * i;
  const std::vector<uint8_t> packed = DeltaCode{1750, 35}.encode(indices);
  good.insert(good.end(), packed.begin(), packed.end());
  std::vector<uint8_t> cut = good, more = good, zeros = good;
  cut.pop_back();
  more.push_back(0);
  std::fill(zeros.begin() + kIndicesAt, zeros.end(), uint8_t{0});
  std::vector<uint8_t> infinite = good;  // no rank of ours sends it
  const float value = std::numeric_limits<float>::infinity();
  std::memcpy(infinite.data() + 1, &value, sizeof value);
  const auto result = [](const std::vector<uint8_t>& message, int64_t length) {
    std::string complaint;
    expect_none(run_ranks(2, [&](Communicator& comm) {
      if (comm.rank() == 1) {
        const Tensor own = Tensor::empty_on(Device{}, {1}, DType::i64);
        const Tensor all = Tensor::empty_on(Device{}, {2, 1}, DType::i64);
        *own.data<int64_t>() = length;
        comm.all_gather(own, all);
        if (length != std::ssize(message)) return;
        const int64_t longest = std::max(all.data<int64_t>()[0], length);
        const Tensor sent = Tensor::zeros({longest}, DType::u8);
        std::ranges::copy(message, sent.data<uint8_t>());
        comm.all_gather(sent, Tensor::empty_on(Device{}, {2, longest}, DType::u8));
        if (message[1 + 3] ==
            0x7f)  // rejected: all ranks name the rank whose gradient was not finite
          (void)gather_values(comm, std::vector<uint64_t>{0});
        return;
      }
      CompressModel model;
      const auto reducer = make_reducer(parse_compress("topk:density=0.02"), {}, model.store);
      const auto before = state_of(*reducer);
      model.fill_random(0, 0);
      Ledger ledger;
      bool accepted = false;
      try {
        accepted = reducer->reduce(model.bucket(0, 1, 2), comm, ledger);
        if (!accepted) complaint = "not accepted";
      } catch (const Error& error) {
        complaint = error.what();
      }
      if (!accepted && state_of(*reducer) != before) throw Error("the residuals have changed");
    }));
    return complaint;
  };
  CHECK(result(infinite, std::ssize(infinite)) == "not accepted");
  CHECK(result(good, std::ssize(good)) == "");
  CHECK(result(cut, std::ssize(cut)).find("bytes are missing") != std::string::npos);
  CHECK(result(more, std::ssize(more)) == "top-k: rank 1 sent 1 bytes too many");
  CHECK(result(zeros, std::ssize(zeros)).find("beyond a layer of 1750") != std::string::npos);
  for (const int64_t length : {int64_t{-1}, int64_t{0}, int64_t{140}, int64_t{1} << 40})
    CHECK(result(good, length).find(concat("rank 1 announces ", length)) != std::string::npos);
}
