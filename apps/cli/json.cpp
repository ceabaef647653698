#include "apps/cli/json.h"

namespace heddle {

std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

void check_json_depth(std::string_view text, const std::string& where) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') ++i;  // an escaped quote does not end the string
    if (quoted) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    check(depth <= kMaxJsonDepth, where, ": expected JSON of at most ", kMaxJsonDepth,
          " levels, found more at offset ", i);
  }
}

}  // namespace heddle
