// Facts about this process and its build.
#pragma once

#include <cstdint>
#include <string>

namespace heddle {

// Returns how this program was built: "GNU 12.2.0, Release, git 0123abc".
std::string describe_build();
// Returns the seconds since this program began, which may be less than the age of the process:
// ./run builds first, in the same process.
double seconds_since_process_start();
// Returns the peak resident memory of this process, in bytes.
int64_t peak_rss_bytes();
// Returns the value of the first "key : value" in a file such as /proc/cpuinfo; "" if none.
std::string proc_value(const char* file, const std::string& key);

}  // namespace heddle
