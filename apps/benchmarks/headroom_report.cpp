// What --headroom prints: the measured steps, a verdict, and a model of other networks.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/benchmarks/headroom.h"
#include "apps/cli/json.h"
#include "comm/net_model.h"

namespace heddle {
namespace {

const std::vector<std::string> kNets = {"these links", "100mbit,1ms", "1gbit,200us", "10gbit,50us"};
constexpr double kWorthIt = 1.03;   // gains below are within what such a measurement scatters
constexpr double kDisturbed = 0.1;  // of the time, from which on others have a part in the figures

std::string format(const char* text, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof line, text, arguments);
  va_end(arguments);
  return line;
}

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

// As many as measured, and others.
std::set<int> modelled_learners(const Headroom& h) { return {h.learners, 4, 8, 32, 128, 1024}; }

double mbit(const LinkCost& link) {
  return link.seconds_per_byte > 0 ? 8e-6 / link.seconds_per_byte : 0.0;
}

std::string title(const ExchangeProfile& p) {
  if (p.compress.empty()) return "no exchange";
  return p.compress == "none" ? "dense" : p.compress;
}

double modelled(const Headroom& h, size_t i, int ranks, const LinkCost& link) {
  return step_seconds(h.profiles[i], h.learners, h.link, ranks, link);
}

// Of the first column: the longest name fits.
int title_width(const Headroom& h) {
  size_t width = 24;
  for (const ExchangeProfile& p : h.profiles) width = std::max(width, title(p).size() + 2);
  return static_cast<int>(width);
}

std::string measured_table(const Headroom& h) {
  std::string out = format("%-*s %6s %10s %12s %10s %14s %10s\n", title_width(h), "", "steps",
                           "step ms", "waiting ms", "sent MB", "against dense", "model ms");
  for (size_t i = 0; i < h.profiles.size(); ++i) {
    const ExchangeProfile& p = h.profiles[i];
    out += format("%-*s %6lld %10.1f %12.1f %10.3f %13.2fx", title_width(h), title(p).c_str(),
                  static_cast<long long>(p.steps), 1e3 * p.step_s, 1e3 * p.exposed_s,
                  1e-6 * p.sent_bytes, h.gain(i));
    out += i == 0 ? "\n" : format(" %10.1f\n", 1e3 * modelled(h, i, h.learners, h.link));
  }
  return out;
}

std::string verdict(const Headroom& h) {
  const ExchangeProfile& dense = h.profiles[1];
  // Learners that share processors wait for each other, too, while one of them computes.
  std::string out = dense.exposed_s > 1.1 * h.share() * dense.step_s
                        ? "Of the waiting, only what an exchange adds to a step can be won: the "
                          "rest of it others compute.\n"
                        : "";
  out += format(
      "Communication is %.0f %% of a step, %.1f of %.1f ms: nothing can win more than %.2fx.",
      100 * h.share(), 1e3 * h.share() * dense.step_s, 1e3 * dense.step_s, std::max(1.0, h.most()));
  const size_t best = h.best();
  if (h.gain(best) > kWorthIt * std::max(1.0, h.most()))
    return out +
           format(
               " But with %s steps took %.2fx of those without any exchange: something else was "
               "busy. Measure again, longer (--headroom 300).\n",
               title(h.profiles[best]).c_str(), h.profiles[best].step_s / h.profiles[0].step_s);
  if (std::min(h.gain(best), h.most()) < kWorthIt) return out + " Stay with --compress none.\n";
  return out + format(" The best of these is --compress %s, %.2fx.\n",
                      h.profiles[best].compress.c_str(), h.gain(best));
}

std::string disturbance(const Headroom& h) {
  if (h.stolen < kDisturbed) return "";
  return format(
      "Others took %.0f %% of the processors' time meanwhile (steal, /proc/stat): measure again.\n",
      100 * h.stolen);
}

std::string model_table(const Headroom& h) {
  const std::set<int> learners = modelled_learners(h);
  std::string out =
      "A model of other networks, and of more learners that compute as fast as these: a dense\n"
      "step in ms, and how many times faster the others are.\n\n";
  for (const std::string& net : modelled_nets(h)) {
    const LinkCost link = link_of(h, net);
    out += format("%-*s", title_width(h), net.c_str());
    for (const int p : learners) out += format(" %12s", concat("P = ", p).c_str());
    out += '\n';
    for (size_t i = 1; i < h.profiles.size(); ++i) {
      out += format("  %-*s", title_width(h) - 2, title(h.profiles[i]).c_str());
      for (const int p : learners) {
        const double dense = modelled(h, 1, p, link);
        out += i == 1 ? format(" %9.1f ms", 1e3 * dense)
                      : format(" %11.2fx", dense / modelled(h, i, p, link));
      }
      out += '\n';
    }
  }
  return out;
}

}  // namespace

std::string describe_headroom(const Headroom& h) {
  return format("%d learners; links of %.3f ms and %.0f Mbit/s as all-reduces see them\n\n",
                h.learners, 1e3 * h.link.latency_s, mbit(h.link)) +
         measured_table(h) + '\n' + verdict(h) + disturbance(h) + '\n' + model_table(h);
}

std::string headroom_json(const Headroom& h) {
  nlohmann::ordered_json json = {{"learners", h.learners},
                                 {"latency_s", h.link.latency_s},
                                 {"mbit_per_s", mbit(h.link)},
                                 {"communication_share", h.share()},
                                 {"most", std::max(1.0, h.most())},
                                 {"best", h.profiles[h.best()].compress},
                                 {"stolen", h.stolen}};
  for (size_t i = 0; i < h.profiles.size(); ++i) {
    const ExchangeProfile& p = h.profiles[i];
    nlohmann::ordered_json row = {{"exchange", title(p)},       {"steps", p.steps},
                                  {"step_s", p.step_s},         {"exposed_s", p.exposed_s},
                                  {"sent_bytes", p.sent_bytes}, {"gain", h.gain(i)}};
    if (i > 0) row["model_step_s"] = modelled(h, i, h.learners, h.link);
    json["measured"].push_back(row);
  }
  for (const std::string& net : modelled_nets(h))
    for (const int p : modelled_learners(h))
      for (size_t i = 1; i < h.profiles.size(); ++i)
        json["model"].push_back({{"net", net},
                                 {"learners", p},
                                 {"exchange", title(h.profiles[i])},
                                 {"step_s", modelled(h, i, p, link_of(h, net))}});
  return json_line(json);
}

}  // namespace heddle
