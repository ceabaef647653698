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

// To be called first in main, before there are threads or files: opens /dev/null for standard
// streams that are closed, and limits how long OpenMP's threads spin while they wait, unless
// GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. For that it executes the program again, in the same
// process.
void prepare_process(char** argv);

// Prepares the process and calls run(arguments, environment), the program's own name first among
// the arguments. The only place that catches: one line on stderr, and the documented exit code.
int run_program(const char* name, int argc, char** argv,
                const std::function<int(const Arguments&, const Arguments&)>& run);

// Writes to stdout, which is data: throws Error where it cannot be written, such as to a full disk.
void print(const std::string& text);

// Returns the text of --version: this program, its build and its libraries.
std::string version_text();

// Answers --help, --man, --version and --list. Returns whether one of them was given.
bool answer_questions(const CommonOptions& o, const FlagTable& flags, const std::string& choices);

// Prints on stderr what flags.parse() ignored.
void print_warnings(const CommonOptions& o, const FlagTable& flags);

}  // namespace heddle
