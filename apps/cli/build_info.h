// Constants about the build, for run.json and --version, written at each build by
// cmake/build_info.cmake.
#pragma once

namespace heddle {

extern const char* const kBuildRevision;  // git, with the suffix "-dirty" for uncommitted changes
extern const char* const kBuildType;
extern const char* const kBuildCompiler;
extern const char* const kBuildFlags;

}  // namespace heddle
