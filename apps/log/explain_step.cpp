#include "apps/log/explain_step.h"
#include "apps/cli/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
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
    {"final", "backward has added the last contribution: this gradient will not change any more"},
    {"bucket", "all gradients of a bucket are final; it waits for its turn to be exchanged"},
    {"clip", "this rank's gradient is held within a norm before it is sent"},
    {"compensate", "what earlier steps have not sent, the residual, is added to the gradient"},
    {"select", "what of it travels"},
    {"exchange", "a collective: bytes of payload by kind, and what this rank sent and received"},
    {"residual", "what has not been sent is kept for the next step"},
    {"summed", "the sum over the ranks stands in the gradient buffer, the same bits on all"},
    {"wait", "backward is done, and waits for the exchanges that it did not hide"},
    {"update", "new weights, as soon as the sum is there and nobody needs the old ones"},
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

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", 1e3 * seconds);
  return text;
}

struct Widths {
  size_t subject = 0, figures = 0;
};

// Time, thread, stage, what it is about, figures, place.
std::string line_of(const Note& note, double begin, const Widths& widths) {
  const std::string time = milliseconds(1e-6 * note.time - begin);
  const bool main = note.thread == std::this_thread::get_id();
  return concat(std::string(time.size() < 9 ? 9 - time.size() : 0, ' '), time, "  ",
                main ? "main  " : "comm  ", padded(note.stage, 10), "  ",
                padded(note.subject, widths.subject), "  ",
                padded(figures_text(note), widths.figures), "  ", note.place, "\n");
}

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
             " went through it: loss ", significant(s.facts.loss, 6),
             s.learners > 1 ? " on this rank" : "", ", lr ", significant(s.facts.lr, 6),
             ".\nData took ", milliseconds(t.data), " ms, forward ", milliseconds(t.forward),
             ", backward ", milliseconds(t.backward), ", the rest ", milliseconds(t.update),
             ". Times are milliseconds from the step's beginning; the norms\n"
             "in these lines were computed for them and took their part of it.");
  if (s.learners > 1) out += " main is the thread that computes, comm the one that exchanges.";
  return out + "\n\n";
}

std::string ending(const ExplainedStep& s, double told) {
  if (s.learners == 1) return "";
  std::string out =
      concat("\nIn all sent ", s.exchange.sent, " B, received ", s.exchange.received,
             " B; dense it would be ", s.bytes_dense, " B. The comm thread was ",
             milliseconds(s.exchange.comm_s), " ms in collectives and ",
             milliseconds(s.exchange.compress_s), " ms compressing; the main thread waited ",
             milliseconds(s.exchange.exposed_s), " ms.\n");
  const int64_t between = s.exchange.sent - std::llround(told);
  if (between > 0)
    out += concat("Of what was sent, ", between,
                  " B went between the step before and this one: losses, evaluation, checks.\n");
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
      out += concat("  ", padded(stage.name, 10), "  ", stage.meaning, "\n");
  out += "\n";
  for (const Note& note : notes) out += line_of(note, begin, widths);
  return out + ending(step, bytes_in(notes, "sent"));
}

}  // namespace heddle
