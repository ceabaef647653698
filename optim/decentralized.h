// DecentralizedOptimizer: learners that exchange coded innovations with their neighbours in a graph
// and nothing else; no sum over all ranks is ever formed. Each has weights x of its own, which
// agree in the limit. COLD and Dyna-COLD (Zhang, You and Xie 2021, arXiv 2105.06697) are known to
// us from their abstract; this is a construction with the properties that it claims: NIDS (Li, Shi
// and Yan 2019, arXiv 1704.07807) with difference coding, LEAD (Liu et al. 2021, arXiv 2007.00232)
// with its estimate updated in full.
//
//   of rank i: x weights, d dual, e what its neighbours believe x to be,
//              a = sum_j w_ij (e_j - e_i)
//
//   time              ------------------------------------------------------------------->
//   main thread       | backward: layer 3 | update 3 | backward: layer 2 | update 2 | ...
//                       x' = x - lr * u (SGD, Adam)    |                    |
//   worker thread                                       | exchange, mix 3    | exchange, mix 2
//
//   exchange   q = C(x' - lr d - e) is sent to every neighbour, and theirs are received
//   mix        e += q,  a += sum_j w_ij (q_j - q),  d -= mixing / (2 lr) a,  x = x' - lr d
//
// Two laws hold for any code C, however poor, up to rounding: the duals of all ranks sum to zero,
// and the mean of the weights moves by -lr times the mean of the directions u, as plain descent
// would. For their sake d and a are in double precision, and a is a sum of differences: two
// neighbours add opposite numbers to it. A sum of w_ij e_j in fp32 would differ from e by a
// rounding error that d adds up without end. Memory: five more values per weight, and the buckets
// under way. On a GPU the exchange works on host copies. Updates that wait for the end of backward
// (Optimizer) delay the exchanges, too.
//
//   DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {},
//                                    {.peers = "ring", .innovation = "qsgd:bits=4"});
//   optimizer.begin_step(lr); ... as DataParallelOptimizer ... optimizer.finish_step();
//   Consensus now = optimizer.consensus();    // the mean of the weights: evaluate and save that,
//                                             // with the mean of batch norm's statistics
//
// Without the dual it is gossip: x = x' + mixing a, CHOCO-SGD (Koloskova, Stich and Jaggi 2019,
// arXiv 1902.00340; recalled), or D-PSGD without a code. Where the ranks' data differ it stops at a
// bias.
//
// All functions are for the thread that runs backward. Momentum, Adam and the clipping of a rank's
// own gradient work as usual, but no theory that we know covers them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/innovation.h"
#include "compress/reducer.h"
#include "optim/buckets.h"
#include "optim/comm_worker.h"
#include "optim/flooded_words.h"
#include "optim/learner_optimizer.h"
#include "optim/optimizer.h"
#include "optim/topology.h"

namespace heddle {

struct PeerOptions {
  std::string peers = "ring";       // the graph; see Topology::parse()
  std::string innovation = "none";  // the code; see parse_innovation()
  bool dual = true;                 // false: gossip, see above
  double mixing = 0;                // step of mixing, at most 1; 0: default_mixing()
  int64_t resync = 1000;            // steps after which a is recomputed; 0: never
  int64_t bucket_bytes = 4 << 20;   // as in DataParallelOptions
  bool overlap = true;              // false: exchanges begin when backward has ended; same bits
  bool broadcast = true;            // values and buffers begin as rank 0's; false: they are equal
  int64_t most_non_finite = 3;      // steps in a row that a rank's weights may be; 0: any number
  uint64_t seed = 0;                // of stochastic rounding
};

struct Consensus {
  Tensor mean;       // of the ranks' weights, f32 on the host, laid out as ParameterStore::values()
  double error = 0;  // sqrt(mean of ||x - mean||^2 over the ranks) / ||mean||
};

class DecentralizedOptimizer : public LearnerOptimizer {
 public:
  // Collective; store, communicator and Context as for DataParallelOptimizer. Throws InputError for
  // impossible options, and unless all ranks have the same graph and settings.
  DecentralizedOptimizer(ParameterStore& store, std::unique_ptr<UpdateRule> rule,
                         Communicator& comm, const OptimizerOptions& options = {},
                         const PeerOptions& peers = {});

  // Begins a step as Optimizer does; lr must be the same on all ranks.
  void begin_step(double lr) override;
  // Signal as for DataParallelOptimizer. The exchange of a bucket begins when both signals of all
  // its parameters, and of the buckets before it, have been given.
  void ready(Parameter& p) override { optimizer_.ready(p); }
  void weights_free(Parameter& p) override { optimizer_.weights_free(p); }
  // Ends the step as Optimizer does, and waits for the exchanges. A learner whose gradient was not
  // finite mixes all the same; weights that are not finite are not sent. The report is this rank's
  // own, and counts such weights as a skipped parameter. With a learning rate of 0 only control
  // words are exchanged. Throws Error when this rank's weights were not finite for most_non_finite
  // steps in a row.
  StepReport finish_step() override;

  void set_control(size_t word, float value) override { words_.set(word, value); }
  float control(size_t word) const override { return words_.sum(word); }
  int64_t control_delay() const override { return words_.delay(); }
  // Runs `call` on the worker thread after the exchanges, as DataParallelOptimizer does.
  // Collective.
  void post(const std::string& what, std::function<void(Communicator&, Ledger&)> call) override;
  void wait() override;
  // Returns the mean of the ranks' weights, the same on all ranks, and how far they are from it.
  // Collective; between steps only.
  Consensus consensus();
  Tensor shared_values() override { return consensus().mean; }
  void use_shared() override;
  void use_own() override;
  std::optional<double> consensus_error() const override { return error_; }

  int learners() const override { return comm_.size(); }
  bool own_weights() const override { return true; }
  int64_t dense_bytes() const override;
  const Optimizer& optimizer() const override { return optimizer_; }
  Totals totals() const override;
  const Ledger& ledger() const override { return ledger_; }
  const Topology& topology() const { return topology_; }
  double mixing() const { return mixing_; }
  // Returns the largest change that recomputing a has found, relative to the largest weight so
  // far: the rounding of e, about 1e-6. Between steps only.
  double drift() const { return extreme(kDrift); }
  // named_state() has the weights, the rule's state, d, e, a, the codes' scales and the extremes so
  // far, doubles as their bits (i64): views to copy from and into, between steps; on the host,
  // except the weights and the rule's state. With them the same ranks continue bit for bit, in the
  // same graph and with the same settings; others begin with begin_anew().
  State state() override;
  void restore(const State& state) override;
  NamedTensors named_state() const override;
  // Forgets what the ranks know of each other: their weights are equal.
  void begin_anew() override;

 private:
  bool alone() const { return comm_.size() == 1; }
  // The largest so far.
  enum Extreme : int64_t { kRate, kWeight, kDrift, kExtremes };
  double& extreme(Extreme which) const { return static_cast<double*>(extremes_.raw())[which]; }
  void raise(Extreme which, double value) { extreme(which) = std::max(extreme(which), value); }
  void updated(const Parameter& p);
  void post_complete_buckets();
  std::vector<Parcel> exchange_with_neighbours(const Tensor& own);
  void exchange(size_t index);
  void exchange_words();
  void resync();

  ParameterStore& store_;
  Communicator& comm_;
  PeerOptions peers_;
  Optimizer optimizer_;
  Topology topology_;
  std::vector<Topology::Neighbour> neighbours_;
  int timeouts_ = 1;  // a neighbour may talk to all of its others before this rank
  double mixing_;
  std::vector<const Parameter*> parameters_;  // by memory order: the layers of the coder
  InnovationCoder coder_;
  Tensor dual_, estimate_,
      apart_;  // d, e, a: laid out as the weights; d and a: bits of doubles, i64
  Buckets buckets_;
  size_t next_ = 0;  // the first bucket not posted yet in this step
  FloodedWords words_;
  Traffic outside_;              // of the communicator before this object
  Totals totals_;                // without the traffic of this process
  Tensor own_;                   // weights set aside by use_shared()
  std::optional<double> error_;  // at the last use_shared()
  int64_t step_ = 0;
  bool spoilt_ = false;  // by weights that are not finite, in this step; the worker's until drain()
  int64_t non_finite_ = 0;  // steps in a row
  Tensor extremes_;         // see Extreme; bits of doubles, i64
  Ledger ledger_;
  CommWorker worker_;  // last: its jobs use all of the above
};

}  // namespace heddle
