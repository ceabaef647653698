// --explain-step: one training step told as text, from the notes that the code took while it ran
// (explain() in core/trace.h), in the order in which things happened.
//
//   std::fprintf(stderr, "%s", step_story({.step = 12, …, .notes = trace.take_notes()}).c_str());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/log/step_facts.h"
#include "core/trace.h"

namespace heddle {

// One step of the first rank. What else the text says is in that step's line of metrics.jsonl too.
struct ExplainedStep {
  std::string program;
  int64_t step = 0, epoch = 0;
  int learners = 1;
  StepFacts facts;
  ExchangeFacts exchange;
  int64_t bytes_dense = 0;
  std::vector<Note> notes;  // from the end of the step before
};

// The calling thread is the one that computes.
std::string step_story(const ExplainedStep& step);

}  // namespace heddle
