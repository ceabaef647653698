#include "apps/session/run_report.h"

#include <exception>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/log/tensorboard.h"
#include "apps/report/report_page.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {

void begin_events(const CommonOptions& o, RunFolder& folder) {
  if (!o.tensorboard) return;
  constexpr const char* kName = "events.out.tfevents";
  try {
    const auto events = std::make_shared<EventFile>(folder.path());
    folder.listen([events, &folder](const nlohmann::ordered_json& line) {
      events->metric(line);
      folder.note_trouble(kName, events->trouble());
    });
  } catch (const std::exception& error) {
    folder.note_trouble(kName, error.what());
  }
}

nlohmann::ordered_json summary_line(const TrainingResult& result, const ParameterStore& store) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (const Parameter& p : store.parameters()) layers[p.name] = p.size();
  return {{"summary", result.status},
          {"step", result.step},
          {"epoch", result.epoch},
          {"train_loss", result.train_loss},
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
  try {
    folder.flush();
    if (o.report) {
      folder.write("report.html", report_page({read_run(folder.path(), o.trace)}));
      progress.note("report " + folder.file("report.html"));
    }
  } catch (const std::exception& error) {
    folder.note_trouble("report.html", concat("no report.html: ", error.what()));
  }
  if (const std::string missing = folder.incomplete(); !missing.empty()) progress.note(missing);
  folder.warn_by({});  // the progress ends before the folder
}

}  // namespace heddle
