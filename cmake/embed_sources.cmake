# heddle_embed_sources(OUTPUT FOLDER…): writes OUTPUT, a source file that defines embedded_sources()
# (data/text.h) with the *.h, *.cpp and *.cu files in these folders, without what lies deeper in tests/. The assembler takes in
# their bytes (.incbin), since string literals of this size are not promised to work.
function(heddle_embed_sources output)
  set(patterns "")
  foreach(folder ${ARGN})
    foreach(ending h cpp cu)
      list(APPEND patterns ${PROJECT_SOURCE_DIR}/${folder}/*.${ending})
    endforeach()
  endforeach()
  file(GLOB_RECURSE files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${patterns})
  list(FILTER files EXCLUDE REGEX "^tests/.*/")
  list(FILTER files EXCLUDE REGEX "/\\.")  # locks and backups of editors
  list(SORT files)
  set(names "")
  set(bytes "")
  set(sizes "")
  set(paths "")
  set(number 0)
  foreach(file ${files})
    string(APPEND names "    \"${file}\",\n")
    string(APPEND bytes ".Lheddle_source_${number}: .incbin \"${PROJECT_SOURCE_DIR}/${file}\"\n")
    math(EXPR next "${number} + 1")
    string(APPEND sizes ".quad .Lheddle_source_${next} - .Lheddle_source_${number}\n")
    set(number ${next})
    list(APPEND paths ${PROJECT_SOURCE_DIR}/${file})
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
#include "data/text.h"

asm(R"(
.pushsection .rodata, "a"
.global heddle_sources_bytes
.hidden heddle_sources_bytes
heddle_sources_bytes:
@bytes@.Lheddle_source_@number@:
.balign 8
.global heddle_sources_sizes
.hidden heddle_sources_sizes
heddle_sources_sizes:
@sizes@.popsection
)");

extern "C" const char heddle_sources_bytes[] __attribute__((visibility("hidden")));
extern "C" const uint64_t heddle_sources_sizes[] __attribute__((visibility("hidden")));

namespace heddle {

const std::vector<EmbeddedFile>& embedded_sources() {
  static const std::vector<EmbeddedFile> files = [] {
    constexpr const char* names[] = {
@names@    };
    std::vector<EmbeddedFile> list;
    const char* text = heddle_sources_bytes;
    for (size_t i = 0; i < @number@; text += heddle_sources_sizes[i++])
      list.push_back({names[i], {text, heddle_sources_sizes[i]}});
    return list;
  }();
  return files;
}

}  // namespace heddle
]])
  # By itself: what a file depends on is not asked of several that are compiled as one.
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${paths}"
    SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
