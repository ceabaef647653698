#include "apps/session/training_state.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/checkpoint/exchange_state.h"
#include "apps/cli/json.h"
#include "apps/session/compare_runs.h"
#include "apps/session/exchange.h"
#include "comm/group.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/kernels.h"
#include "core/safetensors.h"
#include "layers/weights.h"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBuffer = "buffer.";
constexpr const char* kExchange = "exchange.";
constexpr const char* kOwn = "own.";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kShared = "shared.safetensors";

// Adds copies on the host, which do not change while they are written.
void add_copies(NamedTensors& out, const NamedTensors& tensors, const std::string& prefix = "") {
  for (const auto& [name, x] : tensors) {
    const Tensor host = x.to(Device{});
    out.emplace_back(prefix + name, host.raw() == x.raw() ? host.clone() : host);
  }
}

NamedTensors buffers_of(const TrainingParts& parts) {
  NamedTensors buffers;
  for (const Buffer& b : parts.store.buffers()) buffers.emplace_back(b.name, b.value);
  return buffers;
}

// Returns copies of the model with the weights of `values`, in which running statistics,
// accumulated by every rank on its own batches, are averaged; the ranks keep their own.
NamedTensors averaged_model(const TrainingParts& parts, const Tensor& values) {
  NamedTensors model;
  add_copies(model, parts.spec.model);
  if (parts.optimizer.learners() == 1) return model;
  // By memory: tied weights have several names.
  const auto* begin = static_cast<const float*>(parts.store.values().raw());
  for (size_t i = 0; i < model.size(); ++i) {
    const int64_t at = static_cast<const float*>(parts.spec.model[i].second.raw()) - begin;
    const Tensor& x = model[i].second;
    if (parts.optimizer.own_weights() && x.dtype() == DType::f32 && at >= 0 && at < values.size())
      x.copy_from(Tensor::view_as(values.slice(at, at + x.size()), x.shape()));
  }
  const NamedTensors buffers = buffers_of(parts);
  const auto is_statistic = [&](const std::string& name) {
    return std::ranges::any_of(buffers, [&](const auto& b) { return b.first == name; });
  };
  parts.optimizer.collective("checkpoint", [&](Communicator& comm) {
    for (auto& [name, x] : model) {
      if (x.dtype() != DType::f32 || !is_statistic(name)) continue;
      comm.all_reduce(x);
      scale(x, 1.0f / to_float(comm.size()));
    }
  });
  return model;
}

bool holds(const SafetensorsFile& file, const std::string& name, const Tensor& x) {
  return file.has(name) && file.info(name).shape == x.shape();
}

// Fills the tensors from the file, by name. `lenient`: a tensor that the file lacks, or has with a
// different shape, is left unchanged.
void fill_from(const SafetensorsFile& file, const NamedTensors& tensors, const std::string& prefix,
               bool lenient = false) {
  for (const auto& [name, x] : tensors) {
    const std::string saved = prefix + name;
    if (lenient && !holds(file, saved, x)) continue;
    check(file.has(saved), file.path(), ": ", saved,
          " is missing; --resume-anyway loads what there is");
    const Tensor loaded = file.load(saved);
    check(loaded.shape() == x.shape() && loaded.dtype() == x.dtype(), file.path(), ": ", saved,
          ": expected ", dtype_name(x.dtype()), " ", to_string(x.shape()), ", found ",
          dtype_name(loaded.dtype()), " ", to_string(loaded.shape()));
    x.copy_from(loaded);
  }
}

// Fills residuals with their mean over the ranks that saved them, with hosts one of each, and
// everything else, which is equal on all ranks, from the first rank's file.
void fill_from_all(const RankFiles& files, const std::vector<int>& hosts,
                   const NamedTensors& tensors, bool lenient) {
  std::vector<int> saved = first_ranks(hosts);
  for (int r = 0; hosts.empty() && r < files.count; ++r) saved.push_back(r);
  for (const int r : saved) {  // the first rank is the first of its host
    const SafetensorsFile file = files.open(r);
    if (r == 0) fill_from(file, tensors, kExchange, lenient);
    for (const auto& [name, x] : tensors) {
      if (r == 0 || !name.starts_with("residual.")) continue;
      if (lenient && !holds(file, kExchange + name, x)) continue;
      const Tensor other = file.load(kExchange + name);
      check(other.shape() == x.shape(), file.path(), ": ", name, ": expected ",
            to_string(x.shape()), ", found ", to_string(other.shape()));
      axpy(1, other, x);
    }
  }
  for (const auto& [name, x] : tensors)
    if (name.starts_with("residual.")) scale(x, 1.0f / to_float(saved.size()));
}

}  // namespace

std::optional<CheckpointFiles> save_training(const TrainingParts& parts, int64_t batch,
                                             const OwnState& own) {
  bool fit = parts.log.flush_losses() && parts.log.skipped_steps() == 0 &&
             all_finite(parts.store.values());
  if (parts.optimizer.own_weights())
    parts.optimizer.collective("checkpoint", [&](Communicator& comm) {
      fit = mean_over_ranks(comm, {fit ? 1.0 : 0.0})[0] > 1 - 1e-6;
    });
  if (!fit) return std::nullopt;
  CheckpointFiles files;
  const LearnerOptimizer::State exchange = parts.optimizer.state();
  // Identify the checkpoint: all ranks have the same, and no other step or run has them.
  const Tensor values = parts.optimizer.shared_values();
  const std::string weights = std::to_string(hash_bytes(values.raw(), values.bytes()));
  files.metadata[rank_file(parts.rank)] = {{"rank", std::to_string(parts.rank)},
                                           {"learners", std::to_string(parts.optimizer.learners())},
                                           {"step", std::to_string(parts.log.step())},
                                           {"weights", weights}};
  NamedTensors& mine = files.tensors[rank_file(parts.rank)];
  add_copies(mine, own.rank, kOwn);
  add_copies(mine, buffers_of(parts), kBuffer);
  add_copies(mine, parts.optimizer.named_state(), kExchange);
  for (auto& tensor : exchange_tensors(exchange)) mine.push_back(std::move(tensor));
  NamedTensors model = averaged_model(parts, values);
  if (parts.rank > 0) return files;

  files.tensors[kModel] = std::move(model);
  files.metadata[kModel] = parts.spec.metadata;
  if (const auto privacy = parts.log.privacy())
    files.metadata[kModel]["privacy"] = privacy_text(*privacy);
  add_copies(files.tensors[kOptimizer], parts.optimizer.optimizer().named_state());
  if (!own.shared.empty()) add_copies(files.tensors[kShared], own.shared);
  const ScheduleState schedule = parts.schedule.state();
  Json state = {{"version", kCheckpointVersion},
                {"step", parts.log.step()},
                {"epoch", parts.log.epoch()},
                {"units", batch * parts.spec.units_per_batch},
                {"learners", parts.optimizer.learners()},
                {"weights", weights},
                {"identity", parts.spec.identity},
                {"compression", compression_of(parts.o)},
                {"planning", planning_of(parts.o)},
                {"compress_start", first_compressed_step(parts.o, parts.spec.plan)},
                {"log", parts.log.save()},
                {"schedule",
                 {{"lr", schedule.lr},
                  {"highest", parts.spec.schedule.lr},
                  {"best", schedule.best},
                  {"bad", schedule.bad}}},
                {"exchange", exchange_json(exchange)},
                {"own", own.json},
                {"config", parts.spec.config}};
  if (own.json.contains("valid_loss")) state["valid_loss"] = own.json["valid_loss"];
  files.texts["state.json"] = state.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
  return files;
}

namespace {

// Throws InputError for another rank's file, or one of another checkpoint. Earlier versions
// recorded neither.
void check_rank(const SafetensorsFile& file, int rank, int learners, const Checkpoint& checkpoint) {
  if (!file.metadata().contains("rank")) return;
  const std::map<std::string, std::string> expected = {
      {"rank", std::to_string(rank)},
      {"learners", std::to_string(learners)},
      {"step", std::to_string(checkpoint.step)},
      {"weights", checkpoint.state.at("weights").get<std::string>()}};
  for (const auto& [key, value] : expected) {
    const auto found = file.metadata().find(key);
    check(found != file.metadata().end() && found->second == value, file.path(),
          ": belongs to another rank or checkpoint: expected ", key, " ", printable(value),
          ", found ", found == file.metadata().end() ? "none" : printable(found->second));
  }
}

// Returns how many learners' gradients a residual stands for: one, or with hosts the mean number of
// learners on a host. Throws InputError for hosts of another number of learners.
double learners_each(int learners, const std::vector<int>& hosts) {
  check(hosts.empty() || std::ssize(hosts) == learners, "hosts: expected ", learners,
        " numbers, found ", hosts.size());
  return hosts.empty() ? 1 : learners / to_double(first_ranks(hosts).size());
}

// Restores the state that differs between ranks, saved by as many ranks or by a different number.
void restore_ranks(const TrainingParts& parts, const Checkpoint& checkpoint, const OwnState& own,
                   LearnerOptimizer::State& exchange, bool same_compression, bool anyway,
                   const Logger& note) {
  const int learners = to_int(whole(checkpoint.state.at("learners")));
  check(learners >= 1 && learners <= 1 << 20, checkpoint.path, ": ", learners, " learners");
  const bool same = learners == parts.optimizer.learners(),
             own_weights = parts.optimizer.own_weights();
  // Peers continue in the same graph only; the file that describes it may have changed.
  const bool continues =
      same_compression &&
      (parts.o.peers.empty() || (same && exchange.settings == parts.optimizer.state().settings));
  const std::vector<int> hosts = parts.optimizer.state().hosts;
  // Without a compressor's state it does not matter who exchanged with whom.
  const bool moves = continues && hosts != exchange.hosts && !parts.optimizer.named_state().empty();
  const bool own_file = same && !moves;
  const double factor = residual_scale(checkpoint.state, parts.o) *
                        learners_each(parts.optimizer.learners(), hosts) /
                        learners_each(learners, exchange.hosts);
  const auto open = [&](int rank) {
    SafetensorsFile file = SafetensorsFile::open(checkpoint.file(rank_file(rank)));
    check_rank(file, rank, learners, checkpoint);
    return file;
  };
  const auto mine = same ? std::optional(open(parts.rank)) : std::nullopt;
  const RankFiles files =
      own_file ? RankFiles{1, [&](int) { return *mine; }} : RankFiles{learners, open};
  read_exchange_tensors(files, exchange);
  if (auto& t = exchange.totals; t.dense_of_dense < 0) {  // by an earlier version
    t.dense_of_dense = t.dense_steps * parts.optimizer.dense_bytes();
    t.dense_of_compressed = t.compressed_steps * parts.optimizer.dense_bytes();
  }
  parts.optimizer.restore(exchange);  // first: settings determine the tensors
  // PowerSGD's factors have the ranks of the old plan.
  const bool planned_anew = anyway || exchange.settings.empty();
  NamedTensors tensors = parts.optimizer.named_state();
  if (continues && own_file) {
    fill_from(*mine, tensors, kExchange, planned_anew);
  } else if (continues) {
    // With local steps all begin from the saved model, with the first learner's rule.
    if (own_weights)
      std::erase_if(tensors, [](const auto& tensor) {
        return tensor.first.starts_with("weights.") || tensor.first.starts_with("rule.");
      });
    fill_from_all(files, exchange.hosts, tensors, planned_anew);
  }
  if (!continues || (!own_file && own_weights)) parts.optimizer.begin_anew();
  if (own_weights && !continues && note && parts.rank == 0)
    note(
        "changed: learners, graph, code, local steps or their delay; all begin anew from the saved "
        "model, with "
        "the first learner's momentum");
  if (factor != 1)
    for (const auto& [name, x] : parts.optimizer.named_state())
      if (name.starts_with("residual.")) scale(x, to_float(factor));
  if (!same && note && parts.rank == 0)
    note(concat("changed: ", learners, " learners in the checkpoint, ", parts.optimizer.learners(),
                " here: each gets the mean of the ", continues ? "residuals and of the " : "",
                "statistics", own_weights ? ", and the first learner's momentum" : ""));
  if (same && moves && note && parts.rank == 0)
    note("changed: hosts; each begins with the mean of the saved residuals");
  if (!same) return;
  fill_from(*mine, buffers_of(parts), kBuffer, anyway);
  for (const auto& [name, x] : own.rank)  // an LSTM's state of another batch size begins at zero
    fill_from(*mine, {{name, x}}, kOwn, anyway || name.starts_with("state."));
}

}  // namespace

void restore_training(const TrainingParts& parts, const Checkpoint& checkpoint, const OwnState& own,
                      const Logger& note) {
  const nlohmann::json& state = checkpoint.state;
  const bool anyway = parts.o.resume_anyway;
  read_members(checkpoint.file("state.json"), [&] {
    // With other frozen parameters neither residuals nor settings fit.
    const bool same_compression = compression_differs(state.at("compression"), parts.o).empty() &&
                                  state.at("identity").value("freeze", "") == parts.o.freeze;
    if (anyway)
      fill_from(SafetensorsFile::open(checkpoint.file(kModel)), parts.spec.model, "", true);
    else
      load_weights(WeightsFile(checkpoint.file(kModel)), parts.spec.model);
    fill_from(SafetensorsFile::open(checkpoint.file(kOptimizer)),
              parts.optimizer.optimizer().named_state(), "", anyway);
    if (!own.shared.empty())
      fill_from(SafetensorsFile::open(checkpoint.file(kShared)), own.shared, "", anyway);
    const auto& schedule = state.at("schedule");
    // The rate that plateau has reached follows a change of --lr; earlier versions saved no
    // highest.
    const nlohmann::json& best = schedule.at("best");
    const bool other = !difference(state.at("identity"), parts.spec.identity).empty();
    const double here = parts.spec.schedule.lr, highest = number_at(schedule, "highest");
    parts.schedule.restore(
        {.lr = schedule.at("lr").get<double>() * (highest > 0 ? here / highest : 1),
         .best = other || best.is_null() ? INFINITY : best.get<double>(),
         .bad = other ? 0 : whole(schedule.at("bad"))});
    LearnerOptimizer::State exchange = parse_exchange(state.at("exchange"));
    const bool peers = !parts.o.peers.empty();  // their graph is in the settings
    if (!same_compression || other ||
        (!peers && !difference(state.at("planning"), planning_of(parts.o)).empty())) {
      exchange.settings.clear();
      exchange.planner.reset();
    }
    restore_ranks(parts, checkpoint, own, exchange, same_compression, anyway, note);
    parts.log.restore(checkpoint.step, whole(state.at("epoch")), state.at("log"));
    if (note) note_changes(state.at("config").get<std::string>(), parts.spec.config, note);
  });
}

bool has_shared(const Checkpoint& checkpoint) {
  return std::filesystem::exists(checkpoint.file(kShared));
}

nlohmann::json own_json(const Checkpoint& checkpoint, std::initializer_list<const char*> keys) {
  nlohmann::json own = checkpoint.state.value("own", nlohmann::json());
  const auto known = [&](const char* key) { return !std::isnan(number_at(own, key)); };
  const bool none = own.contains("valid_loss") && own["valid_loss"].is_null();
  check(none || (known("valid_loss") && std::ranges::all_of(keys, known)),
        checkpoint.file("state.json"), ": no validation as this program saves it");
  return own;
}

}  // namespace heddle
