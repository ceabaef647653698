#include <algorithm>
#include <cmath>
#include <functional>

#include "apps/report/report_chart.h"
#include "apps/report/report_figures.h"
#include "apps/report/svg.h"
#include "core/error.h"

namespace heddle {
namespace {

using Values = std::vector<std::pair<double, double>>;

// Fewer where there are more runs, so that the page stays small.
int64_t points_of(size_t runs) {
  return std::clamp<int64_t>(400 / static_cast<int64_t>(runs), 50, 100);
}

Values over_steps(const RunRecord& run, double StepRecord::*field) {
  Values out;
  for (const StepRecord& step : run.steps)
    out.emplace_back(static_cast<double>(step.step), step.*field);
  return out;
}

// The loss over what had been spent until then.
Values over_spent(const RunRecord& run, const std::function<double(const StepRecord&)>& spend) {
  Values out;
  double spent = 0;
  for (const StepRecord& step : run.steps) {
    if (const double more = spend(step); !std::isnan(more)) spent += more;
    out.emplace_back(spent, step.loss);
  }
  return out;
}

std::vector<ChartPoint> validations(const RunRecord& run, const std::string& key) {
  std::vector<ChartPoint> out;
  for (const ScoreRecord& score : run.scores)
    if (const auto found = score.values.find(key);
        score.split == "valid" && found != score.values.end() && std::isfinite(found->second))
      out.push_back({static_cast<double>(score.step), found->second, found->second, found->second});
  return out;
}

std::string mean_note(const std::vector<RunRecord>& runs, const std::string& of) {
  for (const RunRecord& run : runs)
    if (std::ssize(run.steps) > points_of(runs.size()))
      return concat(of, "; a point is the mean over the steps around it");
  return of;
}

// In which to show the longest run's time.
struct TimeUnit {
  const char* name;
  double seconds;
};
TimeUnit time_unit(const std::vector<RunRecord>& runs) {
  double longest = 0;
  for (const RunRecord& run : runs) {
    double seconds = 0;
    for (const StepRecord& step : run.steps) seconds += step.seconds();
    longest = std::max(longest, seconds);
  }
  if (longest > 3 * 3600) return {"hours", 3600};
  return longest > 180 ? TimeUnit{"minutes", 60} : TimeUnit{"seconds", 1};
}

// From the beginning to the last step of the longest run.
LineChart over_the_run(LineChart chart, const std::vector<RunRecord>& runs) {
  chart.x_first = 0;
  for (const RunRecord& run : runs)
    if (!run.steps.empty())
      chart.x_last = std::fmax(chart.x_last, static_cast<double>(run.steps.back().step));
  return chart;
}

std::string loss_chart(const std::vector<RunRecord>& runs) {
  const bool alone = runs.size() == 1;
  LineChart chart{.id = "loss", .title = alone ? "Loss" : "Training loss", .y_label = "loss, nats"};
  chart.note = mean_note(runs, alone ? "Mean over the learners, in nats. Pale: lowest to highest"
                                     : "Mean over the learners, in nats");
  for (size_t i = 0; i < runs.size(); ++i)
    chart.series.push_back(
        {.label = alone ? "training" : runs[i].name,
         .colour = static_cast<int>(i),
         .points = thin(over_steps(runs[i], &StepRecord::loss), points_of(runs.size())),
         .band = alone});
  if (alone)
    chart.series.push_back(
        {.label = "validation", .colour = 5, .points = validations(runs[0], "loss"), .dots = true});
  return draw_chart(over_the_run(chart, runs));
}

std::string score_chart(const std::vector<RunRecord>& runs) {
  const std::string key = runs[0].score_key();
  LineChart chart{.id = "score", .title = "Validation loss", .y_label = "loss, nats"};
  if (key == "acc1") chart.title = "Accuracy", chart.y_label = "percent";
  if (key == "ppl") chart.title = "Perplexity", chart.y_label = "perplexity", chart.log_y = true;
  if (key == "bpc") chart.title = "Bits per character", chart.y_label = "bits";
  if (key == "loss" && runs.size() == 1) return "";  // stands in the chart of the loss
  chart.note = key == "acc1" ? "On the validation set, in percent" : "On the validation set";
  for (size_t i = 0; i < runs.size(); ++i)
    chart.series.push_back({.label = runs[i].name,
                            .colour = static_cast<int>(i),
                            .points = validations(runs[i], key),
                            .dots = true});
  return draw_chart(over_the_run(chart, runs));
}

std::string rate_chart(const std::vector<RunRecord>& runs) {
  LineChart chart{
      .id = "lr", .title = "Learning rate", .y_label = "learning rate", .from_zero = true};
  for (size_t i = 0; i < runs.size(); ++i)
    chart.series.push_back(
        {.label = runs[i].name,
         .colour = static_cast<int>(i),
         .points = thin(over_steps(runs[i], &StepRecord::lr), points_of(runs.size())),
         .dashed = i > 0});  // mostly one above the other
  return draw_chart(over_the_run(chart, runs));
}

std::string bytes_chart(const std::vector<RunRecord>& runs) {
  LineChart chart{.id = "bytes",
                  .title = "Bytes sent in a step",
                  .note = mean_note(runs,
                                    "By one learner, everything included: indices, scales, "
                                    "checks. Grey: what a plain exchange sends"),
                  .y_label = "bytes",
                  .log_y = true,
                  .y_bytes = true};
  for (size_t i = 0; i < runs.size(); ++i) {
    Values sent = over_steps(runs[i], &StepRecord::sent);
    if (sent.size() > 1) sent.erase(sent.begin());  // the first step also carries the weights
    chart.series.push_back({.label = runs[i].name,
                            .colour = static_cast<int>(i),
                            .points = thin(sent, points_of(runs.size()))});
  }
  for (const RunRecord& run : runs)
    if (run.exchanges()) {
      ChartSeries dense{.label = "no compression", .colour = 8, .points = {}, .dashed = true};
      for (const StepRecord* step : {&run.steps.front(), &run.steps.back()})
        dense.points.push_back(
            {static_cast<double>(step->step), step->dense, step->dense, step->dense});
      chart.series.push_back(dense);
      break;
    }
  return draw_chart(over_the_run(chart, runs));
}

std::string spending_charts(const std::vector<RunRecord>& runs) {
  const TimeUnit unit = time_unit(runs);
  LineChart time{.id = "loss-time",
                 .title = "Loss over time",
                 .note =
                     "The training loss against the seconds that its steps took, validation "
                     "left out",
                 .x_label = concat("training time, ", unit.name),
                 .y_label = "loss, nats",
                 .x_first = 0};
  LineChart bytes{.id = "loss-bytes",
                  .title = "Loss over bytes sent",
                  .note = "The training loss against what one learner had sent until then",
                  .x_label = "bytes sent by one learner",
                  .y_label = "loss, nats",
                  .x_bytes = true,
                  .x_first = 0};
  for (size_t i = 0; i < runs.size(); ++i) {
    const int colour = static_cast<int>(i);
    const int64_t points = points_of(runs.size());
    time.series.push_back(
        {.label = runs[i].name,
         .colour = colour,
         .points = thin(
             over_spent(runs[i], [&](const StepRecord& s) { return s.seconds() / unit.seconds; }),
             points)});
    if (runs[i].exchanges())
      bytes.series.push_back(
          {.label = runs[i].name,
           .colour = colour,
           .points =
               thin(over_spent(runs[i], [](const StepRecord& s) { return s.sent; }), points)});
  }
  return draw_chart(time) + draw_chart(bytes);
}

}  // namespace

std::string draw_curves(const std::vector<RunRecord>& runs) {
  std::string out = loss_chart(runs) + score_chart(runs);
  if (runs.size() > 1) out += spending_charts(runs);
  return out + rate_chart(runs) + bytes_chart(runs);
}

}  // namespace heddle
