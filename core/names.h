// Suggestions for a mistyped name.
#pragma once

#include <string>
#include <vector>

namespace heddle {

// Returns how many letters to insert, delete, replace or swap with the next one to turn one word
// into the other (optimal string alignment distance).
int edit_distance(const std::string& a, const std::string& b);

// Returns the closest known name, empty if none is known; a prefix of three letters or more counts
// as distance 1.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

// Returns what to tell somebody who gave an unknown name: "the nearest is NAME", or "expected one
// of A, B" if half of its letters or more would have to change.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

}  // namespace heddle
