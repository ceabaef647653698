# Embeds files in the program. The assembler reads their bytes (.incbin), since string literals of
# this size are not guaranteed to work. If one of the files changes, all are assembled again (ccache
# leaves sources with .incbin alone).

# heddle_embed_files(OUTPUT FUNCTION NAMES… PATHS…): writes OUTPUT, a source file that defines
# heddle::FUNCTION(), a list of EmbeddedFile (data/text.h), with a name for each path.
function(heddle_embed_files output function)
  cmake_parse_arguments(ARG "" "" "NAMES;PATHS" ${ARGN})
  set(names "")
  set(bytes "")
  set(sizes "")
  set(number 0)
  foreach(name path IN ZIP_LISTS ARG_NAMES ARG_PATHS)
    string(APPEND names "    \"${name}\",\n")
    string(APPEND bytes ".L${function}_${number}: .incbin \"${path}\"\n")
    math(EXPR next "${number} + 1")
    string(APPEND sizes ".quad .L${function}_${next} - .L${function}_${number}\n")
    set(number ${next})
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
#include "data/text.h"

asm(R"(
.pushsection .rodata, "a"
.global heddle_@function@_bytes
.hidden heddle_@function@_bytes
heddle_@function@_bytes:
@bytes@.L@function@_@number@:
.balign 8
.global heddle_@function@_sizes
.hidden heddle_@function@_sizes
heddle_@function@_sizes:
@sizes@.popsection
)");

extern "C" const char heddle_@function@_bytes[] __attribute__((visibility("hidden")));
extern "C" const uint64_t heddle_@function@_sizes[] __attribute__((visibility("hidden")));

namespace heddle {

const std::vector<EmbeddedFile>& @function@();

const std::vector<EmbeddedFile>& @function@() {
  static const std::vector<EmbeddedFile> files = [] {
    constexpr const char* names[] = {
@names@    };
    std::vector<EmbeddedFile> list;
    const char* text = heddle_@function@_bytes;
    for (size_t i = 0; i < @number@; text += heddle_@function@_sizes[i++])
      list.push_back({names[i], {text, heddle_@function@_sizes[i]}});
    return list;
  }();
  return files;
}

}  // namespace heddle
]])
  # Kept out of unity builds, which would lose track of the files that this source depends on. The
  # list of paths alone may be longer than the 64 KiB that compilers must accept as a string.
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${ARG_PATHS}"
    SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS -Wno-overlength-strings)
endfunction()

# heddle_embed_sources(OUTPUT FOLDER…): writes OUTPUT, which defines embedded_sources(): the *.h,
# *.cpp and *.cu files in these folders, except those in subfolders of tests/.
function(heddle_embed_sources output)
  set(patterns "")
  foreach(folder ${ARGN})
    foreach(ending h cpp cu)
      list(APPEND patterns ${PROJECT_SOURCE_DIR}/${folder}/*.${ending})
    endforeach()
  endforeach()
  file(GLOB_RECURSE files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${patterns})
  list(FILTER files EXCLUDE REGEX "^tests/.*/")
  list(FILTER files EXCLUDE REGEX "/\\.")  # editors' locks and backups
  list(SORT files)
  set(paths ${files})
  list(TRANSFORM paths PREPEND ${PROJECT_SOURCE_DIR}/)
  heddle_embed_files(${output} embedded_sources NAMES ${files} PATHS ${paths})
endfunction()
