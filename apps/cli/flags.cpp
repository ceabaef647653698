#include "apps/cli/flags.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/cli/format.h"
#include "core/error.h"
#include "core/files.h"
#include "core/names.h"
#include "core/parse_number.h"

namespace heddle {
namespace {

using Strings = std::vector<std::string>;

constexpr size_t kHelpColumn = 30, kHelpWidth = 100, kMaxConfigBytes = 1 << 20;
// toml++ destroys nested tables by recursion: a key with a million dots would exhaust the stack.
constexpr int64_t kMaxConfigDots = 1000;

bool in_range(double x, const Flag& flag) {
  return std::isfinite(x) && (flag.above_min ? x > flag.min : x >= flag.min) &&
         (flag.below_max ? x < flag.max : x <= flag.max);
}

std::string describe_range(const char* kind, const Flag& flag) {
  std::string out =
      concat(kind, flag.above_min ? " above " : " of at least ", format_number(flag.min));
  if (std::isfinite(flag.max))
    out += concat(flag.below_max ? " and below " : " and at most ", format_number(flag.max));
  return out;
}

void read_value(bool& target, const std::string& text, const Flag&, const std::string& where) {
  const Strings words = {"true", "on", "yes", "1", "false", "off", "no", "0"};
  const auto word = std::ranges::find(words, text);
  check(word != words.end(), where, ": expected true or false, found '", text, "'");
  target = word - words.begin() < 4;
}

template <class T>
void read_value(T& target, const std::string& text, const Flag& flag, const std::string& where) {
  const auto x = parse_number<T>(text);
  const char* kind = std::is_integral_v<T> ? "an integer" : "a number";
  check(x && in_range(static_cast<double>(*x), flag), where, ": expected ",
        describe_range(kind, flag), ", found '", text, "'");
  target = *x;
}

void read_value(std::string& target, const std::string& text, const Flag& flag,
                const std::string& where) {
  const Strings& names = flag.choices;
  check(names.empty() || std::ranges::find(names, text) != names.end(), where, ": expected one of ",
        join(names, ", "), ", found '", text, "'");
  target = text;
}

// Returns a flag's value as TOML, which writes strings and arrays as JSON does; "" if none is set.
std::string format_value(const Flag& flag) {
  return std::visit(
      [&](const auto* value) -> std::string {
        using T = std::decay_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, bool>) {
          return *value ? "true" : "false";
        } else if constexpr (std::is_arithmetic_v<T>) {
          const auto x = static_cast<double>(*value);
          if (!in_range(x, flag)) return "";
          return std::is_integral_v<T> ? concat(*value) : format_number(x);
        } else {
          using Handler = nlohmann::json::error_handler_t;
          if (value->empty()) return "";
          return nlohmann::json(*value).dump(-1, ' ', false, Handler::replace);
        }
      },
      flag.target);
}

// Returns HEDDLE_BATCH_SIZE for batch-size.
std::string environment_name(const std::string& flag) {
  std::string out = "HEDDLE_";
  for (const char c : flag) out += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return out;
}

// The inverse.
std::string flag_name(const std::string& environment) {
  std::string out;
  for (const char c : environment.substr(7))
    out += c == '_' ? '-' : static_cast<char>(std::tolower(c));
  return out;
}

// Returns the values of a node as they would be written on the command line.
Strings texts_of(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) {
    check(text->get().find('\0') == std::string::npos, where, ": expected text, found a NUL byte");
    return {text->get()};
  }
  if (const auto* number = node.as_integer()) return {std::to_string(number->get())};
  if (const auto* number = node.as_floating_point()) return {format_number(number->get())};
  if (const auto* truth = node.as_boolean()) return {truth->get() ? "true" : "false"};
  const toml::array* array = node.as_array();
  check(array != nullptr, where, ": expected a value or an array of values");
  Strings out;
  for (const toml::node& item : *array) {
    check(!item.is_array(), where, ": expected an array of values, found an array of arrays");
    out.push_back(texts_of(item, where).front());
  }
  return out;
}

std::string read_whole(const std::string& path) {
  std::error_code ignored;
  check(!std::filesystem::is_directory(path, ignored), path, ": expected a file, found a folder");
  std::ifstream file(path, std::ios::binary);  // may be a pipe
  check(file.good(), path, ": ", std::strerror(errno));
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  check(text.size() <= kMaxConfigBytes, path, ": expected a configuration of at most 1 MiB");
  return text;
}

// Returns "architecture; one of resnet20, resnet32 (default: by recipe)".
std::string describe(const Flag& flag) {
  std::string out = flag.help;
  if (!flag.choices.empty()) out += "; one of " + join(flag.choices, ", ");
  if (flag.is_switch() && !flag.saved) return out;  // a question or an action
  return concat(out, " (default: ", flag.default_text.empty() ? "none" : flag.default_text, ")");
}

// Appends the words of `text` to `line`, and breaks lines before kHelpWidth; the next ones begin at
// `column`.
std::string wrap(std::string line, const std::string& text, size_t column) {
  std::string out;
  for (const std::string& word : split(text, ' ')) {
    if (line.size() + word.size() > kHelpWidth) {
      out += line.substr(0, line.size() - 1) + '\n';
      line.assign(column, ' ');
    }
    line += word + ' ';
  }
  return out + line.substr(0, line.size() - 1) + '\n';
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Escapes what roff interprets: backslashes, hyphens (so that flags can be copied), and a dot or a
// quote at the beginning of a line.
std::string roff(const std::string& text) {
  std::string out = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  return out;
}

std::string section(const std::string& title) { return ".SH " + roff(upper(title)) + "\n"; }

std::string item(const std::string& term, const std::string& text) {
  return concat(".TP\n", term, "\n", roff(text), "\n");
}

}  // namespace

Flag& FlagTable::append(const char* name, FlagTarget target, const char* value,
                        const std::string& help) {
  Flag flag{.name = name, .target = target, .value = value, .help = help, .group = group_};
  flag.min = -std::numeric_limits<double>::infinity();  // shows defaults that mean "not set", too
  const auto* text = std::get_if<std::string*>(&target);
  flag.default_text = text != nullptr ? **text : format_value(flag);
  flag.min = 0;
  const auto same = [&](const Flag& other) { return other.group == group_; };
  const auto last = std::find_if(flags_.rbegin(), flags_.rend(), same).base();
  return *flags_.insert(last == flags_.begin() ? flags_.end() : last, std::move(flag));
}

size_t FlagTable::index(const std::string& name) const {
  return static_cast<size_t>(std::ranges::find(flags_, name, &Flag::name) - flags_.begin());
}

std::string FlagTable::nearest(const std::string& name) const {
  Strings known;
  for (const Flag& flag : flags_) known.push_back(flag.name);
  return nearest_name(name, known);
}

// Errors begin with `where`: the flag, the variable, or file, line and key.
void FlagTable::set(Flag& flag, const Strings& texts, FlagSource source, const std::string& where) {
  check(flag.is_list() ? !texts.empty() : texts.size() == 1, where, ": expected ",
        flag.is_list() ? "at least one value" : "one value", ", found ", texts.size());
  std::visit(
      [&](auto* target) {
        using T = std::decay_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          target->clear();
          for (const std::string& text : texts)
            for (const std::string& part : split(text, ','))
              read_value(target->emplace_back(), part, flag, where);
        } else if constexpr (std::is_same_v<T, Strings>) {
          *target = texts;
        } else {
          read_value(*target, texts.front(), flag, where);
        }
      },
      flag.target);
  flag.source = source;
}

// Reads --name VALUE, --name=VALUE, several values for a list; --name and --no-name for a switch.
void FlagTable::read_arguments(const Strings& arguments) {
  const auto is_flag = [](const std::string& text) {
    return text == "-h" || text.starts_with("--");
  };
  std::map<std::string, Strings> lists;  // which may be given in parts
  if (words_ != nullptr) words_->clear();
  for (size_t i = 0; i < arguments.size();) {
    const std::string argument = arguments[i++] == "-h" ? "--help" : arguments[i - 1];
    if (!argument.starts_with("--") || argument.size() == 2) {
      check(words_ != nullptr, "expected a flag, found '", argument, "'");
      words_->push_back(argument);
      continue;
    }
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string spelled = argument.substr(0, equals), name = spelled.substr(2);
    const bool has_value = equals < argument.size();
    size_t row = index(name);
    const bool negated = row == flags_.size() && name.starts_with("no-");
    if (negated) row = index(name.substr(3));
    check(row < flags_.size() && (!negated || flags_[row].is_switch()), spelled,
          " is not a known flag; the nearest is --", nearest(name));
    check(!negated || !has_value, spelled, ": expected no value");
    Flag& flag = flags_[row];
    Strings texts;
    if (has_value) {
      texts = {argument.substr(equals + 1)};
    } else if (flag.is_switch()) {
      texts = {negated ? "false" : "true"};
    } else {
      check(i < arguments.size(), spelled, ": expected a value");
      check(!is_flag(arguments[i]), spelled, ": expected a value, found the flag ", arguments[i]);
      do texts.push_back(arguments[i++]);
      while (flag.is_list() && i < arguments.size() && !is_flag(arguments[i]));
    }
    if (flag.is_list()) {
      Strings& all = lists[flag.name];
      all.insert(all.end(), texts.begin(), texts.end());
      texts = all;
    }
    set(flag, texts, FlagSource::flag, spelled);
  }
}

void FlagTable::read_environment(const Strings& environment) {
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (!entry.starts_with("HEDDLE_") || equals == std::string::npos) continue;
    const std::string variable = entry.substr(0, equals), name = flag_name(variable);
    const size_t row = index(name);
    if (row < flags_.size() && environment_name(name) == variable) {
      if (flags_[row].in_environment)
        set(flags_[row], {entry.substr(equals + 1)}, FlagSource::environment, variable);
      continue;
    }
    // Other names belong to other tools; only a probable typing error is worth a warning.
    const std::string close = environment_name(nearest(name));
    if (edit_distance(variable, close) <= 2)
      warnings_.push_back(
          concat(variable, " is not known and has no effect; the nearest is ", close));
  }
}

void FlagTable::read_config(const std::string& path) {
  const std::string text = read_whole(path);
  check(std::ranges::count(text, '.') <= kMaxConfigDots, path, ": expected at most ",
        kMaxConfigDots, " dots in a configuration");
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw InputError(
        concat(path, ":", error.source().begin.line, ": ", printable(error.description(), 200)));
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str()),
        where = concat(path, ":", key.source().begin.line, ": ", printable(name));
    const size_t row = index(name);
    check(row < flags_.size(), where, " is not a known key; the nearest is ", nearest(name));
    check(flags_[row].saved, where, " is a flag, but not a key of a file");
    set(flags_[row], texts_of(node, where), FlagSource::config, where);
  }
}

void FlagTable::parse(const Strings& arguments, const Strings& environment) {
  read_arguments(arguments);  // finds --config at any position
  std::string path;
  if (const size_t row = index("config"); row < flags_.size()) {
    path = *std::get<std::string*>(flags_[row].target);
    for (const std::string& entry : environment)
      if (path.empty() && entry.starts_with("HEDDLE_CONFIG="))
        path = entry.substr(entry.find('=') + 1);
  }
  for (Flag& flag : flags_) flag.source = FlagSource::default_value;
  // The weakest source first: the next one overwrites its values.
  if (!path.empty()) read_config(path);
  read_environment(environment);
  read_arguments(arguments);
}

void FlagTable::check_needs(const std::vector<Need>& needs) {
  for (const Need& need : needs) {
    if (need.met || index(need.flag) == flags_.size()) continue;
    if (source(need.flag) != FlagSource::flag) continue;
    const std::string text = concat("--", need.flag, " ", need.words);
    check(need.harmless, text);
    warnings_.push_back(text + ": it has no effect");
  }
}

void FlagTable::suggest(const std::string& name, const std::string& value,
                        const std::string& where) {
  if (!given(name)) set(at(name), {value}, FlagSource::config, where);
}

std::string FlagTable::dump(const std::string& rule_note) const {
  std::string out;
  for (const Flag& flag : flags_) {
    const std::string value = format_value(flag);
    if (!flag.saved || value.empty()) continue;
    const std::string note = flag.by_rule ? rule_note : "default";
    out += concat(flag.name, " = ", value,
                  flag.source == FlagSource::default_value ? "  # " + note : "", '\n');
  }
  return out;
}

std::string FlagTable::help() const {
  const size_t end = std::min(summary_.find("\n\n"), summary_.size());
  std::string out = concat(wrap("", summary_.substr(0, end), 0),
                           end < summary_.size() ? summary_.substr(end + 1) + '\n' : "",
                           "\nUsage: ", program_, " [FLAG]...\n--no-NAME turns a switch off.\n"),
              group;
  for (const Flag& flag : flags_) {
    if (flag.group != group) out += concat("\n", group = flag.group, ":\n");
    std::string line = concat("  --", flag.name, flag.value.empty() ? "" : " ", flag.value);
    if (line.size() + 2 > kHelpColumn) out += line + '\n', line.clear();
    line.resize(kHelpColumn, ' ');
    out += wrap(line, describe(flag), kHelpColumn);
  }
  return out;
}

std::string FlagTable::manual() const {
  const size_t end = std::min(summary_.find("\n\n"), summary_.size());  // tables follow
  const std::string text = summary_.substr(0, end);
  std::string group, name = text.substr(0, text.find(". "));  // the first sentence
  name[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(name[0])));
  std::string out = concat(".TH ", upper(program_), " 1 \"\" \"heddle ", HEDDLE_VERSION,
                           "\" \"User Commands\"\n", section("name"), program_, " \\- ", roff(name),
                           "\n", section("synopsis"), ".B ", program_, "\n[\\fIflag\\fR ...]\n",
                           section("description"), roff(text), "\n.PP\n.nf\n");
  for (const std::string& line : split(summary_.substr(end), '\n'))
    if (!line.empty()) out += roff(line) + "\n";
  out += ".fi\n" + section("options");
  for (const Flag& flag : flags_) {
    if (flag.group != group) out += ".SS " + roff(group = flag.group) + "\n";
    out += item(concat("\\fB", roff("--" + flag.name), "\\fR",
                       flag.value.empty() ? "" : " \\fI" + roff(flag.value) + "\\fR"),
                describe(flag));
  }
  out += section("environment") +
         item("\\fBHEDDLE_\\fIFLAG\\fR",
              "A value for any flag, its name in capitals with _ for -: HEDDLE_BATCH_SIZE=64. The "
              "command line overrides the environment, the environment overrides the file that "
              "--config names, and that file overrides the defaults.") +
         item("\\fBHEDDLE_DATA\\fR",
              "Not a value for --data, but the folder of the data sets: a relative --data that "
              "does not exist is looked up there.") +
         section("files") +
         item("\\fIruns/<name>\\-<time>/\\fR",
              "The run folder: config.toml, run.json, metrics.jsonl, checkpoints, "
              "model.safetensors, report.html.") +
         section("exit status");
  for (const auto& [code, meaning] :
       {std::pair{ExitCode::ok, "Done."}, std::pair{ExitCode::runtime, "A runtime error."},
        std::pair{ExitCode::usage, "Wrong usage or bad input."},
        std::pair{ExitCode::diverged, "The run has diverged."},
        std::pair{ExitCode::stopped,
                  "Stopped by a signal after a consistent checkpoint; --resume auto continues."}})
    out += item(concat("\\fB", static_cast<int>(code), "\\fR"), meaning);
  return out;
}

}  // namespace heddle
