// Describes one training step as text for --explain-step, from the notes that the code took while
// it ran (explain() in core/trace.h), in the order of events.
//
//   std::fprintf(stderr, "%s", step_story({.step = 12, …, .notes = trace.take_notes()}).c_str());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/log/step_facts.h"
#include "core/trace.h"

namespace heddle {

// One step of the first rank; apart from the notes, as in its line of metrics.jsonl.
struct ExplainedStep {
  std::string program;
  int64_t step = 0, epoch = 0;
  int learners = 1;
  StepFacts facts;
  ExchangeFacts exchange;
  int64_t bytes_dense = 0;  // of an uncompressed exchange
  std::vector<Note> notes;  // since the end of the previous step
};

// Returns the text. Called by the thread that computes: its notes are marked "main".
std::string step_story(const ExplainedStep& step);

}  // namespace heddle
