// Builds the text, its batches and the network from train_lm's options, describes them for the
// first line, --dry-run and checkpoints, and reports results in the level's measure.
//
//   const Corpus corpus = open_text(o, card, flags);
//   const TokenBatches train = make_batches(o, corpus, comm);
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/cli/lm_options.h"
#include "apps/models/evaluate_text.h"
#include "apps/models/lm_card.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "data/text.h"
#include "layers/lstm_lm.h"

namespace heddle {

// Reads how the model of --init, a run folder or file, is built, so that no flag has to be
// repeated; an empty card without --init. Throws InputError if its level contradicts --level.
LmCard read_card(TrainLmOptions& o, FlagTable& flags);
// Reads the text, unless --generate needs no more than the vocabulary of --init's `card`. Throws
// InputError for a text too short to predict anything, for a vocabulary unlike the card's, and
// if neither text nor card gives one.
Corpus open_text(const TrainLmOptions& o, const LmCard& card, const FlagTable& flags);
LstmLmOptions network_options(const TrainLmOptions& o, int64_t vocabulary);
// Returns the columns of this rank.
TokenBatches make_batches(const TrainLmOptions& o, const Corpus& corpus, const Communicator& comm);
// Returns the updates of an epoch and of the run. Throws InputError if an epoch has fewer than
// --accumulate windows.
StepPlan plan_steps(const TrainLmOptions& o, const TokenBatches& train);
// Returns the scale of a window's gradient. The loss is a mean over tokens, and the last window of
// an epoch may be shorter: scaling its gradient down gives all tokens equal weight.
float window_weight(const TrainLmOptions& o, int64_t tokens);
// Returns the tokens of a window over all learners.
int64_t units_per_batch(const TrainLmOptions& o, int learners);
// Returns what must be equal for a run to resume: network, vocabulary and text.
nlohmann::ordered_json identity(const TrainLmOptions& o, const Corpus& corpus);
// Returns the last validation, or the best one, as a checkpoint keeps it; "valid_loss" is null
// before the first one.
nlohmann::ordered_json text_evaluation_json(const TextEvaluation& valid);
// Reads an evaluation back, from a checkpoint ("valid_loss") or a line of metrics ("loss").
TextEvaluation parse_text_evaluation(const nlohmann::json& json, const char* loss_key);
// Returns the schedule of the learning rate. Plateau lowers the rate after every epoch that is not
// better than all before it, as word_language_model does.
ScheduleOptions lm_schedule(const TrainLmOptions& o, const StepPlan& plan);

// Returns the first line of every run: network, text (if it was read), device, threads, precision,
// seed.
std::string describe(const TrainLmOptions& o, const ParameterStore& store, int64_t vocabulary,
                     const Corpus& corpus, const Communicator& comm);

// Returns the text of --dry-run, or one JSON object with --json.
std::string describe_plan(const TrainLmOptions& o, Context& context, const LstmLm& model,
                          ParameterStore& store, const TokenBatches& train);

// Returns the resolved configuration as TOML, with a remark on each default.
std::string config_text(const TrainLmOptions& o, const FlagTable& flags);

// Returns the tokens of --prompt. Throws InputError for a token that the vocabulary lacks.
std::vector<int32_t> encode_prompt(const TrainLmOptions& o, const Vocabulary& vocabulary);
// Returns the token that precedes a text without a prompt: a line end, or the first token if the
// vocabulary has none.
int32_t start_token(TextLevel level, const Vocabulary& vocabulary);
// Returns the prompt and its continuation by --generate tokens.
std::string generate(const TrainLmOptions& o, const LstmLm& model, const Vocabulary& vocabulary);

// Return the measure of a mean loss per token, in nats, and its key in metrics: perplexity ("ppl")
// at word level, bits per character ("bpc") at character level.
double score(const TrainLmOptions& o, double loss);
const char* score_key(const TrainLmOptions& o);
// Returns "perplexity 121.39" or "2.1042 bits per character".
std::string score_text(const TrainLmOptions& o, double loss);

// Returns the function that adds the score of a loss to a step's metrics; `o` must outlive it.
std::function<nlohmann::ordered_json(double)> score_metrics(const TrainLmOptions& o);
// Returns "test perplexity 121.39 (valid perplexity 125.02)"; empty without a test.
std::string results_text(const TrainLmOptions& o, const TextEvaluation& valid,
                         const TextEvaluation& test);
// Returns the program's keys of the final JSON object: valid_loss, valid_ppl and so on.
nlohmann::ordered_json results_json(const TrainLmOptions& o, const TextEvaluation& valid,
                                    const TextEvaluation& test);

}  // namespace heddle
