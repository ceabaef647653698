// The control words of a run (LearnerOptimizer::set_control): numbers of this rank that travel with
// the exchange of every step and are summed over the ranks.
#pragma once

#include <cstdint>

namespace heddle {

// stop: a signal has asked this rank to end the run; written, failed: whether this rank's files of
// the checkpoint that is being saved are complete, or could not be written; show: the first rank
// requests the losses of all.
enum class ControlWord : uint8_t { stop, written, failed, show };

}  // namespace heddle
