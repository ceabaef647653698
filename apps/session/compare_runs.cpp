#include "apps/session/compare_runs.h"

#include <cstdlib>
#include <map>
#include <sstream>

#include "apps/cli/json.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

// Returns the lines of config.toml by key, "lr = 0.1" by "lr", without their comments.
std::map<std::string, std::string> lines_of(const std::string& config) {
  std::map<std::string, std::string> lines;
  std::istringstream in(config);
  for (std::string line; std::getline(in, line);)
    if (const size_t end = line.find(" ="); end != std::string::npos && line[0] != '#')
      lines[line.substr(0, end)] = line.substr(0, line.find("  # ", line.rfind('"') + 1));
  return lines;
}

}  // namespace

std::string difference(const nlohmann::json& there, const nlohmann::ordered_json& here) {
  for (const auto& [key, value] : here.items()) {
    const auto mine = nlohmann::json::parse(json_line(value));  // as a file or a message has it
    if (!there.contains(key)) return concat(key, ": unknown there, ", mine.dump(), " here");
    if (there[key] != mine)
      return concat(key, ": ", printable(there[key].dump()), " there, ", printable(mine.dump()),
                    " here");
  }
  for (const auto& [key, value] : there.items())
    if (!here.contains(key)) return concat(key, ": ", printable(value.dump()), " there, none here");
  return "";
}

nlohmann::ordered_json compression_of(const CommonOptions& o) {
  nlohmann::ordered_json json = {
      {"compress", o.compress}, {"dense-layers", o.dense_layers}, {"min-compress", o.min_compress}};
  if (!o.peers.empty())
    json.update({{"peers", o.peers}, {"innovation", o.innovation}, {"peer-rule", o.peer_rule}});
  if (o.local_steps > 1)
    json.update({{"local-steps", o.local_steps}, {"outer-momentum", o.outer_momentum > 0}});
  if (o.outer_delay > 0) json["outer-delay"] = o.outer_delay;
  return json;
}

std::string compression_differs(const nlohmann::json& there, const CommonOptions& o) {
  CommonOptions same = o;
  same.compress = there.at("compress").get<std::string>();
  CompressSpec spec = parse_compress_choice(same.compress).spec, mine = o.parsed.compress.spec;
  for (const char* key : {"beta", "ramp"})
    if (mine.values.contains(key)) spec.values[key] = mine.values[key];
  const bool automatic = o.parsed.compress.automatic;
  if (to_string(spec) != to_string(mine) || same.compress.starts_with("auto") != automatic)
    same = o;
  return difference(there, compression_of(same));
}

nlohmann::ordered_json planning_of(const CommonOptions& o) {
  return {{"layerwise", o.layerwise}, {"lgreco", o.lgreco}, {"plan", o.plan}};
}

double residual_scale(const nlohmann::json& state, const CommonOptions& o) {
  CommonOptions there = o;
  there.compress = state.at("compression").at("compress").get<std::string>();
  const auto lines = lines_of(state.at("config").get<std::string>());
  if (const auto line = lines.find("accumulate"); line != lines.end())
    there.accumulate = std::atoll(line->second.substr(line->second.find('=') + 1).c_str());
  if (o.local_steps > 1) there.accumulate = o.accumulate;  // residuals of weights, not of sums
  check(there.accumulate > 0, "accumulate of the saved run: expected at least 1, found ",
        there.accumulate);
  const auto beta = [](const CommonOptions& options) {
    const CompressSpec spec = parse_compress_choice(options.compress).spec;
    return spec.values.contains("beta") ? spec.values.at("beta") : 1.0;
  };
  return static_cast<double>(o.accumulate) / static_cast<double>(there.accumulate) * beta(o) /
         beta(there);
}

void note_changes(const std::string& there, const std::string& here, const Logger& note) {
  const auto before = lines_of(there), now = lines_of(here);
  const auto line = [](const auto& lines, const std::string& key) {
    const auto found = lines.find(key);
    return found == lines.end() ? key + " not set" : found->second;
  };
  for (const auto* lines : {&before, &now})
    for (const auto& [key, text] : *lines) {
      if (lines == &now && before.contains(key)) continue;
      if (line(before, key) != line(now, key))
        note(concat("changed: ", printable(line(before, key)), " there, ",
                    printable(line(now, key)), " here"));
    }
}

bool same_config(const std::string& there, const std::string& here) {
  auto before = lines_of(there), now = lines_of(here);
  for (const char* key : {"output-dir", "print-freq", "quiet", "json", "comm-timeout"})
    before.erase(key), now.erase(key);
  return before == now;
}

}  // namespace heddle
