// Which options cannot go together, where only the session's parts can tell.
//
//   resolve(o, flags, kind);
//   check_options(o);
#pragma once

#include "apps/cli/common_options.h"

namespace heddle {

// Throws InputError for options of the exchange that contradict each other.
void check_options(const CommonOptions& o);

}  // namespace heddle
