#include "apps/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "apps/toml.h"
#include "core/error.h"

namespace heddle {

namespace {

constexpr size_t kHelpColumn = 30, kHelpWidth = 100;

template <class T>
bool parse_number(const std::string& text, T& out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end && !text.empty();
}

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

int64_t read_integer(const std::string& text, const FlagInfo& info, const std::string& where) {
  int64_t x = 0;
  check(parse_number(text, x) && in_range(static_cast<double>(x), info), where, ": expected ",
        describe_range("an integer", info), ", found '", text, "'");
  return x;
}

double read_real(const std::string& text, const FlagInfo& info, const std::string& where) {
  double x = 0;
  check(parse_number(text, x) && in_range(x, info), where, ": expected ",
        describe_range("a number", info), ", found '", text, "'");
  return x;
}

bool read_boolean(const std::string& text, const std::string& where) {
  if (text == "true" || text == "1" || text == "on" || text == "yes") return true;
  check(text == "false" || text == "0" || text == "off" || text == "no", where,
        ": expected true or false, found '", text, "'");
  return false;
}

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : separator) + part;
  return out;
}

void read_text(std::string& out, const std::string& text, const FlagInfo& info,
               const std::string& where) {
  const auto& choices = info.choices;
  check(choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end(), where,
        ": expected one of ", join(choices, ", "), "; found '", text, "'");
  out = text;
}

bool is_list(const FlagTarget& target) {
  return std::holds_alternative<std::vector<int64_t>*>(target) ||
         std::holds_alternative<std::vector<std::string>*>(target);
}

// A flag's value as TOML; "" when it is not set.
std::string format_value(const FlagTarget& target, const FlagInfo& info) {
  if (auto p = std::get_if<bool*>(&target)) return **p ? "true" : "false";
  if (auto p = std::get_if<int64_t*>(&target)) {
    return in_range(static_cast<double>(**p), info) ? std::to_string(**p) : "";
  }
  if (auto p = std::get_if<double*>(&target)) return in_range(**p, info) ? format_number(**p) : "";
  if (auto p = std::get_if<std::string*>(&target)) return (*p)->empty() ? "" : quote_toml(**p);
  std::vector<std::string> parts;
  if (auto p = std::get_if<std::vector<int64_t>*>(&target)) {
    for (int64_t x : **p) parts.push_back(std::to_string(x));
  } else {
    for (const auto& x : *std::get<std::vector<std::string>*>(target))
      parts.push_back(quote_toml(x));
  }
  return parts.empty() ? "" : concat("[", join(parts, ", "), "]");
}

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

// Appends words to `out`, breaking lines before kHelpWidth and indenting them to kHelpColumn.
void append_wrapped(std::string& out, size_t column, const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (column + 1 + end - begin > kHelpWidth) {
      out += '\n' + std::string(kHelpColumn - 1, ' ');
      column = kHelpColumn - 1;
    }
    out += ' ' + text.substr(begin, end - begin);
    column += 1 + end - begin;
    begin = end + 1;
  }
  out += '\n';
}

}  // namespace

int edit_distance(const std::string& a, const std::string& b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before(columns), last(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last.back();
}

std::string format_number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

void FlagTable::add(const std::string& name, FlagTarget target, FlagInfo info) {
  const auto* text = std::get_if<std::string*>(&target);
  const std::string value = text != nullptr ? **text : format_value(target, info);
  flags_.push_back({name, group_, target, std::move(info), value, FlagSource::default_value});
}

FlagTable::Flag* FlagTable::find(const std::string& name) {
  for (Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

FlagSource FlagTable::source(const std::string& name) const {
  const Flag* flag = const_cast<FlagTable*>(this)->find(name);
  if (flag == nullptr) throw Error("no flag is called " + name);
  return flag->source;
}

std::string FlagTable::nearest(const std::string& name) const {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const Flag& flag : flags_) {
    // The beginning of a name is closer than its length says.
    const bool prefix = name.size() >= 3 && flag.name.starts_with(name);
    const int distance = prefix ? 1 : edit_distance(name, flag.name);
    if (distance < best_distance) {
      best = flag.name;
      best_distance = distance;
    }
  }
  return best;
}

void FlagTable::assign(Flag& flag, const std::vector<std::string>& values, FlagSource source,
                       const std::string& where) {
  flag.source = source;
  if (auto p = std::get_if<std::vector<std::string>*>(&flag.target)) {
    **p = values;
    return;
  }
  if (auto p = std::get_if<std::vector<int64_t>*>(&flag.target)) {
    (*p)->clear();
    for (const std::string& value : values) {
      for (size_t begin = 0; begin <= value.size();) {
        const size_t end = std::min(value.find(',', begin), value.size());
        (*p)->push_back(read_integer(value.substr(begin, end - begin), flag.info, where));
        begin = end + 1;
      }
    }
    return;
  }
  check(values.size() == 1, where, ": expected one value, found ", values.size());
  const std::string& value = values[0];
  if (auto p = std::get_if<bool*>(&flag.target)) **p = read_boolean(value, where);
  if (auto p = std::get_if<int64_t*>(&flag.target)) **p = read_integer(value, flag.info, where);
  if (auto p = std::get_if<double*>(&flag.target)) **p = read_real(value, flag.info, where);
  if (auto p = std::get_if<std::string*>(&flag.target)) read_text(**p, value, flag.info, where);
}

void FlagTable::read_config(const std::string& path) {
  for (const TomlEntry& entry : read_toml(path)) {
    const std::string where = concat(path, ":", entry.line, ": ", entry.key);
    Flag* flag = find(entry.key);
    check(flag != nullptr && flag->info.replay, where, " is not a known key; the nearest is ",
          nearest(entry.key));
    check(flag->source == FlagSource::default_value, where, ": given twice");
    assign(*flag, entry.values, FlagSource::config, where);
  }
}

void FlagTable::read_environment(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (!entry.starts_with("HEDDLE_") || equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const auto flag = std::find_if(flags_.begin(), flags_.end(),
                                   [&](const Flag& f) { return environment_name(f.name) == name; });
    if (flag != flags_.end()) {
      std::vector<std::string> values;
      if (equals + 1 < entry.size() || !is_list(flag->target)) {
        values.push_back(entry.substr(equals + 1));
      }
      assign(*flag, values, FlagSource::environment, name);
      continue;
    }
    // Other names belong to other tools; only what looks like a slip is worth a remark.
    const std::string close = environment_name(nearest(flag_name(name)));
    if (edit_distance(name, close) <= 2) {
      warnings_.push_back(concat(name, " is not known and has no effect; the nearest is ", close));
    }
  }
}

void FlagTable::read_arguments(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size();) {
    const std::string& argument = arguments[i++];
    check(argument.starts_with("--") && argument.size() > 2, "expected a flag, found '", argument,
          "'");
    const size_t equals = argument.find('=');
    const std::string spelled = argument.substr(0, equals), name = spelled.substr(2);
    Flag* flag = find(name);
    if (flag == nullptr && name.starts_with("no-") && equals == std::string::npos) {
      Flag* positive = find(name.substr(3));
      if (positive != nullptr && std::holds_alternative<bool*>(positive->target)) {
        assign(*positive, {"false"}, FlagSource::flag, spelled);
        continue;
      }
    }
    check(flag != nullptr, spelled, " is not a known flag; the nearest is --", nearest(name));
    std::vector<std::string> values;
    if (equals != std::string::npos)
      values.push_back(argument.substr(equals + 1));
    else if (std::holds_alternative<bool*>(flag->target))
      values.push_back("true");
    const size_t wanted = is_list(flag->target) ? arguments.size() : 1;
    while (values.size() < wanted && i < arguments.size() && !arguments[i].starts_with("--")) {
      values.push_back(arguments[i++]);
    }
    check(!values.empty(), spelled, ": expected a value",
          i < arguments.size() ? ", found the flag " + arguments[i] : "");
    assign(*flag, values, FlagSource::flag, spelled);
  }
}

void FlagTable::parse(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& environment) {
  // Twice: the first pass finds --config wherever it stands, the second one has the last word.
  read_arguments(arguments);
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
  read_arguments(arguments);
}

void FlagTable::suggest(const std::string& name, const std::string& value,
                        const std::string& where) {
  if (!given(name)) assign(*find(name), {value}, FlagSource::config, where);
}

std::string FlagTable::help() const {
  std::string out = concat("usage: ", program_, " [flags]\n\n", summary_, "\n");
  std::string group;
  for (const Flag& flag : flags_) {
    if (flag.group != group) out += concat("\n", group = flag.group, ":\n");
    std::string line = concat("  --", flag.name, *flag.info.value ? " " : "", flag.info.value);
    if (line.size() + 1 > kHelpColumn - 1) {
      out += line + '\n';
      line.clear();
    }
    line.resize(kHelpColumn - 1, ' ');
    out += line;
    std::string text = flag.info.help;
    if (!flag.info.choices.empty()) text += ": " + join(flag.info.choices, ", ");
    const std::string value = flag.default_value.empty() ? "none" : flag.default_value;
    const bool action = std::holds_alternative<bool*>(flag.target) && !flag.info.replay;
    if (flag.info.default_text)
      text += concat(" (default: ", flag.info.default_text, ")");
    else if (!action)
      text += concat(" (default: ", value, ")");
    append_wrapped(out, kHelpColumn - 1, text);
  }
  return out;
}

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
