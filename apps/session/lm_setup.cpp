#include "apps/session/lm_setup.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "core/error.h"
#include "core/hash.h"
#include "layers/loss.h"

namespace heddle {
namespace {

bool is_char_level(const TrainLmOptions& o) { return o.level == "char"; }

}  // namespace

LmCard read_card(TrainLmOptions& o, FlagTable& flags) {
  if (o.init.empty()) return {};
  LmCard card = read_lm_card(WeightsFile(o.init));
  const auto suggest = [&](const char* name, int64_t value) {
    if (value > 0) flags.suggest(name, std::to_string(value), o.init + ": " + name);
  };
  suggest("emsize", card.emsize);
  suggest("nhid", card.nhid);
  suggest("nlayers", card.nlayers);
  if (card.tied) flags.suggest("tied", "true", o.init + ": tied");
  if (card.level == TextLevel::automatic) return card;
  const std::string level = text_level_name(card.level);
  check(o.level == "auto" || o.level == level, "--level ", o.level, ": ", o.init,
        " holds a model at level ", level);
  o.level = level;
  return card;
}

Corpus open_text(const TrainLmOptions& o, const LmCard& card, const FlagTable& flags) {
  const bool known = card.vocabulary.size() > 0;
  check(known || o.init.empty() || flags.given("data"), o.init,
        ": no vocabulary in the metadata (keys level and vocabulary), so its tokens have no names; "
        "give --data the text that it was trained on");
  Corpus corpus;
  corpus.vocabulary = card.vocabulary;
  if (known && !o.training && !o.evaluate) return corpus;
  corpus = open_corpus(o.data == "sources" ? "" : o.data, parse_text_level(o.level));
  for (const auto* text : {&corpus.valid, &corpus.test}) {
    check(text->size() > 1, corpus.name, ": expected at least two tokens of ",
          text == &corpus.valid ? "validation" : "test", " text, found ", text->size());
  }
  if (known) check_same_vocabulary(corpus.vocabulary, corpus.name, card.vocabulary, o.init);
  return corpus;
}

LstmLmOptions network_options(const TrainLmOptions& o, int64_t vocabulary) {
  return {.vocabulary = vocabulary,
          .emsize = o.emsize,
          .nhid = o.nhid,
          .nlayers = o.nlayers,
          .dropout = to_float(o.dropout),
          .tied = o.tied,
          .init = to_float(o.init_range),
          .dtype = activation_type(o)};
}

TokenBatches make_batches(const TrainLmOptions& o, const Corpus& corpus, const Communicator& comm) {
  return TokenBatches(
      corpus.train,
      {.batch_size = o.batch_size, .bptt = o.bptt, .rank = comm.rank(), .world_size = comm.size()});
}

StepPlan plan_steps(const TrainLmOptions& o, const TokenBatches& train) {
  return plan_updates(o, train.size(),
                      concat("windows of ", o.bptt, " times ", o.batch_size, " tokens"));
}

float window_weight(const TrainLmOptions& o, int64_t tokens) {
  return to_float(to_double(tokens) / to_double(o.bptt * o.batch_size));
}

int64_t units_per_batch(const TrainLmOptions& o, int learners) {
  return o.batch_size * o.bptt * learners;
}

nlohmann::ordered_json identity(const TrainLmOptions& o, const Corpus& corpus) {
  const auto hash = [](const void* bytes, size_t size) {
    return to_int64(hash_bytes(bytes, size) >> 1);
  };
  const std::string vocabulary = format_vocabulary(corpus.vocabulary, corpus.level);
  return {{"program", "train_lm"},
          {"level", o.level},
          {"emsize", o.emsize},
          {"nhid", o.nhid},
          {"nlayers", o.nlayers},
          {"tied", o.tied},
          {"data", corpus.name},
          {"tokens", corpus.train.size()},
          {"vocabulary", corpus.vocabulary.size()},
          {"vocabulary's hash", hash(vocabulary.data(), vocabulary.size())},
          {"text's hash", hash(corpus.train.data(), corpus.train.size() * sizeof(int32_t))},
          {"optimizer", o.optimizer}};
}

nlohmann::ordered_json text_evaluation_json(const TextEvaluation& valid) {
  const bool known = valid.tokens > 0;
  return {{"valid_loss", known ? nlohmann::ordered_json(valid.loss) : nullptr},
          {"tokens", valid.tokens}};
}

TextEvaluation parse_text_evaluation(const nlohmann::json& json, const char* loss_key) {
  return {.loss = number_at(json, loss_key), .tokens = whole_at(json, "tokens")};
}

ScheduleOptions lm_schedule(const TrainLmOptions& o, const StepPlan& plan) {
  ScheduleOptions options = schedule_options(o, plan);
  options.patience = 0;
  options.threshold = 0;
  return options;
}

std::string describe(const TrainLmOptions& o, const ParameterStore& store, int64_t vocabulary,
                     const Corpus& corpus, const Communicator& comm) {
  std::string out = concat("LSTM ", o.nlayers, " x ", o.nhid, ", ", describe_size(store), ", ",
                           o.level, " level, ", vocabulary, " tokens known");
  if (!corpus.train.empty()) {
    out += concat(" | ", corpus.name, ", ", corpus.train.size(), " + ", corpus.valid.size(), " + ",
                  corpus.test.size(), " tokens");
  }
  return out + describe_machine_use(o, store, comm);
}

std::string describe_plan(const TrainLmOptions& o, Context& context, const LstmLm& model,
                          ParameterStore& store, const TokenBatches& train) {
  const auto step_bytes = [&](int64_t columns) {
    const Tensor tokens = Tensor::empty_on(Device{}, {o.bptt, columns}, DType::i32);
    tokens.fill_zero();
    LstmState state = model.zero_state(columns);
    return measure_step_bytes(context, store, [&](Tape& tape) {
      const Var logits = model.forward(tape, tokens, state);
      return softmax_cross_entropy(tape, logits, tokens, {.overwrite_logits = true});
    });
  };
  return format_plan(o, store,
                     {.steps = plan_steps(o, train),
                      .model = "recipe",
                      .model_name = recipe_name(o),
                      .unit = "token",
                      .units_per_row = o.bptt,
                      .rows = 1,
                      .step_bytes = step_bytes});
}

std::string config_text(const TrainLmOptions& o, const FlagTable& flags) {
  return format_config("train_lm", concat("default for ", recipe_name(o), ", ", o.optimizer),
                       flags);
}

int32_t start_token(TextLevel level, const Vocabulary& vocabulary) {
  return std::max(vocabulary.find(level == TextLevel::word ? "<eos>" : "\n"), 0);
}

std::vector<int32_t> encode_prompt(const TrainLmOptions& o, const Vocabulary& vocabulary) {
  const TextLevel level = parse_text_level(o.level);
  std::vector<int32_t> tokens = encode_text(o.prompt, level, vocabulary, "--prompt");
  // The generated text continues the last line, unless the prompt itself ends it.
  const bool open = !o.prompt.empty() && o.prompt.back() != '\n';
  if (level == TextLevel::word && open && !tokens.empty()) tokens.pop_back();
  return tokens;
}

std::string generate(const TrainLmOptions& o, const LstmLm& model, const Vocabulary& vocabulary) {
  const TextLevel level = parse_text_level(o.level);
  std::vector<int32_t> tokens = encode_prompt(o, vocabulary);
  const std::vector<int32_t> start = {start_token(level, vocabulary)};
  const std::vector<int32_t> written = continue_text(
      model, tokens.empty() ? start : tokens,
      {.tokens = o.generate, .temperature = o.temperature, .seed = static_cast<uint64_t>(o.seed)});
  tokens.insert(tokens.end(), written.begin(), written.end());
  return decode_text(tokens, level, vocabulary);
}

const char* score_key(const TrainLmOptions& o) { return is_char_level(o) ? "bpc" : "ppl"; }
double score(const TrainLmOptions& o, double loss) {
  return is_char_level(o) ? bits(loss) : perplexity(loss);
}

std::function<nlohmann::ordered_json(double)> score_metrics(const TrainLmOptions& o) {
  return [&o](double loss) -> nlohmann::ordered_json { return {{score_key(o), score(o, loss)}}; };
}

std::string results_text(const TrainLmOptions& o, const TextEvaluation& valid,
                         const TextEvaluation& test) {
  if (test.tokens == 0 && std::isnan(test.loss))
    return "";  // the log of a complete run has a loss only
  return concat("test ", score_text(o, test.loss), " (valid ", score_text(o, valid.loss), ")");
}

nlohmann::ordered_json results_json(const TrainLmOptions& o, const TextEvaluation& valid,
                                    const TextEvaluation& test) {
  nlohmann::ordered_json json;
  const auto add = [&](const std::string& split, const TextEvaluation& e) {
    json[split + "_loss"] = e.loss;
    json[split + "_ppl"] = perplexity(e.loss);
    if (is_char_level(o)) json[split + "_bpc"] = bits(e.loss);
  };
  add("valid", valid);
  add("test", test);
  return json;
}

std::string score_text(const TrainLmOptions& o, double loss) {
  return is_char_level(o) ? decimals(score(o, loss), 4) + " bits per character"
                          : "perplexity " + decimals(score(o, loss), 2);
}

}  // namespace heddle
