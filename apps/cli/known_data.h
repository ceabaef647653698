// Data sets that papers train on, and how to get them: no program downloads anything.
//
//   check(exists(data), "--data ", data, ": no such folder", how_to_get(data));
#pragma once

#include <string>

namespace heddle {

// Returns where the set that the path's last part names is available, with checksums, and what to
// do then, to end an error; empty for any other name. Case and punctuation do not count:
// "data/CIFAR10" is "cifar-10".
std::string how_to_get(const std::string& path);

// Returns a line with the names of the sets of images, or of texts.
std::string list_known_data(bool images);

}  // namespace heddle
