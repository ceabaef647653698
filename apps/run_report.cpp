#include "apps/run_report.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/report_page.h"
#include "apps/tensorboard.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {

void begin_events(const CommonOptions& o, RunFolder& folder) {
  if (!o.tensorboard) return;
  const auto events = std::make_shared<EventFile>(folder.path());
  folder.listen([events](const nlohmann::ordered_json& line) { events->metric(line); });
}

nlohmann::ordered_json summary_line(const TrainingResult& result, const ParameterStore& store) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (const Parameter& p : store.parameters()) layers[p.name] = p.size();
  return {{"summary", result.status},
          {"step", result.step},
          {"epoch", result.epoch},
          {"world_size", result.world_size},
          {"bytes_sent", result.bytes_sent},
          {"bytes_received", result.bytes_received},
          {"bytes_dense", result.bytes_dense},
          {"ratio_layers", result.ratios.layers},
          {"ratio_values", result.ratios.values},
          {"ratio_wire", result.ratios.wire},
          {"ratio_run", result.ratios.run},
          {"exposed_comm_s", result.exposed_comm_s},
          {"layers", layers}};
}

void finish_report(const CommonOptions& o, RunFolder& folder, Progress& progress) {
  if (!o.report) return;
  try {
    folder.flush();
    folder.write("report.html", report_page({read_run(folder.path(), o.trace)}));
    progress.note("report " + folder.file("report.html"));
  } catch (const std::exception& error) {
    progress.note(concat("no report.html: ", error.what()));
  }
}

}  // namespace heddle
