// Completion of flags and their values in a shell, from the rows of the table.
#include <string>

#include "apps/cli/flags.h"
#include "apps/cli/format.h"
#include "core/error.h"

namespace heddle {
namespace {

// Returns the words that set a flag; questions have no opposite.
std::vector<std::string> spellings(const Flag& flag) {
  std::vector<std::string> out = {"--" + flag.name};
  if (flag.is_switch() && flag.saved) out.push_back("--no-" + flag.name);
  return out;
}

// Returns the flag as a specification of zsh's _arguments: '--arch=[network]:NAME:(resnet20 cnn)'.
std::string zsh_argument(const Flag& flag) {
  std::string help, out;
  for (const char c : flag.help)
    help += c == '\''                           ? "'\\''"
            : c == '[' || c == ']' || c == '\\' ? std::string{'\\', c}
                                                : std::string{c};
  std::string value;
  for (const char c : flag.value) value += c == ':' ? "\\:" : std::string{c};
  std::string action = flag.choices.empty() ? "_files" : "(" + join(flag.choices, " ") + ")";
  if (!std::holds_alternative<std::string*>(flag.target) && flag.choices.empty()) action = " ";
  for (const std::string& name : spellings(flag))
    out += concat(" \\\n  '", name, flag.is_switch() ? "" : "=", "[", help, "]",
                  flag.is_switch() ? "" : concat(":", value, ":", action), "'");
  return out;
}

}  // namespace

std::string FlagTable::completion(const std::string& shell) const {
  const std::string name = "_" + program_;
  if (shell == "zsh") {
    std::string out = concat("#compdef ", program_, "\n", name, "() {\n_arguments");
    for (const Flag& flag : flags_) out += zsh_argument(flag);
    return concat(out, "\n}\nif [[ $funcstack[1] == ", name, " ]]; then ", name,
                  " \"$@\"; else compdef ", name, " ", program_, "; fi\n");
  }
  std::vector<std::string> all;
  std::string values, plain;
  for (const Flag& flag : flags_) {
    for (const std::string& spelling : spellings(flag)) all.push_back(spelling);
    const auto& words = flag.choices.empty() ? flag.examples : flag.choices;
    if (!words.empty())
      values += concat("    --", flag.name, ") reply='", join(words, " "), "' ;;\n");
    else if (!flag.is_switch())
      plain += concat(plain.empty() ? "    " : " | ", "--", flag.name);
  }
  // Bash takes '=' for a word. No reply to a flag with a value means names of files.
  return concat(name, "() {\n",
                "  local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD-1]} reply=\n"
                "  [ \"$word\" != = ] || word=\n"
                "  [ \"$flag\" != = ] || flag=${COMP_WORDS[COMP_CWORD-2]}\n"
                "  case $flag in\n",
                values, plain, ") ;;\n    *) reply='", join(all, " "),
                "' ;;\n  esac\n  mapfile -t COMPREPLY < <(compgen -W \"$reply\" -- \"$word\")\n}\n"
                "complete -o default -F ",
                name, " ", program_, "\n");
}

}  // namespace heddle
