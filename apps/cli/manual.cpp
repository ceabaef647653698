// FlagTable::manual(): the manual page, from the table that --help is printed from.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "apps/cli/flags.h"
#include "core/error.h"

namespace heddle {
namespace {

// What roff would take for its own: backslashes, hyphens that are to be copied, and a dot or a
// quote at the beginning of a line.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string section(const std::string& title) { return ".SH " + roff(upper(title)) + "\n"; }

std::string item(const std::string& term, const std::string& text) {
  return concat(".TP\n", term, "\n", roff(text), "\n");
}

}  // namespace

std::string FlagTable::manual() const {
  const std::string program = app_->get_name(), all = app_->get_description();
  const size_t end = std::min(all.find("\n\n"), all.size());  // tables stand behind
  std::string text = all.substr(0, end);
  std::ranges::replace(text, '\n', ' ');
  std::string name = text.substr(0, text.find(". "));  // the first sentence
  name[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(name[0])));
  std::string out =
      concat(".TH ", upper(program), " 1 \"\" \"heddle ", HEDDLE_VERSION, "\" \"User Commands\"\n",
             section("name"), program, " \\- ", roff(name), "\n", section("synopsis"), ".B ",
             program, "\n[\\fIflag\\fR ...]\n", section("description"), roff(text), "\n.PP\n.nf\n");
  std::istringstream rest(all.substr(end));
  for (std::string line; std::getline(rest, line);)
    if (!line.empty()) out += roff(line) + "\n";
  out += ".fi\n" + section("options");
  std::vector<std::string> groups;
  for (const Flag& flag : flags_)
    if (std::ranges::find(groups, flag.option->get_group()) == groups.end())
      groups.push_back(flag.option->get_group());
  for (const std::string& group : groups) {
    out += ".SS " + roff(group) + "\n";
    for (const Flag& flag : flags_) {
      if (flag.option->get_group() != group) continue;
      const std::string value = flag.info.value;
      out += item(concat("\\fB", roff("--" + flag.name), "\\fR",
                         value.empty() ? "" : " \\fI" + roff(value) + "\\fR"),
                  flag.option->get_description());
    }
  }
  out +=
      section("environment") +
      item("\\fBHEDDLE_\\fIFLAG\\fR",
           "A value for any flag, its name in capitals with _ for -: HEDDLE_BATCH_SIZE=64. A flag "
           "on the command line is stronger than the environment, that stronger than the file of "
           "--config, and that stronger than the defaults.") +
      item("\\fBHEDDLE_DATA\\fR",
           "No value for --data, but the folder of the data sets: a relative --data that is not "
           "there is looked for in it.");
  out += section("files") +
         item("\\fIruns/<name>\\-<time>/\\fR",
              "What a run leaves: config.toml, run.json, metrics.jsonl, checkpoints, "
              "model.safetensors, report.html.");
  out += section("exit status");
  for (const auto& [code, meaning] :
       {std::pair{ExitCode::ok, "Done."}, std::pair{ExitCode::runtime, "A runtime error."},
        std::pair{ExitCode::usage, "Wrong usage or bad input."},
        std::pair{ExitCode::diverged, "The run has diverged."},
        std::pair{ExitCode::stopped,
                  "Stopped by a signal after a consistent save; --resume auto goes on."}})
    out += item(concat("\\fB", static_cast<int>(code), "\\fR"), meaning);
  return out;
}

}  // namespace heddle
