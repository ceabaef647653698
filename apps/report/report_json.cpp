#include "apps/report/report_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>

#include "apps/cli/json.h"
#include "apps/log/quality_report.h"
#include "core/error.h"

namespace heddle {
namespace {

using Json = RunRecord::Json;

constexpr size_t kMaxLayers = 24;   // of the bytes by layer; smaller ones are summed in one row
constexpr size_t kMaxChoices = 50;  // of --compress auto, the last ones
constexpr int64_t kMaxColumns = 120;

// ------------------------------------------------------------------------------------------ curves

// The mean, the least and the largest of the finite values of a bin.
struct Bin {
  double sum = 0, count = 0, low = INFINITY, high = -INFINITY;
  void add(double value) {
    if (!std::isfinite(value)) return;
    sum += value / 2;  // so that two of the largest numbers do not overflow
    ++count;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  Json mean() const { return count > 0 ? rounded(std::clamp(sum / count * 2, low, high)) : Json(); }
};

// Returns for each step how many epochs have passed after it: 1.5 in the middle of the second one.
// The last epoch counts at least as long as the one before it where --steps or a signal may have
// ended it; NaN in a first one without a validation.
std::vector<double> epochs_passed(const RunRecord& run) {
  std::map<int64_t, int64_t> sizes;
  for (const StepRecord& s : run.steps) ++sizes[s.epoch];
  if (sizes.size() == 1 && run.scores.empty()) return std::vector<double>(run.steps.size(), NAN);
  const bool whole = text_at(run.summary, "summary") == "done" && run.setting("steps").empty();
  if (sizes.size() > 1 && !whole)
    sizes.rbegin()->second = std::max(sizes.rbegin()->second, std::next(sizes.rbegin())->second);
  std::vector<double> out;
  out.reserve(run.steps.size());
  int64_t epoch = -1, at = 0;
  for (const StepRecord& s : run.steps) {
    at = s.epoch == epoch ? at + 1 : 1;
    epoch = s.epoch;
    out.push_back(to_double(epoch) - 1 + to_double(at) / to_double(sizes[epoch]));
  }
  return out;
}

// Returns columns of equal length: the steps in at most `points` bins. Time and bytes are running
// sums, over which a loss can be drawn.
Json curves(const RunRecord& run, int64_t points) {
  const auto count = std::ssize(run.steps);
  const int64_t bins = std::min(count, points);
  Json out = {{"bins", bins < count}};
  for (const char* column : {"step", "epoch", "loss", "low", "high", "lr", "norm", "sent", "time",
                             "bytes", "decoder_error", "epsilon"})
    out[column] = Json::array();
  const std::vector<double> epochs = epochs_passed(run);
  double time = 0, bytes = 0;
  for (int64_t b = 0; b < bins; ++b) {
    Bin step, epoch, loss, lr, norm, sent, times, totals, error, epsilon;
    for (int64_t i = b * count / bins; i < (b + 1) * count / bins; ++i) {
      const StepRecord& s = run.steps[to_size(i)];
      if (std::isfinite(s.seconds())) time += s.seconds();
      if (std::isfinite(s.sent)) bytes += s.sent;
      step.add(to_double(s.step));
      epoch.add(epochs[to_size(i)]);
      loss.add(s.loss);
      lr.add(s.lr);
      norm.add(s.grad_norm);
      if (i > 0) sent.add(s.sent);  // the first step also sends the weights
      error.add(s.decoder_error);
      epsilon.add(s.epsilon);
      times.add(time);
      totals.add(bytes);
    }
    out["step"].push_back(step.mean());
    out["epoch"].push_back(epoch.mean());
    out["loss"].push_back(loss.mean());
    out["low"].push_back(rounded(loss.low));
    out["high"].push_back(rounded(loss.high));
    out["lr"].push_back(lr.mean());
    out["norm"].push_back(norm.mean());
    out["sent"].push_back(sent.mean());
    out["decoder_error"].push_back(error.mean());
    out["epsilon"].push_back(epsilon.mean());
    out["time"].push_back(times.mean());
    out["bytes"].push_back(totals.mean());
  }
  if (run.exchanges()) out["dense"] = rounded(run.steps.back().dense);
  return out;
}

// ------------------------------------------------------------------------------------------- facts

// Returns the sum of the finite values of a measure.
double total(const RunRecord& run, const std::function<double(const StepRecord&)>& measure) {
  double sum = 0;
  for (const StepRecord& step : run.steps)
    if (const double value = measure(step); std::isfinite(value)) sum += value;
  return sum;
}

// Returns the summary of a run, in seconds and bytes.
Json facts(const RunRecord& run) {
  const StepRecord steady = steady_step(run);
  const int64_t epoch = run.steps.empty() ? 0 : run.steps.back().epoch;
  Bin last_epoch;
  for (const StepRecord& step : run.steps)
    if (step.epoch == epoch) last_epoch.add(step.loss);
  Json out = {{"loss", last_epoch.mean()},
              {"steps", run.steps.empty() ? 0 : run.steps.back().step},
              {"epochs", epoch},
              {"unit", run.unit()},
              {"rate", rounded(steady.rate)},
              {"seconds", rounded(total(run, &StepRecord::seconds))},
              {"step_s", rounded(steady.seconds())}};
  if (!run.exchanges()) return out;
  out["sent"] = rounded(total(run, [](const StepRecord& s) { return s.sent; }));
  out["dense"] = rounded(total(run, [](const StepRecord& s) { return s.dense; }));
  out["exposed_s"] = rounded(steady.exposed);
  return out;
}

// Returns how a steady step spends its time, in seconds. The main thread waits for exchanges within
// update.
Json breakdown(const RunRecord& run) {
  const StepRecord s = steady_step(run);
  if (std::isnan(s.seconds())) return nullptr;
  const double exposed = std::isnan(s.exposed) ? 0 : std::min(s.exposed, s.update);
  return {{"data", rounded(s.data)},
          {"forward", rounded(s.forward)},
          {"backward", rounded(s.backward)},
          {"exposed", rounded(exposed)},
          {"update", rounded(s.update - exposed)},
          {"compress", rounded(s.compress)},
          {"comm", rounded(s.comm)}};
}

// ------------------------------------------------------------------------------------------ layers

// Returns the elements by layer: from the summary; if there is none, from the plans or, if the run
// has sent every element in every step, from the ledger.
std::map<std::string, double> elements_of(const RunRecord& run) {
  std::map<std::string, double> out;
  const auto keep = [&](const std::string& layer, double count) {
    if (count >= 1 && count < 1e15) out[layer] = count;
  };
  if (const auto layers = run.summary.find("layers"); layers != run.summary.end()) {
    for (const auto& [name, ignored] : layers->items()) keep(name, number_at(*layers, name));
    return out;
  }
  const double step_bytes = 4.0 * to_double(run.steps.size());
  if (run.setting("compress") == "none")
    for (const auto& [name, kinds] : run.ledger.items())
      if (const double bytes = number_at(kinds.value("values", Json::object()), "payload");
          std::fmod(bytes, step_bytes) == 0)
        keep(name, bytes / step_bytes);
  for (const Json& plan : run.plans)
    for (const Json& layer : plan["layers"])
      keep(text_at(layer, "name"), number_at(layer, "elements"));
  return out;
}

// Returns the bytes of a mean step by layer, the largest first: of a dense exchange, and as sent,
// by kind.
Json layer_bytes(const RunRecord& run) {
  struct Row {
    std::string name;
    double dense = 0, sent = 0;
    Json kinds = Json::object();
  };
  const auto elements = elements_of(run);
  double all = 0;
  for (const auto& [name, ignored] : run.ledger.items())
    if (const auto found = elements.find(name); found != elements.end()) all += found->second;
  if (all == 0 || run.steps.empty()) return nullptr;
  // A run that began from a checkpoint of another folder has the other's ledger, too.
  const auto steps = to_double(std::max(whole_at(run.summary, "step"), std::ssize(run.steps)));
  std::vector<Row> rows;
  for (const auto& [name, kinds] : run.ledger.items()) {
    const auto found = elements.find(name);
    if (found == elements.end()) continue;
    Row row{.name = name, .dense = run.steps.back().dense * found->second / all};
    for (const auto& [kind, entry] : kinds.items()) {
      const double bytes = number_at(entry, "sent") / steps;
      if (!std::isfinite(bytes)) continue;
      row.sent += bytes;
      row.kinds[kind] = rounded(bytes);
    }
    rows.push_back(row);
  }
  std::ranges::stable_sort(rows, std::greater<>(), &Row::dense);
  if (rows.size() > kMaxLayers + 1) {
    Row rest{.name = concat(rows.size() - kMaxLayers, " smaller tensors")};
    for (size_t i = kMaxLayers; i < rows.size(); ++i) {
      rest.dense += rows[i].dense;
      rest.sent += rows[i].sent;
    }
    rows.resize(kMaxLayers);
    rows.push_back(rest);
  }
  Json out = Json::array();
  for (const Row& row : rows)
    out.push_back({{"name", row.name},
                   {"dense", rounded(row.dense)},
                   {"sent", rounded(row.sent)},
                   {"kinds", row.kinds}});
  return out;
}

// -------------------------------------------------------------------------------------------- maps

// Returns how many columns of a map with these rows fit in `cells` cells.
int64_t columns_of(size_t rows, int64_t cells) {
  return std::clamp<int64_t>(cells / std::max<int64_t>(1, to_int64(rows)), 1, kMaxColumns);
}

Json steps_of(const std::vector<const Json*>& records) {
  Json out = Json::array();
  for (const Json* record : records) out.push_back(rounded(number_at(*record, "step")));
  return out;
}

// Returns layers by plans; a cell is [setting, uniform setting, bytes, uniform bytes].
Json plan_map(const RunRecord& run, int64_t cells) {
  if (run.plans.empty()) return nullptr;
  const Json& last = run.plans.back()["layers"];
  const auto plans = sampled(run.plans, columns_of(last.size(), cells));
  Json rows = Json::array();
  for (const Json& row : last) {
    const std::string name = text_at(row, "name");
    Json own = Json::array();
    for (const Json* plan : plans) {
      const auto is_row = [&](const Json& layer) { return text_at(layer, "name") == name; };
      const auto layer = std::ranges::find_if((*plan)["layers"], is_row);
      Json cell;
      if (layer != (*plan)["layers"].end())
        for (const char* key : {"setting", "uniform", "bytes", "uniform_bytes"})
          cell.push_back(rounded(number_at(*layer, key)));
      own.push_back(cell);
    }
    rows.push_back({{"name", name}, {"cells", own}});
  }
  const double end = run.steps.empty() ? 0 : to_double(run.steps.back().step);
  return {{"family", text_at(run.plans.back(), "family")},
          {"steps", steps_of(plans)},
          {"end", std::max(end, number_at(run.plans.back(), "step") + 1)},
          {"rows", rows}};
}

// Returns layers by samples of the quality meter; a cell is [residual over gradient, norm of the
// residual].
Json residual_map(const RunRecord& run, int64_t cells) {
  if (run.qualities.empty()) return nullptr;
  const Json& last = run.qualities.back()["quality"];
  const auto samples = sampled(run.qualities, columns_of(last.size(), cells));
  Json rows = Json::array();
  for (const auto& [name, ignored] : last.items()) {
    Json own = Json::array();
    for (const Json* sample : samples) {
      const Json layer = (*sample)["quality"].value(name, Json::object());
      const double residual = number_at(layer, "residual_norm");
      const double ratio = residual / number_at(layer, "gradient_norm");
      own.push_back(std::isfinite(ratio) ? Json{rounded(ratio), rounded(residual)} : Json());
    }
    rows.push_back({{"name", name}, {"cells", own}});
  }
  const auto step = [&](size_t from_end) {
    return number_at(*samples[samples.size() - 1 - from_end], "step");
  };
  const double width = samples.size() > 1 ? step(0) - step(1) : 1;
  return {{"steps", steps_of(samples)}, {"end", rounded(step(0) + width)}, {"rows", rows}};
}

// Returns means over all samples of the quality meter.
Json quality(const RunRecord& run) {
  if (run.qualities.empty()) return nullptr;
  Bin correlation;
  std::map<std::string, std::map<std::string, Bin>> layers;
  for (const Json& sample : run.qualities) {
    correlation.add(number_at(sample, kCorrelationKey));
    for (const auto& [name, values] : sample["quality"].items())
      for (const auto& [key, ignored] : values.items())
        layers[name][key == kCorrelationKey ? "correlation" : key].add(number_at(values, key));
  }
  Json rows = Json::array();
  for (const auto& [name, ignored] : run.qualities.back()["quality"].items()) {
    Json row = {{"name", name}};
    for (const auto& [key, bin] : layers[name]) row[key] = bin.mean();
    rows.push_back(row);
  }
  return {{"samples", run.qualities.size()}, {"correlation", correlation.mean()}, {"rows", rows}};
}

// ----------------------------------------------------------------------------------------- choices

bool flag_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && *found == true;
}

// Returns seconds of an exchange, dense or compressed: until the gradient is ready, encoding,
// collectives.
Json exchange_times(const Json& bucket, const char* way) {
  const Json times = bucket.value(way, Json::object());
  return {rounded(number_at(times, "ready_s")), rounded(number_at(times, "code_s")),
          rounded(number_at(times, "comm_s"))};
}

// Returns the decisions of --compress auto, and the measurements of the last one by bucket.
Json choices(const RunRecord& run) {
  if (run.choices.empty()) return nullptr;
  Json decisions = Json::array(), buckets = Json::array();
  const size_t first = run.choices.size() - std::min(run.choices.size(), kMaxChoices);
  for (size_t i = first; i < run.choices.size(); ++i) {
    const Json& choice = run.choices[i];
    const auto compressed = std::ranges::count_if(
        choice["buckets"], [](const Json& b) { return flag_at(b, "compressed"); });
    Json row = {{"compressed", compressed}, {"buckets", choice["buckets"].size()}};
    for (const char* key : {"step", "dense_s", "compressed_s", "chosen_s", "found_s"})
      row[key] = rounded(number_at(choice, key));
    row["dropped"] = flag_at(choice, "dropped");
    decisions.push_back(row);
  }
  for (const Json& bucket : run.choices.back()["buckets"]) {
    Json row = {{"compressed", flag_at(bucket, "compressed")},
                {"joined", flag_at(bucket, "joined")},
                {"dense", exchange_times(bucket, "dense")},
                {"packed", exchange_times(bucket, "packed")}};
    if (const auto names = bucket.find("parameters"); names != bucket.end() && !names->empty())
      row["parameters"] = {names->front(), names->back()};
    buckets.push_back(row);
  }
  return {{"decisions", decisions}, {"buckets", buckets}};
}

// --------------------------------------------------------------------------------------------- run

// Adds the figures that have no curves, each of them null without data.
void add_details(Json& out, const RunRecord& run, int64_t cells) {
  out.update({{"samples", run.samples.empty() ? Json() : Json(run.samples)},
              {"texts", texts_json(run, cells)},
              {"breakdown", breakdown(run)},
              {"layers", layer_bytes(run)},
              {"plans", plan_map(run, cells)},
              {"choices", choices(run)},
              {"residuals", residual_map(run, cells)},
              {"quality", quality(run)},
              {"timeline", run.timeline}});
}

Json run_json(const RunRecord& run, const std::string& name, int64_t points) {
  Json ratios = Json::object(), config = Json::array();
  for (const char* key : {"ratio_layers", "ratio_values", "ratio_wire", "ratio_run"})
    ratios[key] = rounded(number_at(run.summary, key));
  for (const auto& [key, value] : run.config) config.push_back({key, value});
  return {{"name", name},
          {"info", run.info},
          {"status", run.summary.empty() ? Json() : Json(text_at(run.summary, "summary"))},
          {"learners", rounded(number_at(run.summary, "world_size"))},
          {"hosts", run.summary.contains("hosts")},
          {"skipped", run.skipped},
          {"exchanges", run.exchanges()},
          {"score_key", run.score_key()},
          {"facts", facts(run)},
          {"ratios", ratios},
          {"privacy", run.summary.value("privacy", Json())},
          {"curves", curves(run, points)},
          {"scores", scores_json(run, points)},
          {"config", config}};
}

}  // namespace

Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (std::abs(value) < 1e15 && value == std::trunc(value)) return to_int64(value);
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", value);
  return std::atof(text);
}

Json report_json(const std::vector<RunRecord>& runs, int64_t cells) {
  const int64_t points = std::clamp<int64_t>(cells / 3, 40, 1000);
  Json list = Json::array();
  for (const RunRecord& run : runs) {
    const bool unique = std::ranges::count(runs, run.name, &RunRecord::name) == 1;
    list.push_back(run_json(run, unique ? run.name : run.folder, points));
    if (std::ssize(runs) <= kMostDetailed) add_details(list.back(), run, cells);
    if (runs.size() == 1) list.back()["mistakes"] = mistakes_json(run);
  }
  return {{"runs", list}};
}

}  // namespace heddle
