# Writes OUTPUT, a source file with what run.json says about the build; runs at every build and
# leaves the file alone if nothing has changed. Results of ./run reproduce do not count as changes.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --abbrev=12 --exclude=*
  OUTPUT_VARIABLE REVISION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
execute_process(COMMAND git -C ${SOURCE_DIR} diff --quiet HEAD -- . :!docs/results.jsonl
  ERROR_QUIET RESULT_VARIABLE changed)
if(failed)
  set(REVISION "unknown")
elseif(changed)
  string(APPEND REVISION "-dirty")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} ESCAPE_QUOTES @ONLY CONTENT [[
#include "apps/cli/build_info.h"

namespace heddle {
const char* const kBuildRevision = "@REVISION@";
const char* const kBuildType = "@TYPE@";
const char* const kBuildCompiler = "@COMPILER@";
const char* const kBuildFlags = "@FLAGS@";
}  // namespace heddle
]])
