// A job on two devices: the CPU, and that of HEDDLE_TEST_DEVICE. Without a GPU the CPU is compared
// with itself on one thread, which shows no more than that the tests run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/tape.h"
#include "core/tensor.h"

namespace heddle {

using Results = std::vector<std::vector<float>>;  // in logical order
using Network = std::function<Var(Tape&, const Var&)>;

// Returns options for the device that is compared with the CPU.
ContextOptions subject(bool tune = false);

// Runs the job in the Context of each device, prints "compare operation what type distance bound"
// for gpu-report.md, and checks that the distance is within the tolerance of the operation.
void compare(const std::string& operation, const std::string& what, DType dtype,
             const std::function<Results()>& job, const ContextOptions& options = subject());

// Returns the output of a layer, and the gradients of its input and of all parameters.
Results run_layer(ParameterStore& store, const Tensor& input, const Network& network,
                  const TapeOptions& options = {});

// Returns the types that oneDNN supports on this CPU, the reference for a GPU's results.
std::vector<DType> library_types();

}  // namespace heddle
