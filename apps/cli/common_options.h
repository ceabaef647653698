// The options that both programs share: fields, flags and rules. Each program adds its own
// (apps/cli/resnet_options.h, apps/cli/lm_options.h). A field's initial value is its default; if a
// rule decides instead, the program's resolve() sets the field and --dump-config shows the result.
// After resolve(), `parsed` holds the typed values of texts such as --compress and --device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/flags.h"
#include "apps/cli/privacy_options.h"
#include "comm/net_model.h"
#include "compress/spec.h"
#include "core/device.h"

namespace heddle {

// --compress: a family and its settings; automatic: each bucket by that or dense, as measured.
struct CompressChoice {
  CompressSpec spec;
  bool automatic = false;
};
// Reads "none", "topk:density=0.01", "auto" or "auto:SPEC". Throws InputError.
CompressChoice parse_compress_choice(const std::string& text);

// --save-every: a number of steps or of epochs; 0: only after a signal.
struct SaveInterval {
  int64_t count = 1;
  bool epochs = true;
  int64_t steps(int64_t steps_per_epoch) const { return epochs ? count * steps_per_epoch : count; }
};
// Reads "400", "epoch", "2epochs". Throws InputError.
SaveInterval parse_save_every(const std::string& text);

// --trace-steps: the first and the last traced step, counted from 1.
struct StepRange {
  int64_t first = 2, last = 6;
};
// Reads "A:B" with 1 <= A <= B. Throws InputError.
StepRange parse_step_range(const std::string& text);

// The number of learners of a run, and the transport between them.
struct LearnerPlan {
  std::string kind = "solo";  // "solo", "threads", "mpi"
  int size = 1;               // ranks; under a launcher, as many as it started
  int on_machine = 1;         // ranks that share this machine's cores
};

// The typed values of the options of the same names. resolve() reads each text once; everything
// after it uses these values, and the texts only for config.toml and messages.
struct ParsedOptions {
  Device device;
  LearnerPlan learners;
  CompressChoice compress;
  CompressSpec start_compress;
  std::optional<NetModel> net;
  int hosts = 0;  // -1: auto
  SaveInterval save_every;
  StepRange trace_steps;
};

struct CommonOptions {
  // data and run
  std::string data, device = "auto", precision = "fp32", init, freeze;
  int64_t seed = 1, threads = 0, workers = 1;
  bool deterministic = false;
  bool tf32 = false, tune = true;
  std::string graph = "auto";
  // learners
  int64_t learners = 1;
  std::string comm = "auto", net, overlap = "on";
  bool ledger = false;
  // exchange of gradients
  std::string compress = "none", start_compress = "none", dense_layers, clip_mode,
              compressed_momentum;
  int64_t compress_start = -1, min_compress = 1024, shadow = 0;
  std::string layerwise = "uniform", plan;
  std::string lgreco = "alpha=1,every=epoch,window=10,errors=gradients,objective=bytes";
  PrivacyOptions dp;
  double comm_timeout = 60, bucket_mb = 4;
  std::string hosts;
  // rounds of several steps, or no sums over all learners
  int64_t local_steps = 1;
  double outer_lr = 1, outer_momentum = 0;
  int64_t outer_delay = 0;
  std::string peers, innovation = "none", peer_rule = "dual";
  double peer_mixing = 0;
  int64_t resync = 1000;
  // duration and batch
  int64_t epochs = 0, steps = 0, batch_size = 0, global_batch_size = 0, accumulate = 1;
  // the update rule
  std::string optimizer = "sgd";
  double lr = 0, momentum = 0.9, weight_decay = 0, clip_grad_norm = 0;
  bool nesterov = true, decay_norm_bias = true;
  std::string lr_scheduler = "onecycle";
  double lr_warmup_epochs = 0, lr_gamma = 0.1;
  std::vector<int64_t> lr_milestones;
  int64_t lr_step_size = 0;
  std::string on_nonfinite = "bucket";
  int64_t max_skipped = 10;
  double max_loss = 0;
  // output
  std::string output_dir, name, trace, trace_steps;
  int64_t print_freq = 50, explain_step = 0, dump_gradients = 0;
  bool json = false, quiet = false, report = true, tensorboard = true;
  // checkpoints
  std::string save_every = "1epoch", resume;
  int64_t keep = 2;
  bool resume_anyway = false;
  // instead of training
  double headroom = 0;
  std::string headroom_net;
  bool evaluate = false, dry_run = false, dump_config = false, list = false, version = false;
  bool help = false, man = false;
  std::string completion;
  bool train = false;    // train before --predict or --generate
  bool training = true;  // set by resolve()
  std::string config;
  ParsedOptions parsed;
};

// Fills o.parsed. Throws InputError for a text that cannot be read.
void parse_texts(CommonOptions& o);
// Returns the MiB of a bucket if nobody says: on a GPU an exchange costs the same 0.1 ms for a
// small one (docs/benchmarks.md).
inline int default_bucket_mb(Device device) { return device.is_cuda() ? 25 : 4; }

// The group of --help that asks something of a program instead of training.
inline constexpr const char* kQuestions = "Weights, configuration, questions";
// Parts of the summary in each program's --help: where flags may be set, and its end.
inline constexpr const char* kFlagSources =
    " Most flags can also be set in the environment (HEDDLE_BATCH_SIZE=64) or in a file "
    "(--config); the flag overrides the environment, the environment overrides the file.";
inline constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 runtime error, 2 usage or bad input, 3 diverged, 75 stopped "
    "by a signal\nafter a checkpoint.";

// Adds the groups from "Data and machine" to "Weights, configuration, questions". The program
// changes texts that depend on it afterwards, by FlagTable::at().
void add_common_flags(FlagTable& flags, CommonOptions& o);

// Sets the field of a flag that was not given.
template <class T, class U>
void set_default(const FlagTable& flags, const char* name, T& target, const U& value) {
  if (!flags.given(name)) target = value;
}

// Returns the path within the folder that HEDDLE_DATA names for a relative --data that exists only
// there; else `data`. `embedded` is the name of the built-in data set.
std::string find_data(const std::string& data, const std::string& embedded);

// Sets o.batch_size: `by_rule` unless --batch-size or --global-batch-size is given. Of the two, the
// stronger source decides; within a file the global one, because a dumped configuration has both.
// Throws InputError if any other source gives both, and for a global batch that is no multiple of
// the number of learners times --accumulate.
void resolve_batch_size(CommonOptions& o, FlagTable& flags, int64_t by_rule);

// The last part of resolve(): makes paths absolute (`embedded` is the --data that is not a path),
// sets defaults that do not depend on the data set, and throws InputError for contradictory flags.
void resolve_common(CommonOptions& o, FlagTable& flags, const std::string& embedded);

// Sets o.training, before parse_texts(). `use`: the given flag that uses trained weights, predict
// or generate, or "". Where nothing is trained, other learners that a file names are left out: a
// run's config.toml may be used for its evaluation. Throws InputError if there are no weights.
void decide_training(CommonOptions& o, const FlagTable& flags, const std::string& use);
// Decides from --learners, --comm, --net and the launcher's environment. Throws InputError for
// impossible combinations, such as --learners under a launcher or --net over a real network.
LearnerPlan plan_learners(const CommonOptions& o);
// Returns the flags that have no effect without another one, for FlagTable::check_needs().
std::vector<FlagTable::Need> common_needs(const CommonOptions& o);

// Returns whether learners vote (--compress topagg), and whose data that protects, in words: "a
// group of 8 images, used or left out".
bool is_voting(const CommonOptions& o);
std::string privacy_unit(const CommonOptions& o);
// Returns the momentum of what is exchanged: with --local-steps of the changes, else of gradients.
double exchanged_momentum(const CommonOptions& o);

// Returns "title a b c\n", for --list.
std::string list_row(const char* title, const std::vector<std::string>& names);
// Returns the rows of --list that both programs have.
std::string list_training_choices();

}  // namespace heddle
