// TopAgg (Wang et al. 2021, DataLens, arXiv 2103.11109): the units whose data are protected vote,
// +1 or -1 at the k largest elements of their gradient. The votes are summed, noise is added to
// every element, and only that is used: k bounds what a unit can change, so that the noise gives
// differential privacy.
//
//   rank 0: votes  -+  all-to-all,           owner of     sum, noise,        all-gather,
//   rank 1: votes  -+- few bits an element -> a share ---> sign where the --> 2 bits (sign) or
//   rank 2: votes  -+                                      sum > threshold    16 (votes)
//
// Every parameter is voted on: a dense one would be revealed. There are no residuals: a unit would
// influence steps in which it does not vote. Noise is dense even where votes are sparse: an
// element without noise would reveal that nobody chose it. A gradient with NaN or Inf is an empty
// vote, because a refused step would reveal it.
//
// Votes, threshold and signs are the paper's, recalled from its published code, where teachers vote
// on generated images; its abstract also reports TopAgg in the training of networks, and how that
// works is reconstructed here. The exchange is this project's. With vote=clip votes are whole
// gradients, clipped: DP-SGD (Abadi et al. 2016, arXiv 1607.00133; recalled).
//
//   auto reducer = make_reducer(parse_compress("topagg:density=0.1,sigma=100"),
//                               {.voting = {.voters = 75, .rate = 0.02, .replaced = false}},
//                               store);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compress/families.h"
#include "compress/reducer.h"
#include "core/privacy.h"

namespace heddle {

class TopAgg : public Reducer {
 public:
  // Throws InputError for a store with running statistics (they are averaged without noise), and
  // for settings and options that do not fit each other or that cannot protect what they claim.
  explicit TopAgg(const ReducerSetup& setup);

  const char* name() const override { return "topagg"; }
  bool votes() const override { return true; }
  // Gradients on any device; the votes are kept and exchanged on the host.
  void vote(int64_t step, int64_t vote, int rank) override;
  // Sets every p.grad to P * o of the bucket's votes, o in {-1, 0, 1} (output=sign), or to the
  // noisy sum over the expected number of voters of a rank (output=votes), times `clip` with
  // vote=clip. Counts a query at a step's first bucket. Always returns true.
  bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) override;
  RdpAccountant* accountant() override { return &accountant_; }
  std::map<std::string, double> figures() const override;

  // Returns the most bytes of a parameter's exchange if as many vote as expected: the mean of votes
  // and answers, since an all-to-all and an all-gather send as much as one all-reduce.
  int64_t payload(const Parameter& p) const;

 private:
  int64_t chosen() const;  // elements of a vote
  enum class Vote : uint8_t { sign, stochastic, clip };
  struct Layer {
    const Parameter* parameter;
    int64_t chosen;
  };

  static std::vector<Layer> layers_of(const ReducerSetup& setup);
  std::vector<double> take_votes(const GradientBucket& bucket);
  int width(const std::vector<double>& votes, Communicator& comm, Ledger& ledger) const;
  std::vector<double> sum_share(const GradientBucket& bucket, const std::vector<double>& votes,
                                Communicator& comm, Ledger& ledger);
  uint32_t answer(double noisy) const;
  float value_of(uint32_t answer, int ranks) const;

  VotingOptions voting_;
  Vote vote_;
  bool signs_;  // output=sign
  double threshold_, clip_;
  double unit_;  // of votes_ and of what is sent: 1, or with vote=clip a small power of two
  uint64_t noise_seed_;
  std::vector<Layer> layers_;
  // Sums since the last step, whole numbers, laid out as the flat gradient buffer.
  std::vector<double> votes_;
  RdpAccountant accountant_;
  int64_t step_ = -1;     // the last that was counted, and
  uint64_t buckets_ = 0;  // how many of its buckets were reduced
};

}  // namespace heddle
