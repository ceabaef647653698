// A job on two devices: the CPU, and that of HEDDLE_TEST_DEVICE. Without a GPU the CPU is compared
// with itself on one thread, which shows no more than that the tests run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace heddle {

using Results = std::vector<std::vector<float>>;  // in logical order

// Returns options for the device that is compared with the CPU.
ContextOptions subject(bool tune = false);

// Runs the job in the Context of each device, prints "compare operation what type distance bound"
// for gpu-report.md, and checks that the distance is within the tolerance of the operation.
void compare(const std::string& operation, const std::string& what, DType dtype,
             const std::function<Results()>& job, const ContextOptions& options = subject());

}  // namespace heddle
