#include "apps/cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/cli/format.h"
#include "core/error.h"
#include "core/files.h"
#include "core/names.h"

namespace heddle {

namespace {

using Strings = std::vector<std::string>;

constexpr size_t kHelpColumn = 30, kHelpWidth = 100, kMaxConfigBytes = 1 << 20;
const Strings kBooleans = {"true", "false", "on", "off", "yes", "no", "1", "0"};

bool in_range(double x, const FlagInfo& info) {
  return std::isfinite(x) && (info.min_open ? x > info.min : x >= info.min) &&
         (info.max_open ? x < info.max : x <= info.max);
}

std::string describe_range(const char* kind, const FlagInfo& info) {
  std::string out =
      concat(kind, info.min_open ? " above " : " of at least ", format_number(info.min));
  if (std::isfinite(info.max)) {
    out += concat(info.max_open ? " and below " : " and at most ", format_number(info.max));
  }
  return out;
}

// CLI11's own conversion takes ' 8', 010 for eight, nan and 99999999999999999999 (as the largest
// integer), and its Range knows no open ends.
template <class T>
T read_number(const std::string& text, const FlagInfo& info, const std::string& flag) {
  T x = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, x);
  if (error != std::errc() || stop != end || !in_range(static_cast<double>(x), info)) {
    const char* kind = std::is_integral_v<T> ? "an integer" : "a number";
    throw CLI::ValidationError(
        flag, concat("expected ", describe_range(kind, info), ", found '", text, "'"));
  }
  return x;
}

// CLI11 lets an option swallow the flag behind it.
std::string refuse_flag(const std::string& text) {
  return text.starts_with("--") ? "expected a value, found the flag " + text : "";
}

bool is_list(const FlagTarget& target) {
  return std::holds_alternative<std::vector<int64_t>*>(target) ||
         std::holds_alternative<Strings*>(target);
}

CLI::Option* add_option(CLI::App& app, const std::string& flag, bool* target, const FlagInfo&) {
  const char* letter = flag == "help" ? "-h," : "";
  return app.add_flag(concat(letter, "--", flag, ",!--no-", flag), *target)
      ->check(CLI::IsMember(kBooleans));
}

template <class T>
CLI::Option* add_option(CLI::App& app, const std::string& flag, T* target, const FlagInfo& info) {
  const std::string name = "--" + flag;
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, Strings>) {
    CLI::Option* option = app.add_option(name, *target)->check(refuse_flag);
    return info.choices.empty() ? option : option->check(CLI::IsMember(info.choices));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return app.add_option(name, [=](const CLI::results_t& texts) {
      *target = read_number<T>(texts.at(0), info, name);
      return true;
    });
  } else {
    const CLI::callback_t read = [=](const CLI::results_t& texts) {
      target->clear();
      for (const std::string& text : texts) {
        target->push_back(read_number<typename T::value_type>(text, info, name));
      }
      return true;
    };
    return app.add_option(name, read)
        ->expected(1, CLI::detail::expected_max_vector_size)
        ->allow_extra_args()
        ->delimiter(',');
  }
}

// A flag's value as TOML, which writes strings and arrays as JSON does; "" when it is not set.
std::string format_value(const FlagTarget& target, const FlagInfo& info) {
  return std::visit(
      [&](const auto* value) -> std::string {
        using T = std::decay_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, bool>) return *value ? "true" : "false";
        if constexpr (std::is_arithmetic_v<T>) {
          if (!in_range(static_cast<double>(*value), info)) return "";
          if constexpr (std::is_integral_v<T>) return std::to_string(*value);
          if constexpr (!std::is_integral_v<T>) return format_number(*value);
        } else {
          using Handler = nlohmann::json::error_handler_t;
          return value->empty() ? ""
                                : nlohmann::json(*value).dump(-1, ' ', false, Handler::replace);
        }
      },
      target);
}

std::string describe_flag(const FlagTarget& target, const FlagInfo& info) {
  std::string out = info.help;
  std::vector<std::string> choices = info.choices;
  std::erase(choices, "");  // stands for a default that is described
  if (!choices.empty()) out += ": " + CLI::detail::join(choices, ", ");
  std::string value = format_value(target, info);
  if (auto text = std::get_if<std::string*>(&target)) value = **text;
  if (info.default_text != nullptr) value = info.default_text;
  const bool action = std::holds_alternative<bool*>(target) && !info.replay;
  return action ? out : concat(out, " (default: ", value.empty() ? "none" : value, ")");
}

// CLI11 2.1 breaks no lines, and shows --no-nesterov{false} and {true,false,…} beside --nesterov.
class HelpFormatter : public CLI::Formatter {
  std::string make_option_name(const CLI::Option* option, bool) const override {
    return option->get_name();
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return (option->get_option_text().empty() ? "" : " ") + option->get_option_text();
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string out;
    size_t column = 0;
    for (const std::string& word : CLI::detail::split(option->get_description(), ' ')) {
      const bool breaks = kHelpColumn + column + 1 + word.size() > kHelpWidth;
      if (column > 0) out += breaks ? '\n' : ' ';
      column = (breaks ? 0 : column + 1) + word.size();
      out += word;
    }
    return out;
  }
};

std::string environment_name(const std::string& flag) {
  std::string out = "HEDDLE_";
  for (char c : flag) out += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return out;
}

// HEDDLE_BATCH_SIZE -> batch-size.
std::string flag_name(const std::string& environment) {
  std::string out;
  for (char c : environment.substr(7)) out += c == '_' ? '-' : static_cast<char>(std::tolower(c));
  return out;
}

// CLI11 2.1 cuts a line at '#' inside quotes too, leaves escapes as they are, and lets an open
// quote or bracket pass. So its reader gets each line without comments, and with kString for every
// string; the strings, decoded, go to `strings`. TOML escapes what JSON escapes.
constexpr char kString = '\1';

std::string take_strings(const std::string& line, Strings& strings, const std::string& where) {
  std::string out;
  for (size_t i = 0; i < line.size() && line[i] != '#'; ++i) {
    const char c = line[i];
    check(c == '\t' || c == '\r' || static_cast<unsigned char>(c) >= ' ', where,
          ": expected text, found a control character");
    if (c != '"' && c != '\'') {
      out += c;
      continue;
    }
    const size_t begin = i++;
    while (i < line.size() && line[i] != c) i += c == '"' && line[i] == '\\' ? 2 : 1;
    check(i < line.size(), where, ": expected a closing quote, found '",
          printable(line.substr(begin)), "'");
    const std::string literal = line.substr(begin + 1, i - begin - 1);
    const auto decoded = nlohmann::json::parse(concat('"', literal, '"'), nullptr, false);
    check(c == '\'' || decoded.is_string(), where,
          ": expected a string with TOML's escapes, found '", printable(literal), "'");
    strings.push_back(c == '"' ? decoded.get<std::string>() : literal);
    out += kString;
  }
  return CLI::detail::trim(out);
}

struct ConfigLine {
  std::string key;
  Strings values;
};

// One line of flat TOML; no key for a blank one.
ConfigLine read_config_line(const std::string& line, const std::string& where) {
  Strings strings;
  const std::string bare = take_strings(line, strings, where);
  if (bare.empty()) return {};
  const size_t equals = bare.find('=');
  const std::string text = printable(CLI::detail::trim_copy(line), 24);
  check(equals != std::string::npos && equals > 0 && bare.find(kString) > equals, where,
        ": expected a key and '=' (there are no tables here), found '", text, "'");
  const std::string value = CLI::detail::trim_copy(bare.substr(equals + 1));
  check(!value.empty(), where, ": expected a value behind '='");
  const bool array = value.front() == '[';
  check(array == (value.back() == ']'), where,
        ": expected an array in brackets on one line, found '", text, "'");
  std::istringstream in(bare);
  const std::vector<CLI::ConfigItem> items = CLI::ConfigTOML().from_config(in);
  check(items.size() == 1, where, ": expected a key, '=' and a value, found '", text, "'");
  ConfigLine out = {items[0].fullname(), items[0].inputs};
  check(array || out.values.size() == 1, where, ": ", out.key,
        ": expected one value and the end of the line, found '", text, "'");
  size_t next = 0;
  for (std::string& item : out.values) {
    const bool is_string = item == std::string(1, kString);
    check(is_string || item.find(kString) == std::string::npos, where, ": ", out.key,
          ": expected a comma or the end of the line behind a string");
    if (is_string) item = strings[next++];
  }
  return out;
}

}  // namespace

FlagTable::FlagTable(const std::string& program, const std::string& summary)
    : app_(std::make_unique<CLI::App>(summary + "\n", program)) {
  app_->set_help_flag();
  app_->allow_extras();  // parse() answers them with the nearest name
  app_->formatter(std::make_shared<HelpFormatter>());
  app_->get_formatter()->column_width(kHelpColumn);
}

FlagTable::FlagTable(FlagTable&&) noexcept = default;
FlagTable::~FlagTable() = default;

void FlagTable::add(const std::string& name, FlagTarget target, FlagInfo info) {
  auto* option =
      std::visit([&](auto* value) { return add_option(*app_, name, value, info); }, target);
  option->group(group_)->description(describe_flag(target, info))->option_text(info.value);
  if (!is_list(target)) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  option->type_name("value");  // in "1 required value missing"
  flags_.push_back({name, target, std::move(info), option});
}

const FlagTable::Flag* FlagTable::find(const std::string& name) const {
  const auto same = [&](const Flag& flag) { return flag.name == name; };
  const auto found = std::find_if(flags_.begin(), flags_.end(), same);
  return found == flags_.end() ? nullptr : &*found;
}

FlagSource FlagTable::source(const std::string& name) const {
  const Flag* flag = find(name);
  if (flag == nullptr) throw Error("no flag is called " + name);
  return flag->source;
}

std::string FlagTable::nearest(const std::string& name) const {
  Strings known;
  for (const Flag& flag : flags_) known.push_back(flag.name);
  return nearest_name(name, known);
}

// Sets the variables that the arguments name, and no others.
void FlagTable::apply(const Strings& arguments, FlagSource source) {
  Strings reversed;  // as CLI11 takes them
  for (const std::string& argument : arguments) {
    const bool empty = argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    reversed.push_back(empty ? argument.substr(0, argument.size() - 1) : argument);
    if (!empty) continue;
    // CLI11 would read "--name=" as a flag that is set, or take the next argument for its value.
    const Flag* flag = find(reversed.back().substr(2));
    if (flag != nullptr && std::holds_alternative<bool*>(flag->target)) {
      throw CLI::ValidationError(reversed.back(), "expected true or false, found ''");
    }
    reversed.emplace_back();
  }
  std::reverse(reversed.begin(), reversed.end());
  app_->parse(reversed);
  for (Flag& flag : flags_) {
    if (flag.option->count() > 0) flag.source = source;
  }
}

// A value that stands in a file or a variable; errors begin with `where` instead of the flag.
void FlagTable::set(const Flag& flag, const Strings& values, FlagSource source,
                    const std::string& where) {
  const std::string name = "--" + flag.name;
  check(is_list(flag.target) || values.size() == 1, where, ": expected one value, found ",
        values.size());
  try {
    const bool is_bool = std::holds_alternative<bool*>(flag.target);
    Strings arguments = {is_bool ? name + "=" + values[0] : name};
    if (!is_bool) arguments.insert(arguments.end(), values.begin(), values.end());
    apply(arguments, source);
    const Strings rest = app_->remaining();
    check(rest.empty(), where, ": expected values, found '", rest.empty() ? "" : rest[0], "'");
  } catch (const CLI::ParseError& error) {
    const std::string said = error.what();
    throw InputError(where + (said.starts_with(name) ? said.substr(name.size()) : ": " + said));
  }
}

void FlagTable::read_config(const std::string& path) {
  std::error_code ignored;
  check(!std::filesystem::is_directory(path, ignored), path, ": expected a file, found a folder");
  std::ifstream file(path, std::ios::binary);  // may be a pipe
  check(file.good(), path, ": ", std::strerror(errno));
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  check(text.size() <= kMaxConfigBytes, path, ": expected a configuration of at most 1 MiB");
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string place = concat(path, ":", ++number);
    const ConfigLine entry = read_config_line(line, place);
    if (entry.key.empty()) continue;
    const std::string where = concat(place, ": ", entry.key);
    const Flag* flag = find(entry.key);
    check(flag != nullptr && flag->info.replay, where, " is not a known key; the nearest is ",
          nearest(entry.key));
    check(flag->source == FlagSource::default_value, where, ": given twice");
    set(*flag, entry.values, FlagSource::config, where);
  }
}

void FlagTable::read_environment(const Strings& environment) {
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (!entry.starts_with("HEDDLE_") || equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const Flag* flag = find(flag_name(name));
    if (flag != nullptr && environment_name(flag->name) == name) {
      if (flag->info.environment)
        set(*flag, {entry.substr(equals + 1)}, FlagSource::environment, name);
      continue;
    }
    // Other names belong to other tools; only what looks like a slip is worth a remark.
    const std::string close = environment_name(nearest(flag_name(name)));
    if (edit_distance(name, close) <= 2) {
      warnings_.push_back(concat(name, " is not known and has no effect; the nearest is ", close));
    }
  }
}

void FlagTable::parse(const Strings& arguments, const Strings& environment) {
  // CLI11 itself lets a file win over the environment. Here each source is parsed on its own, the
  // weakest first, so that the next one overwrites its values and every error knows its source. The
  // first pass only finds --config wherever it stands.
  auto read_arguments = [&] {
    try {
      apply(arguments, FlagSource::flag);
    } catch (const CLI::ParseError& error) {
      throw InputError(error.what());
    }
    for (const std::string& extra : app_->remaining()) {
      const std::string spelled = extra.substr(0, extra.find('='));
      check(spelled.starts_with("--") && spelled.size() > 2, "expected a flag, found '", extra,
            "'");
      throw InputError(
          concat(spelled, " is not a known flag; the nearest is --", nearest(spelled.substr(2))));
    }
  };
  read_arguments();
  const Flag* config = find("config");
  std::string path = config != nullptr ? *std::get<std::string*>(config->target) : "";
  if (path.empty() && config != nullptr) {
    for (const std::string& entry : environment) {
      if (entry.starts_with("HEDDLE_CONFIG=")) path = entry.substr(entry.find('=') + 1);
    }
  }
  for (Flag& flag : flags_) flag.source = FlagSource::default_value;
  if (!path.empty()) read_config(path);
  read_environment(environment);
  read_arguments();
}

void FlagTable::check_needs(const std::vector<Need>& needs) {
  for (const Need& need : needs) {
    if (need.met || source(need.flag) != FlagSource::flag) continue;
    const std::string text = concat("--", need.flag, " ", need.words);
    check(need.harmless, text);
    warnings_.push_back(text + ": it has no effect");
  }
}

void FlagTable::suggest(const std::string& name, const std::string& value,
                        const std::string& where) {
  if (!given(name)) set(*find(name), {value}, FlagSource::config, where);
}

std::string FlagTable::help() const { return app_->help(); }

// CLI11's config_to_str knows neither remarks nor escapes, nor what stands for "not set".
std::string FlagTable::dump(const std::string& rule_note) const {
  std::string out;
  for (const Flag& flag : flags_) {
    const std::string value = format_value(flag.target, flag.info);
    if (!flag.info.replay || value.empty()) continue;
    out += concat(flag.name, " = ", value);
    if (flag.source == FlagSource::default_value) {
      out += flag.info.default_text != nullptr ? "  # " + rule_note : "  # default";
    }
    out += '\n';
  }
  return out;
}

}  // namespace heddle
