// From the options of train_lm to text and network, and to the plan that --dry-run prints.
#pragma once

#include <cstdint>
#include <functional>
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

// Reads what the run folder or file of --init says of its model, so that no flag has to be
// repeated. Throws InputError when it is of another --level.
LmCard read_card(TrainLmOptions& o, FlagTable& flags);
// Reads the text, unless --generate needs no more than the vocabulary of --init's `card`. Throws
// InputError for a text too short to predict anything, another vocabulary than the card's, and
// where neither gives one.
Corpus open_text(const TrainLmOptions& o, const LmCard& card, const FlagTable& flags);
LstmLmOptions network_options(const TrainLmOptions& o, int64_t vocabulary);
// The columns of this rank.
TokenBatches make_batches(const TrainLmOptions& o, const Corpus& corpus, const Communicator& comm);
// Updates of an epoch and of the run. Throws InputError when an epoch has fewer than --accumulate
// windows.
StepPlan plan_steps(const TrainLmOptions& o, const TokenBatches& train);
// Returns the scale of a window's gradient. The loss is a mean over tokens, and the last window of
// an epoch may be shorter: scaled down, all tokens weigh the same.
float window_weight(const TrainLmOptions& o, int64_t tokens);
// Returns the tokens of a window over all learners.
int64_t units_per_batch(const TrainLmOptions& o, int learners);
// Returns what must be equal for a run to resume: network, vocabulary and text.
nlohmann::ordered_json identity(const TrainLmOptions& o, const Corpus& corpus);
// Return what a checkpoint keeps of the last validation, or the best one, and read it. The second
// throws InputError.
nlohmann::ordered_json text_evaluation_json(const TextEvaluation& valid);
TextEvaluation parse_text_evaluation(const Checkpoint& checkpoint);
// Plateau lowers the rate after every epoch that is not better than all before it, as
// word_language_model does.
ScheduleOptions lm_schedule(const TrainLmOptions& o, const StepPlan& plan);

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
// Returns the token that precedes a text without a prompt: a line end, else the first token.
int32_t start_token(TextLevel level, const Vocabulary& vocabulary);
// Prompt and continuation.
std::string generate(const TrainLmOptions& o, const LstmLm& model, const Vocabulary& vocabulary);

bool is_char_level(const TrainLmOptions& o);
// The score of a mean loss per token: perplexity at word level, bits per character at character
// level.
const char* score_key(const TrainLmOptions& o);
double score(const TrainLmOptions& o, double loss);
// "perplexity 121.39", "2.104 bits per character".
std::string score_text(const TrainLmOptions& o, double loss);

// Returns the function that adds the score of a loss to a step's metrics; `o` must outlive it.
std::function<nlohmann::ordered_json(double)> score_metrics(const TrainLmOptions& o);
// "test perplexity 121.39 (valid perplexity 125.02)"; empty where nothing was tested.
std::string results_text(const TrainLmOptions& o, const TextEvaluation& valid,
                         const TextEvaluation& test);
// Returns the program's keys of the final JSON object: valid_loss, valid_ppl and so on.
nlohmann::ordered_json results_json(const TrainLmOptions& o, const TextEvaluation& valid,
                                    const TextEvaluation& test);

}  // namespace heddle
