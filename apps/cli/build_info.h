// How this program was built, for run.json and --version. The values are written at each build by
// cmake/build_info.cmake.
#pragma once

namespace heddle {

extern const char* const kBuildRevision;  // git, with "-dirty" behind it for uncommitted changes
extern const char* const kBuildType;
extern const char* const kBuildCompiler;
extern const char* const kBuildFlags;

}  // namespace heddle
