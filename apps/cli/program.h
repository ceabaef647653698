// The frame of a program: main's only try block, the questions that need no run, and stdout.
//
//   int main(int argc, char** argv) { return heddle::run_program("train_lm", argc, argv, run); }
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/cli/common_options.h"

namespace heddle {

using Arguments = std::vector<std::string>;

// Calls run(arguments, environment), with the program's own name as the first argument, and returns
// its result. An exception becomes one line on stderr and the documented exit code. Before the
// call, opens /dev/null for standard streams that are closed, and limits how long OpenMP's waiting
// threads spin, unless GOMP_SPINCOUNT or OMP_WAIT_POLICY is set; for the limit it executes the
// program again, in the same process.
int run_program(const char* name, int argc, char** argv,
                const std::function<int(const Arguments&, const Arguments&)>& run);

// Writes to stdout and flushes it. Throws Error if that fails, as on a full disk: stdout is data.
void print(const std::string& text);

// Returns the text of --version: this program, its build and its libraries.
std::string version_text();

// Answers --help, --man, --version and --list. Returns whether one of them was given.
bool answer_questions(const CommonOptions& o, const FlagTable& flags, const std::string& choices);

// Prints flags.warnings() on stderr, and a warning for --evaluate without weights; not with
// --quiet.
void print_warnings(const CommonOptions& o, const FlagTable& flags);

}  // namespace heddle
