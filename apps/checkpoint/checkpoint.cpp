#include "apps/checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "apps/cli/json.h"
#include "core/context.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/parse_number.h"
#include "core/safetensors.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kState = "state.json";
constexpr std::string_view kPrefix = "step-";
constexpr const char* kPart = ".part";
constexpr const char* kAside = ".aside";

std::string hash_of(const InputFile& file) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_file(file)));
  return text;
}

std::string folder_of(const std::string& run_folder) { return run_folder + "/checkpoints"; }

// Returns 400 for "step-400", -1 for other names.
int64_t step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return -1;
  return parse_number<int64_t>(name.substr(kPrefix.size())).value_or(-1);
}

// Returns the type of a file. Throws Error where it cannot be determined.
fs::file_type type_of(const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) throw Error(concat(path, ": cannot stat: ", error.message()));
  return type;
}

// Returns the names in a folder; none where there is no folder. Throws Error if it is unreadable.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  if (type_of(folder) != fs::file_type::directory) return names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) throw Error(concat(folder, ": cannot read the folder: ", error.message()));
  return names;
}

// Returns the steps of the checkpoints in a folder, the latest first.
std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder))
    if (const int64_t step = step_of(name); step >= 0) steps.push_back(step);
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

nlohmann::json read_json(const std::string& path) { return parse_json(read_text_file(path), path); }

void check_version(const nlohmann::json& json, const std::string& path) {
  const auto version = whole(json.at("version"));
  check(version >= 1 && version <= kCheckpointVersion, path, ": format version ", version,
        "; this program reads versions up to ", kCheckpointVersion);
}

void check_file(const std::string& path, const nlohmann::json& entry) {
  const InputFile file(path);
  const auto bytes = whole(entry.at("bytes"));
  check(file.size() == bytes, path, ": expected ", bytes, " bytes, found ", file.size());
  const auto hash = entry.at("xxh64").get<std::string>();
  check(hash_of(file) == hash, path, ": content differs from what was written (expected xxh64 ",
        printable(hash), ", found ", hash_of(file), ")");
}

// Returns the "valid_loss" of a state; infinity if it has none or is broken. Throws Error if it
// cannot be read.
double valid_loss_of(const std::string& state) {
  double loss = NAN;
  try {
    loss = number_at(read_json(state), "valid_loss");
  } catch (const InputError&) {
  }
  return std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
}

// Removes what can be removed; does not throw.
void remove_folder(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

}  // namespace

Checkpoint open_checkpoint(const std::string& path) {
  check(type_of(path) == fs::file_type::directory, path, ": no such folder");
  const std::string manifest_path = path + "/" + kManifest;
  check(type_of(manifest_path) != fs::file_type::not_found, path, ": is not complete: ", kManifest,
        " is missing");
  read_members(manifest_path + ": is not a manifest of this program", [&] {
    const nlohmann::json manifest = read_json(manifest_path);
    check_version(manifest, manifest_path);
    for (const auto& [name, entry] : manifest.at("files").items()) {
      check(!name.empty() && name.find('/') == std::string::npos, manifest_path,
            ": expected the name of a file, found \"", printable(name), '"');
      check_file(concat(path, "/", name), entry);
    }
    check(manifest.at("files").contains(kState), manifest_path, ": does not list ", kState);
  });
  return read_checkpoint(path);
}

Checkpoint read_checkpoint(const std::string& path) {
  Checkpoint out;
  out.path = path;
  read_members(out.file(kState) + ": is not a state of this program", [&] {
    out.state = read_json(out.file(kState));
    check_version(out.state, out.file(kState));
    out.step = whole(out.state.at("step"));
    check(out.step >= 0, out.file(kState), ": step: expected at least 0, found ", out.step);
  });
  return out;
}

FoundCheckpoint find_checkpoint(const std::string& run_folder, int64_t after) {
  FoundCheckpoint found;
  const std::string folder = folder_of(run_folder);
  for (const int64_t step : steps_in(folder)) {
    if (step <= after) break;
    try {
      found.newest = open_checkpoint(concat(folder, "/", kPrefix, step));
      break;
    } catch (const InputError& error) {
      found.skipped.emplace_back(error.what());
    }
  }
  return found;
}

std::string rank_file(int rank) { return concat("rank-", rank, ".safetensors"); }

CheckpointWriter::CheckpointWriter(const std::string& run_folder, int rank,
                                   const CheckpointWriterOptions& options)
    : folder_(folder_of(run_folder)), rank_(rank), options_(options) {
  if (rank > 0) return;
  for (const std::string& name : names_in(folder_)) {
    const fs::path path(name);
    if (path.extension() == kPart && step_of(path.stem().string()) >= 0)
      remove_folder(concat(folder_, "/", name));
  }
  std::error_code none;
  for (const int64_t step : steps_in(folder_)) {
    if (step <= options.begin) break;
    const std::string later = concat(folder_, "/", kPrefix, step);
    remove_folder(later + kAside);
    fs::rename(later, later + kAside, none);
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (writing_.valid()) writing_.wait();
  if (sealing_.valid()) sealing_.wait();
}

void CheckpointWriter::event(const std::string& what) const {
  if (options_.on_event) options_.on_event(what);
}

std::string CheckpointWriter::part_folder(int64_t step) const {
  return concat(folder_, "/", kPrefix, step, kPart);
}

void CheckpointWriter::begin(int64_t step, CheckpointFiles files) {
  if (step_ >= 0) throw Error("a checkpoint was begun before the previous one had ended");
  step_ = step;
  error_.clear();
  writing_ = std::async(std::launch::async,
                        [this, step, files = std::move(files), &context = Context::current()] {
                          const ContextScope scope(context);
                          write_files(step, files);
                        });
}

void CheckpointWriter::write_files(int64_t step, const CheckpointFiles& files) {
  const std::string folder = part_folder(step);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(concat(folder, ": cannot create the folder: ", error.message()));
  for (const auto& [name, tensors] : files.tensors) {
    const auto about = files.metadata.find(name);
    save_safetensors(
        concat(folder, "/", name), tensors,
        about == files.metadata.end() ? std::map<std::string, std::string>() : about->second);
    event(name);
  }
  for (const auto& [name, text] : files.texts) {
    write_file_atomically(concat(folder, "/", name), text);
    event(name);
  }
}

Writing CheckpointWriter::wait(std::chrono::milliseconds most) {
  for (const std::future<void>* work : {&sealing_, &writing_})
    if (work->valid() && work->wait_for(most) != std::future_status::ready) return Writing::busy;
  return wait();
}

Writing CheckpointWriter::wait() {
  if (step_ >= 0 && writing_.valid()) {
    try {
      writing_.get();
    } catch (const std::exception& error) {
      error_ = error.what();
    }
  }
  if (step_ < 0) return Writing::nothing;
  return error_.empty() ? Writing::written : Writing::failed;
}

void CheckpointWriter::commit() {
  const int64_t step = std::exchange(step_, -1);
  if (rank_ > 0) return;
  finish();
  sealing_ = std::async(std::launch::async, [this, step] {
    try {
      seal(step);
    } catch (...) {
      remove_folder(part_folder(step));
      throw;
    }
  });
}

void CheckpointWriter::abandon() {
  wait();
  if (rank_ == 0 && step_ >= 0) remove_folder(part_folder(step_));
  step_ = -1;
}

bool CheckpointWriter::finish() {
  if (!sealing_.valid()) return true;
  try {
    sealing_.get();
    return true;
  } catch (const std::exception& error) {
    error_ = error.what();
    return false;
  }
}

void CheckpointWriter::seal(int64_t step) {
  const std::string part = part_folder(step), whole = concat(folder_, "/", kPrefix, step);
  nlohmann::ordered_json files;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(part))
    if (entry.path().filename() != kManifest) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  for (int r = 0; r < options_.ranks; ++r)
    if (std::ranges::find(names, rank_file(r)) == names.end())
      throw Error(concat(part, "/", rank_file(r), " is missing: rank ", r,
                         " wrote it elsewhere; all hosts must see the same run folder"));
  for (const std::string& name : names) {
    const InputFile file(concat(part, "/", name));
    files[name] = {{"bytes", file.size()}, {"xxh64", hash_of(file)}};
  }
  write_file_atomically(
      part + "/" + kManifest,
      nlohmann::ordered_json{{"version", kCheckpointVersion}, {"files", files}}.dump(2) + '\n');
  event(kManifest);
  remove_folder(whole);  // left by a run that resumed from an earlier step
  fs::rename(part, whole);
  sync_folder(folder_);
  event("renamed");
  remove_old();
}

void CheckpointWriter::remove_old() const {
  if (rank_ > 0) return;
  std::vector<int64_t> steps;
  int64_t best = -1;
  double least = std::numeric_limits<double>::infinity();
  try {
    steps = steps_in(folder_);
    for (const int64_t step : steps) {
      const double loss = valid_loss_of(concat(folder_, "/", kPrefix, step, "/", kState));
      if (loss <= least) least = loss, best = step;  // the oldest of equals
    }
  } catch (const Error&) {
    return;  // keep all until every loss can be read
  }
  for (size_t i = to_size(options_.keep); i < steps.size(); ++i) {
    if (steps[i] == best && std::isfinite(least)) continue;
    const std::string old = concat(folder_, "/", kPrefix, steps[i]);
    std::error_code error;
    fs::rename(old, old + kPart,
               error);  // an incomplete checkpoint never has a complete one's name
    if (!error) remove_folder(old + kPart);
  }
}

}  // namespace heddle
