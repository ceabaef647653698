#include <algorithm>
#include <cmath>

#include "apps/report/report_chart.h"
#include "apps/report/report_figures.h"
#include "apps/report/svg.h"
#include "core/error.h"

namespace heddle {
namespace {

using Times = ChoiceRecord::Times;

constexpr double kWidth = 460, kLeft = 92, kRight = 64, kRow = 14;
constexpr size_t kMaxBuckets = 40, kMaxChoices = 50;

double seconds(const Times& way) { return way.code + way.comm; }

std::string bucket_name(const ChoiceRecord::Bucket& bucket, size_t index) {
  const auto& names = bucket.parameters;
  if (names.empty()) return concat("bucket ", index);
  return concat("bucket ", index, ": ", names.front(),
                names.size() > 1 ? concat(" … ", names.back()) : "");
}

// Encoding, then collectives; the way that was chosen with its time in bold.
std::string bar(const Times& way, const char* name, bool chosen, const Scale& x, double top) {
  std::string out = concat("<text class=\"label\" x=\"", kLeft - 6, "\" y=\"", fixed(top + 9, 1),
                           "\" text-anchor=\"end\">", name, "</text>");
  double at = 0;
  const auto part = [&](const char* css, const char* what, double length) {
    if (length > 0)
      out +=
          concat("<rect class=\"", css, "\" x=\"", fixed(x(at), 2), "\" y=\"", fixed(top, 1),
                 "\" width=\"", fixed(std::max(x(at + length) - x(at), 0.4), 2),
                 "\" height=\"10\"><title>", what, ": ", duration_text(length), "</title></rect>");
    at += length;
  };
  part("p-compress", "encoding", way.code);
  part("p-comm", "collectives", way.comm);
  return out + concat("<text class=\"", chosen ? "strong" : "label", "\" x=\"", fixed(x(at) + 5, 1),
                      "\" y=\"", fixed(top + 9, 1), "\">", duration_text(at), chosen ? " ✓" : "",
                      "</text>");
}

std::string sentence(const ChoiceRecord& choice) {
  const auto packed = std::ranges::count(choice.buckets, true, &ChoiceRecord::Bucket::compressed);
  const auto joined = std::ranges::count(choice.buckets, true, &ChoiceRecord::Bucket::joined);
  std::string out = concat("After step ", choice.step, ": ", packed, " of ", choice.buckets.size(),
                           " buckets are compressed");
  if (joined > 0)
    out += concat(", and travel as ", std::ssize(choice.buckets) - joined, " messages");
  out += concat(". Until the last exchange a step takes ", duration_text(choice.dense),
                " if all are dense, ", duration_text(choice.compressed), " if all are compressed");
  if (choice.dropped)
    return out + concat("; ", duration_text(choice.chosen),
                        " were expected of another choice, which took ",
                        duration_text(choice.found), " and was dropped");
  out += concat(", and ", duration_text(choice.chosen), " as chosen, as follows from what was ",
                "measured of each bucket");
  if (std::isfinite(choice.found)) out += concat("; then measured: ", duration_text(choice.found));
  return out;
}

std::string cells(std::initializer_list<std::string> values, const char* tag = "td") {
  std::string out = "<tr>";
  for (const std::string& value : values) out += concat("<", tag, ">", value, "</", tag, ">");
  return out + "</tr>";
}

std::string bucket_table(const ChoiceRecord& choice) {
  std::string out = "<table><thead>" +
                    cells({"bucket", "chosen", "dense: ready, s", "encoding, s", "collectives, s",
                           "compressed: ready, s", "encoding, s", "collectives, s"},
                          "th") +
                    "</thead><tbody>";
  for (size_t i = 0; i < choice.buckets.size(); ++i) {
    const auto& b = choice.buckets[i];
    out += cells(
        {escape(bucket_name(b, i)),
         concat(b.compressed ? "compressed" : "dense", b.joined ? ", with the one before" : ""),
         significant(b.dense.ready, 6), significant(b.dense.code, 6), significant(b.dense.comm, 6),
         significant(b.packed.ready, 6), significant(b.packed.code, 6),
         significant(b.packed.comm, 6)});
  }
  return out + "</tbody></table>";
}

std::string choice_table(const RunRecord& run) {
  std::string out = "<table><thead>" +
                    cells({"choice after step", "compressed buckets", "expected, s",
                           "then measured, s", "all dense, s", "all compressed, s"},
                          "th") +
                    "</thead><tbody>";
  const size_t first = run.choices.size() - std::min(run.choices.size(), kMaxChoices);
  for (size_t i = first; i < run.choices.size(); ++i) {
    const ChoiceRecord& choice = run.choices[i];
    const auto packed = std::ranges::count(choice.buckets, true, &ChoiceRecord::Bucket::compressed);
    out += cells({std::to_string(choice.step), concat(packed, " of ", choice.buckets.size()),
                  significant(choice.chosen, 6),
                  concat(std::isfinite(choice.found) ? significant(choice.found, 6) : "–",
                         choice.dropped ? ", dropped" : ""),
                  significant(choice.dense, 6), significant(choice.compressed, 6)});
  }
  return out + "</tbody></table>";
}

}  // namespace

std::string draw_choices(const RunRecord& run) {
  if (run.choices.empty() || run.choices.back().buckets.empty()) return "";
  const ChoiceRecord& last = run.choices.back();
  double longest = 0;
  for (const auto& b : last.buckets)
    longest = std::max({longest, seconds(b.dense), seconds(b.packed)});
  if (!(longest > 0)) return "";
  const Scale x = Scale::linear(0, longest, kLeft, kWidth - kRight);
  std::string svg;
  double y = 4;
  const size_t shown = std::min(last.buckets.size(), kMaxBuckets);
  for (size_t i = 0; i < shown; ++i) {
    const auto& b = last.buckets[i];
    svg += concat("<text class=\"label\" x=\"0\" y=\"", fixed(y + 9, 1), "\">",
                  escape(bucket_name(b, i)), "</text>");
    svg += bar(b.dense, "dense", !b.compressed, x, y + kRow);
    svg += bar(b.packed, "compressed", b.compressed, x, y + 2 * kRow);
    y += 3 * kRow + 8;
  }
  const std::string more = shown < last.buckets.size() ? concat(". Drawn are the first ", shown,
                                                                " buckets; the table has all")
                                                       : "";
  return figure(
      "choices", "chart", "Dense or compressed, by bucket", sentence(last) + more,
      concat("<svg viewBox=\"0 0 ", kWidth, " ", fixed(y, 0),
             "\" role=\"img\" aria-label=\"What the exchange of each bucket takes, dense "
             "and compressed\">",
             svg, "</svg>", legend({{"encoding", "p-compress"}, {"collectives", "p-comm"}})),
      bucket_table(last) + choice_table(run));
}

}  // namespace heddle
