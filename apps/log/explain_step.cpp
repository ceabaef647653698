#include "apps/log/explain_step.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <thread>

#include "apps/cli/format.h"
#include "core/error.h"

namespace heddle {
namespace {

struct Stage {
  const char *name, *meaning;
};
constexpr Stage kStages[] = {
    {"final", "backward has added the last contribution: this gradient is complete"},
    {"bucket", "all gradients of a bucket are final; it waits to be exchanged"},
    {"clip", "this rank's gradient is clipped to a norm before it is sent"},
    {"compensate", "the residual, which earlier steps have not sent, is added to the gradient"},
    {"select", "which elements are sent"},
    {"exchange", "a collective: bytes of payload by kind, and what this rank sent and received"},
    {"residual", "what has not been sent is kept for the next step"},
    {"summed", "the gradient buffer holds the sum over the ranks, the same bits on all"},
    {"wait", "backward is done; the main thread waits for exchanges that it did not hide"},
    {"update",
     "new weights, once the sum is there and nothing reads the old ones any more; with "
     "--local-steps the learner's own, then the anchor's"},
};

std::string whole(double value) { return std::to_string(std::llround(value)); }

std::string figure_text(const Figure& figure) {
  std::string name = figure.name;
  switch (figure.unit) {
    case Unit::none:
      return name;
    case Unit::count:
      return whole(figure.value) + " " + name;
    case Unit::bytes:
      return name == "bytes" ? whole(figure.value) + " B" : name + " " + whole(figure.value) + " B";
    case Unit::seconds:
      return name + " " + duration_text(figure.value);
    case Unit::percent:
      return name + " " + significant(figure.value) + " %";
    case Unit::number:
      break;
  }
  return name + " " + significant(figure.value);
}

std::string figures_text(const Note& note) {
  std::string out;
  for (const Figure& figure : note.figures) out += (out.empty() ? "" : ", ") + figure_text(figure);
  return out;
}

std::string milliseconds(double seconds) { return decimals(1e3 * seconds, 3); }

struct Widths {
  size_t subject = 0, figures = 0;
};

// Returns time, thread, stage, subject, figures and place in the code.
std::string line_of(const Note& note, double begin, const Widths& widths) {
  const bool main = note.thread == std::this_thread::get_id();
  return concat(pad_left(milliseconds(1e-6 * note.time - begin), 9), "  ",
                main ? "main  " : "comm  ", pad_right(note.stage, 10), "  ",
                pad_right(note.subject, widths.subject), "  ",
                pad_right(figures_text(note), widths.figures), "  ", note.place, "\n");
}

// Returns the sum of the figure `name` over all exchanges.
double bytes_in(const std::vector<Note>& notes, std::string_view name) {
  double bytes = 0;
  for (const Note& note : notes)
    if (std::string_view(note.stage) == "exchange")
      for (const Figure& figure : note.figures)
        if (figure.name == name) bytes += figure.value;
  return bytes;
}

std::string heading(const ExplainedStep& s) {
  const StepTimes& t = s.facts.times;
  std::string out =
      concat("Step ", s.step, " of ", s.program, ", epoch ", s.epoch, ", as ",
             s.learners > 1 ? concat("the first of ", s.learners, " ranks") : "the only rank",
             " ran it: loss ", significant(s.facts.loss, 6), s.learners > 1 ? " on this rank" : "",
             ", lr ", significant(s.facts.lr, 6), ".\nData took ", milliseconds(t.data),
             " ms, forward ", milliseconds(t.forward), ", backward ", milliseconds(t.backward),
             ", the rest ", milliseconds(t.update),
             ". Times are milliseconds since the step began; they include\n"
             "computing the norms in these lines.");
  if (s.learners > 1) out += " main is the thread that computes, comm the thread that exchanges.";
  return out + "\n\n";
}

std::string ending(const ExplainedStep& s, double told) {
  if (s.learners == 1) return "";
  std::string out =
      concat("\nTotal: sent ", s.exchange.sent, " B, received ", s.exchange.received,
             " B; a dense exchange sends ", s.bytes_dense, " B. The comm thread spent ",
             milliseconds(s.exchange.comm_s), " ms in collectives and ",
             milliseconds(s.exchange.compress_s), " ms compressing; the main thread waited ",
             milliseconds(s.exchange.exposed_s), " ms.\n");
  const int64_t between = s.exchange.sent - std::llround(told);
  if (between > 0)
    out += concat(
        "Of the bytes sent, ", between,
        " were sent between the previous step and this one: losses, evaluation, checks, or a "
        "delayed exchange.\n");
  if (between < 0) out += "An exchange in flight is counted where it moves the weights.\n";
  return out;
}

}  // namespace

std::string step_story(const ExplainedStep& step) {
  const StepTimes& t = step.facts.times;
  const double begin = t.last - (t.data + t.forward + t.backward + t.update);
  std::vector<Note> notes = step.notes;
  std::erase_if(notes, [&](const Note& note) { return 1e-6 * note.time < begin; });
  Widths widths;
  for (const Note& note : notes) {
    widths.subject = std::max(widths.subject, note.subject.size());
    widths.figures = std::max(widths.figures, figures_text(note).size());
  }
  std::string out = heading(step);
  for (const Stage& stage : kStages)
    if (std::ranges::any_of(
            notes, [&](const Note& note) { return std::string_view(note.stage) == stage.name; }))
      out += concat("  ", pad_right(stage.name, 10), "  ", stage.meaning, "\n");
  out += "\n";
  for (const Note& note : notes) out += line_of(note, begin, widths);
  return out + ending(step, bytes_in(notes, "sent"));
}

}  // namespace heddle
