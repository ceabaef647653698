// A table of flags, over CLI11. Each entry binds a GNU long name to a variable; the variable's
// value at that moment is the default. Precedence: flag, environment HEDDLE_*, configuration file,
// default. Unknown names are errors that give the nearest known one; every error is an InputError
// of one line that begins with the flag, the variable, or file, line and key.
//
//   FlagTable flags("train_resnet", "trains a ResNet");
//   flags.add("batch-size", &batch, {.value = "N", .help = "images per step", .min = 1});
//   flags.parse(arguments, environment);
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace heddle {

using FlagTarget = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                                std::vector<std::string>*>;

struct FlagInfo {
  const char* value = "";  // how --help names the value
  const char* help = "";
  double min = 0, max = std::numeric_limits<double>::infinity();  // what a given number may be
  bool min_open = false, max_open = false;                        // the bound itself is excluded
  std::vector<std::string> choices = {};
  const char* default_text = nullptr;  // what --help shows where the default is a rule
  bool replay = true;                  // part of a dumped configuration
  bool environment = true;             // HEDDLE_<NAME> sets it
};

// Where a value came from, weakest first.
enum class FlagSource { default_value, config, environment, flag };

class FlagTable {
 public:
  FlagTable(const std::string& program, const std::string& summary);
  FlagTable(FlagTable&&) noexcept;
  ~FlagTable();

  // Begins a titled group in --help.
  void group(const char* title) { group_ = title; }
  void add(const std::string& name, FlagTarget target, FlagInfo info);

  // Sets the bound variables. `environment` holds NAME=value; names other than HEDDLE_* are passed
  // over. --config FILE must be a flag of the table if a file is to be read.
  void parse(const std::vector<std::string>& arguments,
             const std::vector<std::string>& environment);

  // Sets a flag that nobody gave, and from then on it counts as given by a file.
  void suggest(const std::string& name, const std::string& value, const std::string& where);

  bool given(const std::string& name) const { return source(name) != FlagSource::default_value; }
  FlagSource source(const std::string& name) const;
  // A flag that has an effect only under a condition, and the condition in words that go behind the
  // flag's name: "needs --compress".
  struct Need {
    const char* flag;
    bool met;
    std::string words;
    bool harmless = false;
  };
  // Throws InputError for a flag of the command line that has no effect; of a harmless one, such as
  // a GPU's on a CPU, it leaves a warning. A file and the environment may hold them for other runs.
  void check_needs(const std::vector<Need>& needs);

  // Remarks on what was passed over, such as an unknown HEDDLE_* variable.
  const std::vector<std::string>& warnings() const { return warnings_; }

  std::string help() const;
  // The same as a manual page in troff, section 1.
  std::string manual() const;
  // All replayable flags as TOML; a number outside its range or an empty text means "not set" and
  // is left out. Behind a value that nobody gave stands "default", or `rule_note` for those with a
  // default_text.
  std::string dump(const std::string& rule_note) const;

 private:
  struct Flag {
    std::string name;
    FlagTarget target;
    FlagInfo info;
    CLI::Option* option;
    FlagSource source = FlagSource::default_value;
  };

  const Flag* find(const std::string& name) const;
  std::string nearest(const std::string& name) const;
  void set(const Flag& flag, const std::vector<std::string>& values, FlagSource source,
           const std::string& where);
  void apply(const std::vector<std::string>& arguments, FlagSource source);
  void read_config(const std::string& path);
  void read_environment(const std::vector<std::string>& environment);

  std::unique_ptr<CLI::App> app_;
  std::string group_;
  std::vector<Flag> flags_;
  std::vector<std::string> warnings_;
};

}  // namespace heddle
