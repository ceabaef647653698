#include "apps/report/report_page.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "apps/report/report_figures.h"
#include "apps/report/svg.h"
#include "core/error.h"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

struct Fact {
  std::string name, value, remark;
};

std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

double total(const RunRecord& run, double StepRecord::*field) {
  double sum = 0;
  for (const StepRecord& step : run.steps)
    if (!std::isnan(step.*field)) sum += step.*field;
  return sum;
}

double training_seconds(const RunRecord& run) {
  return total(run, &StepRecord::data) + total(run, &StepRecord::forward) +
         total(run, &StepRecord::backward) + total(run, &StepRecord::update);
}

// Mean over the steps of the last epoch.
double last_loss(const RunRecord& run) {
  double sum = 0, count = 0;
  for (const StepRecord& step : run.steps)
    if (step.epoch == run.steps.back().epoch) sum += step.loss, ++count;
  return count > 0 ? sum / count : NAN;
}

Fact score_fact(const RunRecord& run) {
  const std::string key = run.score_key();
  Fact fact{key == "acc1"  ? "accuracy"
            : key == "ppl" ? "perplexity"
            : key == "bpc" ? "bits per character"
                           : "validation loss",
            "–", ""};
  for (const ScoreRecord& score : run.scores) {
    const auto found = score.values.find(key);
    if (found == score.values.end()) continue;
    fact.value = significant(found->second, 4) + (key == "acc1" ? " %" : "");
    fact.remark = (score.split == "test" ? "on the test set, after epoch "
                                         : "on the validation set, after epoch ") +
                  std::to_string(score.epoch);
  }
  return fact;
}

std::vector<Fact> facts(const RunRecord& run) {
  const StepRecord s = settled_step(run);
  std::vector<Fact> out = {score_fact(run)};
  out.push_back({"training loss", significant(last_loss(run), 4), "mean over the last epoch"});
  out.push_back({"steps", std::to_string(run.steps.empty() ? 0 : run.steps.back().step),
                 run.steps.empty() ? ""
                                   : concat("in ", run.steps.back().epoch,
                                            run.steps.back().epoch == 1 ? " epoch" : " epochs")});
  const bool tokens = run.rate_key == "tokens_per_s";
  out.push_back({tokens ? "tokens a second" : "images a second", scaled(s.rate),
                 "second half of the run, all learners"});
  out.push_back({"training time", duration_text(training_seconds(run)),
                 duration_text(s.seconds()) + " a step"});
  if (!run.exchanges()) return out;
  out.push_back({"sent by one learner", scaled(total(run, &StepRecord::sent), "B"),
                 "dense: " + scaled(total(run, &StepRecord::dense), "B")});
  out.push_back({"exposed communication", significant(100 * s.exposed / s.seconds(), 3) + " %",
                 concat("of a step, ", duration_text(s.exposed))});
  return out;
}

struct Ratio {
  const char *key, *name, *meaning;
};
constexpr Ratio kRatios[] = {
    {"ratio_layers", "layers", "values of the compressed tensors alone, as papers print it"},
    {"ratio_values", "values", "values of the whole model, with the tensors that travel dense"},
    {"ratio_wire", "wire",
     "bytes on the wire, with indices, scales and flags, in the compressed "
     "steps"},
    {"ratio_run", "run", "bytes on the wire over the whole run, its dense beginning included"}};

std::string ratio_value(const RunRecord& run, const char* key) {
  const auto found = run.summary.find(key);
  return found != run.summary.end() && found->is_number()
             ? significant(found->get<double>(), 3) + "×"
             : "–";
}

std::string ratio_table(const std::vector<RunRecord>& runs) {
  const bool any = std::ranges::any_of(runs, &RunRecord::exchanges);
  if (!any) return "";
  std::string out =
      "<section id=\"ratios\"><h2>Compression, told apart</h2><p class=\"note\">What a dense "
      "exchange sends over what was sent, by one learner; 1 where nothing is compressed. “–”: the "
      "run has not ended, or is of a version that did not keep it.</p><div class=\"scroll\" "
      "tabindex=\"0\"><table class=\"facts\"><thead><tr><th>ratio</th>";
  for (const RunRecord& run : runs) out += "<th>" + escape(run.name) + "</th>";
  out += "<th class=\"text\">what it counts</th></tr></thead><tbody>";
  for (const Ratio& ratio : kRatios) {
    out += concat("<tr id=\"", ratio.key, "\"><th scope=\"row\">", ratio.name, "</th>");
    for (const RunRecord& run : runs)
      out += "<td class=\"big\">" + ratio_value(run, ratio.key) + "</td>";
    out += concat("<td class=\"text\">", ratio.meaning, "</td></tr>");
  }
  return out + "</tbody></table></div></section>\n";
}

std::string tiles(const RunRecord& run) {
  std::string out = "<ul class=\"tiles\">";
  for (const Fact& fact : facts(run))
    out += concat("<li><span>", escape(fact.name), "</span><b>", escape(fact.value), "</b><small>",
                  escape(fact.remark), "</small></li>");
  return out + "</ul>\n";
}

std::string comparison(const std::vector<RunRecord>& runs) {
  std::vector<std::string> names;  // of facts, in the order in which runs have them
  for (const RunRecord& run : runs)
    for (const Fact& fact : facts(run))
      if (std::ranges::find(names, fact.name) == names.end()) names.push_back(fact.name);
  std::string out =
      "<div class=\"scroll\" tabindex=\"0\"><table class=\"facts\" id=\"comparison\">"
      "<thead><tr><th>run</th>";
  for (const std::string& name : names) out += "<th>" + escape(name) + "</th>";
  out += "</tr></thead><tbody>";
  for (size_t i = 0; i < runs.size(); ++i) {
    out += concat("<tr><th scope=\"row\"><i class=\"key dot f", i, "\"></i>", escape(runs[i].name),
                  "</th>");
    const std::vector<Fact> own = facts(runs[i]);
    for (const std::string& name : names) {
      const auto fact = std::ranges::find(own, name, &Fact::name);
      out += "<td>" + (fact == own.end() ? "–" : escape(fact->value)) + "</td>";
    }
    out += "</tr>";
  }
  return out + "</tbody></table></div>\n";
}

// "resnet20 on cifar-10-batches-bin, 4 learners, network 100mbit,1ms, scalecom:rate=100, lgreco"
std::string what_ran(const RunRecord& run) {
  const auto said = [&](const char* key) {
    const std::string value = run.setting(key);
    return value.empty() || value == "none" || value == "uniform" ? "" : value;
  };
  std::vector<std::string> parts = {said(run.setting("arch").empty() ? "preset" : "arch")};
  std::string data = said("data");
  while (data.ends_with('/')) data.pop_back();
  data = data.substr(data.rfind('/') + 1);
  if (!data.empty()) parts[0] += (parts[0].empty() ? "" : " on ") + data;
  if (const std::string learners = text(run.summary, "world_size"); !learners.empty())
    parts.push_back(learners + (learners == "1" ? " learner" : " learners"));
  if (!said("net").empty()) parts.push_back("network " + said("net"));
  parts.push_back(said("compress"));
  parts.push_back(said("layerwise"));
  std::string out;
  for (const std::string& part : parts) out += (out.empty() || part.empty() ? "" : ", ") + part;
  return out;
}

// Settings in which the runs differ.
std::string differences(const std::vector<RunRecord>& runs) {
  std::vector<std::string> keys;
  for (const RunRecord& run : runs)
    for (const auto& [key, value] : run.config)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  std::string rows;
  for (const std::string& key : keys) {
    std::set<std::string> values;
    for (const RunRecord& run : runs) values.insert(run.setting(key));
    if (values.size() < 2) continue;
    rows += "<tr><th scope=\"row\">" + escape(key) + "</th>";
    for (const RunRecord& run : runs) {
      std::string value = run.setting(key);
      if (key == "compress-start" && value == "-1") value = "by length";  // of the run
      rows += "<td class=\"text\">" + (value.empty() ? "–" : escape(value)) + "</td>";
    }
    rows += "</tr>";
  }
  if (rows.empty()) return "";
  std::string out =
      "<section id=\"differences\"><h2>What was set differently</h2><div "
      "class=\"scroll\" tabindex=\"0\"><table class=\"facts\"><thead><tr><th>flag"
      "</th>";
  for (const RunRecord& run : runs) out += "<th class=\"text\">" + escape(run.name) + "</th>";
  return out + "</tr></thead><tbody>" + rows + "</tbody></table></div></section>\n";
}

std::string machine(const RunRecord& run) {
  const Json host = run.info.value("machine", Json::object());
  const Json build = run.info.value("build", Json::object());
  std::string command;
  if (const auto argv = run.info.find("argv"); argv != run.info.end() && argv->is_array())
    for (const Json& word : *argv)
      command +=
          (command.empty() ? "" : " ") + (word.is_string() ? word.get<std::string>() : word.dump());
  const double memory = host.contains("memory_bytes") && host["memory_bytes"].is_number()
                            ? host["memory_bytes"].get<double>()
                            : NAN;
  const std::vector<Fact> rows = {
      {"command", command, ""},
      {"started", text(run.info, "start_time"), ""},
      {"program",
       concat(text(run.info, "program"), ", git ", text(build, "git_revision"), ", ",
              text(build, "type"), ", ", text(build, "compiler")),
       ""},
      {"processor", concat(text(host, "cpu"), ", ", text(host, "cores"), " cores"), ""},
      {"memory", scaled(memory, "B"), ""},
      {"system", text(host, "system"), ""},
      {"used",
       concat(text(run.info, "device"), ", ", text(run.info, "threads"),
              text(run.info, "threads") == "1" ? " thread a learner, " : " threads a learner, ",
              text(run.info, "precision"), ", seed ", text(run.info, "seed")),
       ""}};
  std::string out = "<dl class=\"machine\">";
  for (const Fact& row : rows)
    out += concat("<dt>", row.name, "</dt><dd>", escape(row.value), "</dd>");
  out +=
      "</dl><details class=\"config\"><summary>Configuration</summary><div class=\"scroll\" "
      "tabindex=\"0\"><table><tbody>";
  for (const auto& [key, value] : run.config)
    out += concat("<tr><td>", escape(key), "</td><td>", escape(value), "</td></tr>");
  return out + "</tbody></table></div></details>\n";
}

// Figures of one of several runs have identifiers of their own.
std::string numbered(std::string figures, size_t run) {
  const std::string from = "<figure id=\"", to = concat(from, "run", run + 1, "-");
  for (size_t at = 0; (at = figures.find(from, at)) != std::string::npos; at += to.size())
    figures.replace(at, from.size(), to);
  const std::string mark = "tip\"", own = concat("tip", run + 1, "\"");
  for (const std::string& before : {std::string("marker id=\""), std::string("url(#")}) {
    const std::string old = before + (before[0] == 'm' ? mark : "tip)");
    const std::string fresh = before + (before[0] == 'm' ? own : concat("tip", run + 1, ")"));
    for (size_t at = 0; (at = figures.find(old, at)) != std::string::npos; at += fresh.size())
      figures.replace(at, old.size(), fresh);
  }
  return figures;
}

std::string own_section(const RunRecord& run, size_t i, bool alone, int64_t cells) {
  const std::string figures = draw_plans(run, cells) + draw_choices(run) +
                              draw_residuals(run, cells) + draw_quality(run) + draw_timeline(run);
  std::string bytes = draw_layer_bytes(run, static_cast<int>(i));
  if (alone) return numbered(figures, i);
  return concat("<section id=\"run", i + 1, "\"><h2><i class=\"key dot f", i, "\"></i>",
                escape(run.name), "</h2><div class=\"grid\">", numbered(bytes + figures, i),
                "</div>", machine(run), "</section>\n");
}

// Runs whose folders have the same name are told apart by the folders above.
void name_apart(std::vector<RunRecord>& runs) {
  for (RunRecord& run : runs) {
    const auto same = std::ranges::count(runs, run.name, &RunRecord::name);
    if (same > 1) run.name = run.folder;
  }
}

std::string headline(const std::vector<RunRecord>& runs) {
  std::string title;
  for (const RunRecord& run : runs) title += (title.empty() ? "" : " · ") + run.name;
  return title;
}

std::string whole_page(const std::vector<RunRecord>& runs, int64_t cells) {
  const bool alone = runs.size() == 1;
  const std::string title = escape(headline(runs));
  std::string out = concat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light "
      "dark\"><link rel=\"icon\" href=\"data:,\"><title>",
      title, "</title><style>", kReportStyle,
      "</style></head><body><main>\n<header><p class=\"over\">heddle, report of ",
      alone ? "a run" : concat(runs.size(), " runs"), "</p><h1>", title, "</h1>");
  if (alone)
    out += concat("<p class=\"note\">", escape(what_ran(runs[0])), "</p><p class=\"note\">",
                  escape(text(runs[0].info, "start_time").substr(0, 10)),
                  runs[0].summary.empty() ? ", not ended when this was written"
                                          : ", " + escape(text(runs[0].summary, "summary")),
                  "</p>");
  for (const RunRecord& run : runs)
    if (run.broken_lines > 0)
      out += concat("<p class=\"note broken\">", escape(run.name),
                    "/metrics.jsonl: ", run.broken_lines,
                    " of its lines are none of metrics and were left out; line ",
                    escape(run.first_broken), "</p>");
  out += "</header>\n";
  out += alone ? tiles(runs[0]) : comparison(runs);
  out += "<section id=\"figures\"><h2>Over the run</h2><div class=\"grid\">" + draw_curves(runs) +
         draw_breakdown(runs);
  if (alone) out += draw_layer_bytes(runs[0], 0) + own_section(runs[0], 0, true, cells);
  out += "</div></section>\n" + ratio_table(runs);
  if (!alone) out += differences(runs);
  if (alone)
    out += "<section id=\"machine\"><h2>Machine and configuration</h2>" + machine(runs[0]) +
           "</section>\n";
  else
    for (size_t i = 0; i < runs.size(); ++i) out += own_section(runs[i], i, false, cells);
  return out + concat("</main><script>", kReportScript, "</script></body></html>\n");
}

}  // namespace

std::string report_page(std::vector<RunRecord> runs) {
  check(!runs.empty(), "a report needs a run folder");
  check(runs.size() <= kMaxReportRuns, "a report holds at most ", kMaxReportRuns, " runs, found ",
        runs.size());
  name_apart(runs);
  int64_t cells = 6000 / std::ssize(runs);
  std::string page = whole_page(runs, cells);
  for (; page.size() > kMaxReportBytes && cells > 1; page = whole_page(runs, cells)) cells /= 2;
  return page;
}

}  // namespace heddle
