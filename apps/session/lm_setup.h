// From the options of train_lm to text and network, and to the plan that --dry-run prints.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/lm_options.h"
#include "apps/models/evaluate_text.h"
#include "apps/models/lm_card.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "data/text.h"
#include "layers/lstm_lm.h"

namespace heddle {

// What the run folder or file of --init says of its model, so that no flag has to be repeated.
// Throws InputError when it is of another --level.
LmCard read_card(TrainLmOptions& o, FlagTable& flags);
// Throws InputError for a corpus whose validation or test text is too short to predict anything.
Corpus open_text(const TrainLmOptions& o);
LstmLmOptions network_options(const TrainLmOptions& o, int64_t vocabulary);
// The columns of this rank.
TokenBatches make_batches(const TrainLmOptions& o, const Corpus& corpus, const Communicator& comm);
// Updates of an epoch and of the run. Throws InputError when an epoch has fewer than --accumulate
// windows.
StepPlan plan_steps(const TrainLmOptions& o, const TokenBatches& train);
// Tokens of a window, over all learners.
int64_t units_per_batch(const TrainLmOptions& o, int learners);
// What must be equal where a run goes on from a checkpoint: network, vocabulary and text.
nlohmann::ordered_json identity(const TrainLmOptions& o, const Corpus& corpus);
// The last validation, or the best one, that a checkpoint keeps. Throws InputError.
TextEvaluation parse_text_evaluation(const Checkpoint& checkpoint);
// Plateau lowers the rate after every epoch that is not better than all before it, as
// word_language_model does.
Schedule make_schedule(const TrainLmOptions& o, const StepPlan& plan);

// The first line of every run: network, text, device, threads, precision, seed. A corpus without
// text was not needed.
std::string describe(const TrainLmOptions& o, const ParameterStore& store, int64_t vocabulary,
                     const Corpus& corpus, const Communicator& comm);

// The text of --dry-run, or one JSON object with --json. The memory of activations is measured on
// two small batches and extrapolated.
std::string describe_plan(const TrainLmOptions& o, Context& context, const LstmLm& model,
                          ParameterStore& store, const TokenBatches& train);

// The resolved configuration as TOML, with a remark on each default.
std::string config_text(const TrainLmOptions& o, const FlagTable& flags);

// The prompt in tokens, "" as none. Throws InputError for what the vocabulary lacks.
std::vector<int32_t> encode_prompt(const TrainLmOptions& o, const Vocabulary& vocabulary);
// What a text without a prompt follows upon: a line end if there is one, else the first token.
int32_t start_token(TextLevel level, const Vocabulary& vocabulary);
// Prompt and continuation.
std::string generate(const TrainLmOptions& o, const LstmLm& model, const Vocabulary& vocabulary);

bool is_char_level(const TrainLmOptions& o);
// Of a mean loss per token: perplexity at word level, bits per character at character level.
const char* score_key(const TrainLmOptions& o);
double score(const TrainLmOptions& o, double loss);
// "perplexity 121.39", "2.104 bits per character".
std::string score_text(const TrainLmOptions& o, double loss);

}  // namespace heddle
