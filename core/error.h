// Errors say what was expected, what was found, and where. main() catches them in one place, prints
// one line and returns the exit code.
//
//   check(n > 0, "batch size: expected a positive number, found ", n);
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace heddle {

// The exit codes of the programs (README.md).
enum class ExitCode { ok = 0, runtime = 1, usage = 2, diverged = 3, stopped = 75 };

// A failure of the machine or the program: a full disk, no memory, a library call. Exit code 1.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, ExitCode code = ExitCode::runtime)
      : std::runtime_error(what), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

// The user's input is wrong: a flag, a file, a shape. Exit code 2.
class InputError : public Error {
 public:
  explicit InputError(const std::string& what) : Error(what, ExitCode::usage) {}
};

// Joins its arguments into one string with operator<<.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws InputError with the joined parts unless `ok`.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw InputError(concat(parts...));
}

}  // namespace heddle
