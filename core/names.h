// Names that somebody typed: which known one was meant.
#pragma once

#include <string>
#include <vector>

namespace heddle {

// Letters to insert, delete, replace or swap with their neighbour to turn one word into the other.
int edit_distance(const std::string& a, const std::string& b);

// The known name that is closest; the beginning of a name is closer than its length says.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace heddle
