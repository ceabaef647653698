// A table of flags. Each row binds a GNU long name to a variable, whose value at that moment is the
// default. Precedence: flag, environment HEDDLE_*, configuration file (TOML), default. An unknown
// name is an error that gives the nearest known one; every error is an InputError of one line that
// begins with the flag, the variable, or file, line and key.
//
//   FlagTable flags("train_resnet", "Trains a ResNet.");
//   flags.add("batch-size", &batch, "N", "images per step", at_least(1), at_most(4096));
//   flags.parse(arguments, environment);
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace heddle {

using FlagTarget = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                                std::vector<std::string>*>;

// Where a value came from, weakest first.
enum class FlagSource { default_value, config, environment, flag };

// One row of the table.
struct Flag {
  std::string name;
  FlagTarget target;
  std::string value;              // how --help names the value; empty for a switch
  std::string help;               // understandable without any other text
  std::string group;              // the title of its group in --help
  std::string default_text = {};  // the default as --help shows it
  double min = 0, max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  // whether the bound itself is excluded
  std::vector<std::string> choices = {};      // "": not given, a rule decides
  std::vector<std::string> examples = {};     // of many more values, for completion
  bool by_rule = false;                       // the default depends on other flags
  bool saved = true;                          // part of config.toml
  bool in_environment = true;                 // HEDDLE_<NAME> sets it
  FlagSource source = FlagSource::default_value;

  // Changes the row by a rule, as FlagTable::add() does.
  template <class Rule>
  void apply(const Rule& rule) {
    rule(*this);
  }
  bool is_switch() const { return std::holds_alternative<bool*>(target); }
  bool is_list() const { return target.index() >= 4; }
};

// Rules that may follow the help text in FlagTable::add(), in any order.
inline auto at_least(double x) {
  return [x](Flag& flag) { flag.min = x; };
}
inline auto at_most(double x) {
  return [x](Flag& flag) { flag.max = x; };
}
inline auto above(double x) {
  return [x](Flag& flag) { flag.min = x, flag.above_min = true; };
}
inline auto below(double x) {
  return [x](Flag& flag) { flag.max = x, flag.below_max = true; };
}
inline auto one_of(std::vector<std::string> names) {
  return [names = std::move(names)](Flag& flag) { flag.choices = names; };
}
inline auto such_as(std::vector<std::string> names) {
  return [names = std::move(names)](Flag& flag) { flag.examples = names; };
}
// A rule of the program decides when the flag is not given; --help shows this description of it.
inline auto otherwise(std::string rule) {
  return [rule = std::move(rule)](Flag& flag) { flag.default_text = rule, flag.by_rule = true; };
}
inline void not_saved(Flag& flag) { flag.saved = false; }
inline void not_in_environment(Flag& flag) { flag.in_environment = false; }

class FlagTable {
 public:
  // The first paragraph of `summary`, one line, is wrapped, and its first sentence is the name line
  // of the manual page. The text after an empty line is printed unchanged.
  FlagTable(std::string program, std::string summary)
      : program_(std::move(program)), summary_(std::move(summary)) {}

  // Begins a titled group in --help, or continues one.
  void group(const char* title) { group_ = title; }
  // Adds a row; a bool is a switch, --name and --no-name, whose `value` is "".
  template <class... Rules>
  void add(const char* name, FlagTarget target, const char* value, const std::string& help,
           const Rules&... rules) {
    Flag& flag = append(name, target, value, help);
    (rules(flag), ...);
  }
  // Collects the arguments that are not flags into *words; without this call they are an error.
  void collect_words(std::vector<std::string>* words) { words_ = words; }
  // Returns the row of that name, to change it before parse().
  Flag& at(const std::string& name) { return flags_.at(index(name)); }

  // Sets the bound variables. `environment` holds NAME=value; only HEDDLE_* is read. The file that
  // --config names, where the table has that flag, is read first.
  void parse(const std::vector<std::string>& arguments,
             const std::vector<std::string>& environment);

  // Sets a flag that is not given; from then on it counts as given by a file. Errors begin with
  // `where`.
  void suggest(const std::string& name, const std::string& value, const std::string& where);

  bool given(const std::string& name) const { return source(name) != FlagSource::default_value; }
  FlagSource source(const std::string& name) const { return flags_.at(index(name)).source; }

  // A flag that has an effect only under a condition, and the words that follow its name in the
  // error if the condition is not met: "needs --compress".
  struct Need {
    const char* flag;
    bool met;
    std::string words;
    bool harmless = false;
  };
  // Throws InputError for a flag on the command line that has no effect; a harmless one, such as a
  // GPU flag on a CPU, only adds a warning. A file and the environment may set such flags for other
  // runs. A flag that the table lacks is ignored: programs share lists of needs.
  void check_needs(const std::vector<Need>& needs);

  // Returns remarks on ignored input, such as an unknown HEDDLE_* variable.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Returns the text of --help, at most 100 columns wide.
  std::string help() const;
  // Returns the same as a manual page in troff, section 1.
  std::string manual() const;
  // Returns a script by which bash or zsh completes the flags and their choices.
  std::string completion(const std::string& shell) const;
  // Returns all saved flags as TOML. A number outside its range and an empty text mean "not set"
  // and are left out. A value that was not given is marked "# default", or with `rule_note` if a
  // rule set it.
  std::string dump(const std::string& rule_note) const;

 private:
  Flag& append(const char* name, FlagTarget target, const char* value, const std::string& help);
  size_t index(const std::string& name) const;  // the number of rows where there is none
  std::string nearest(const std::string& name) const;
  static void set(Flag& flag, const std::vector<std::string>& values, FlagSource source,
                  const std::string& where);
  void read_arguments(const std::vector<std::string>& arguments);
  void read_environment(const std::vector<std::string>& environment);
  void read_config(const std::string& path);

  std::string program_, summary_, group_;
  std::vector<Flag> flags_;
  std::vector<std::string>* words_ = nullptr;
  std::vector<std::string> warnings_;
};

}  // namespace heddle
