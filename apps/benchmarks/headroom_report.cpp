// Prints a --headroom measurement: the measured steps, a verdict, and a model of other networks.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/benchmarks/headroom.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "comm/net_model.h"

namespace heddle {
namespace {

const std::vector<std::string> kNets = {"these links", "100mbit,1ms", "1gbit,200us", "10gbit,50us"};
constexpr int kLocalSteps = 8;      // of a round, in the verdict
constexpr double kWorthIt = 1.03;   // smaller gains are within the measurement's scatter
constexpr int64_t kFew = 4;         // steps of an exchange
constexpr double kDisturbed = 0.1;  // share of stolen time that makes the figures doubtful

LinkCost link_of(const Headroom& h, const std::string& net) {
  if (net == kNets[0]) return h.link;
  const NetModel model = parse_net(net);
  return {.latency_s = model.latency_s, .seconds_per_byte = 1 / model.bytes_per_s};
}

std::vector<std::string> modelled_nets(const Headroom& h) {
  std::vector<std::string> nets = kNets;
  if (!h.net.empty() && std::ranges::find(nets, h.net) == nets.end()) nets.push_back(h.net);
  return nets;
}

// Returns the measured number of learners, or of hosts, and some from 4 to 1024.
std::set<int> modelled_parties(const Headroom& h) { return {h.parties(), 4, 8, 32, 128, 1024}; }

double mbit(const LinkCost& link) {
  return link.seconds_per_byte > 0 ? 8e-6 / link.seconds_per_byte : 0.0;
}

double modelled(const Headroom& h, size_t i, int ranks, const LinkCost& link) {
  return step_seconds(h.profiles[i], h.parties(), h.link, ranks, link);
}

// Returns the width of the first column, into which the longest name fits.
int title_width(const Headroom& h) {
  size_t width = 24;
  for (const ExchangeProfile& p : h.profiles) width = std::max(width, title(p).size() + 2);
  return to_int(width);
}

std::string times(double gain) { return decimals(gain, 2) + "x"; }
std::string ms(double seconds) { return decimals(1e3 * seconds, 1); }

std::string measured_table(const Headroom& h) {
  const TextTable table(concat(" ", -title_width(h),
                               "|steps 6|step ms 10|waiting ms 12|sent MB 10.3|against dense 14|"
                               "model ms 10"));
  std::string out = table.heading();
  for (size_t i = 0; i < h.profiles.size(); ++i) {
    const ExchangeProfile& p = h.profiles[i];
    std::vector<TextTable::Cell> row = {
        title(p), p.steps, ms(p.step_s), ms(p.exposed_s), 1e-6 * p.sent_bytes, times(h.gain(i))};
    if (i > 0) row.emplace_back(ms(modelled(h, i, h.parties(), h.link)));
    out += table.row(row);
  }
  return out;
}

// Returns the fewest steps that hide what the fastest exchange adds to one; at most those of a
// round but one.
int hiding_steps(const Headroom& h) {
  int steps = 1;
  while (steps + 1 < kLocalSteps &&
         (1 + steps) * h.profiles[0].step_s < h.profiles[h.best()].step_s)
    ++steps;
  return steps;
}

// Returns the mean seconds of a step where one in kLocalSteps exchanges, in the fastest way, while
// the next `delay` are computed.
double local_step(const Headroom& h, int delay) {
  const double alone = h.profiles[0].step_s;
  const double added = h.profiles[h.best()].step_s - (1 + delay) * alone;
  return alone + std::max(0.0, added) / kLocalSteps;
}

std::string verdict(const Headroom& h) {
  const ExchangeProfile& dense = h.profiles[1];
  std::string out;
  // Learners that share processors also wait for each other while one of them computes.
  if (dense.exposed_s > 1.1 * h.share() * dense.step_s)
    out = "Of the waiting, only what an exchange adds can be saved: in the rest, others compute.\n";
  out += concat("Communication is ", decimals(100 * h.share(), 0), " % of a step, ",
                ms(h.share() * dense.step_s), " of ", ms(dense.step_s),
                " ms: nothing can win more than ", times(std::max(1.0, h.most())), ".");
  const size_t best = h.best();
  if (h.gain(best) > kWorthIt * std::max(1.0, h.most()))
    return concat(out, " But with ", title(h.profiles[best]), " steps took ",
                  times(h.profiles[best].step_s / h.profiles[0].step_s),
                  " of those without any exchange: something else was busy. Measure again, longer "
                  "(--headroom 300).\n");
  if (h.most() < kWorthIt) return out + " Stay with --compress none.\n";
  out += h.gain(best) < kWorthIt
             ? " Of these --compress none is the best."
             : concat(" The best of these is --compress ", h.profiles[best].compress, ", ",
                      times(h.gain(best)), ".");
  const int delay = hiding_steps(h);
  const double local = local_step(h, 0), delayed = local_step(h, delay);
  return concat(out, "\nWith --local-steps ", kLocalSteps, " on top, one exchange every ",
                kLocalSteps, " steps, a step would take about ", ms(local), " ms, ",
                times(dense.step_s / local), ", and ", ms(delayed), " ms, ",
                times(dense.step_s / delayed), ", with --outer-delay ", delay,
                " (computed).\nCompression costs accuracy, and so do local steps: "
                "docs/howto/local-steps.md\n");
}

// Returns what makes the figures doubtful.
std::string doubts(const Headroom& h) {
  std::string out;
  if (h.sharing > 1 && h.hosts == 0)
    out += concat("The ", h.sharing,
                  " learners on this machine share its processors: on hosts of their own, steps "
                  "compute faster\nand exchanges weigh more.\n");
  const auto fewest = std::ranges::min(h.profiles, {}, &ExchangeProfile::steps).steps;
  if (fewest < kFew)
    out += concat("An exchange was measured in few steps (", fewest,
                  "): take longer (--headroom S).\n");
  if (h.stolen >= kDisturbed)
    out += concat("Others took ", decimals(100 * h.stolen, 0),
                  " % of the processors' time meanwhile (steal, /proc/stat): measure again.\n");
  return out;
}

std::string model_table(const Headroom& h) {
  const std::set<int> parties = modelled_parties(h);
  std::string columns = concat(" ", -title_width(h));
  for (size_t i = 0; i < parties.size(); ++i) columns += "| 12";
  const TextTable table(columns);
  std::string out = concat(
      "A model of other networks ",
      h.hosts > 0 ? "between hosts and numbers of hosts, all " : "and numbers of learners, all ",
      "computing as fast as these: a dense\nstep in ms, and how many times faster the others "
      "are.\n\n");
  for (const std::string& net : modelled_nets(h)) {
    const LinkCost link = link_of(h, net);
    std::vector<TextTable::Cell> heading = {net};
    for (const int p : parties) heading.emplace_back(concat("P = ", p));
    out += table.row(heading);
    for (size_t i = 1; i < h.profiles.size(); ++i) {
      std::vector<TextTable::Cell> row = {"  " + title(h.profiles[i])};
      for (const int p : parties) {
        const double dense = modelled(h, 1, p, link);
        row.emplace_back(i == 1 ? ms(dense) + " ms" : times(dense / modelled(h, i, p, link)));
      }
      out += table.row(row);
    }
  }
  return out;
}

}  // namespace

std::string title(const ExchangeProfile& p) {
  if (p.compress.empty()) return "no exchange";
  return p.compress == "none" ? "dense" : p.compress;
}

std::string describe_headroom(const Headroom& h) {
  const std::string where = h.hosts > 0 ? concat(" on ", h.hosts, " hosts") : "";
  return concat(h.learners, " learners", where, "; links of ", decimals(1e3 * h.link.latency_s, 3),
                " ms and ", significant(mbit(h.link), 3), " Mbit/s ",
                h.hosts > 0 ? "between them " : "", "as all-reduces see them\n\n",
                measured_table(h), '\n', verdict(h), doubts(h), '\n', model_table(h));
}

std::string headroom_json(const Headroom& h) {
  nlohmann::ordered_json json = {{"learners", h.learners},
                                 {"latency_s", h.link.latency_s},
                                 {"mbit_per_s", mbit(h.link)},
                                 {"communication_share", h.share()},
                                 {"most", std::max(1.0, h.most())},
                                 {"best", h.profiles[h.best()].compress},
                                 {"local_steps", kLocalSteps},
                                 {"local_step_s", local_step(h, 0)},
                                 {"outer_delay", hiding_steps(h)},
                                 {"delayed_step_s", local_step(h, hiding_steps(h))},
                                 {"stolen", h.stolen}};
  if (h.hosts > 0) json["hosts"] = h.hosts;
  for (size_t i = 0; i < h.profiles.size(); ++i) {
    const ExchangeProfile& p = h.profiles[i];
    nlohmann::ordered_json row = {{"exchange", title(p)},       {"steps", p.steps},
                                  {"step_s", p.step_s},         {"exposed_s", p.exposed_s},
                                  {"sent_bytes", p.sent_bytes}, {"gain", h.gain(i)}};
    if (i > 0) row["model_step_s"] = modelled(h, i, h.parties(), h.link);
    json["measured"].push_back(row);
  }
  for (const std::string& net : modelled_nets(h))
    for (const int p : modelled_parties(h))
      for (size_t i = 1; i < h.profiles.size(); ++i)
        json["model"].push_back({{"net", net},
                                 {h.hosts > 0 ? "hosts" : "learners", p},
                                 {"exchange", title(h.profiles[i])},
                                 {"step_s", modelled(h, i, p, link_of(h, net))}});
  return json_line(json);
}

}  // namespace heddle
