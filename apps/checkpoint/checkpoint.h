// Checkpoints: folders that hold the complete training state of a run.
//
//   checkpoints/step-400/
//     model.safetensors      weights; running statistics averaged over the ranks
//     optimizer.safetensors  momentum and the like, the same on all ranks
//     rank-<r>.safetensors   state of rank r alone: residuals, its statistics, its network's state
//     state.json             step, epoch, schedule, plan, configuration, format version
//     manifest.json          size and xxh64 of each of these; written last
//
// A folder is written under a name that ends in .part, synced and renamed, so one without .part is
// complete. Files are written in the background during training.
//
//   CheckpointWriter writer(run_folder, rank, {.keep = 2});
//   writer.begin(400, files);                           // every rank, its own files
//   if (writer.progress() == Writing::written) ...      // on every rank
//   writer.commit();                                    // the first rank, when all have written
//   Checkpoint checkpoint = open_checkpoint(path);
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace heddle {

inline constexpr int kCheckpointVersion = 1;

struct Checkpoint {
  std::string path;
  int64_t step = 0;
  nlohmann::json state;
  std::string file(const std::string& name) const { return path + "/" + name; }
};

// Reads a checkpoint after checking every file against the manifest. Throws an InputError that
// names the first bad file: missing, of unexpected size or content, or of unknown version; Error
// for one that cannot be read now (permission, input/output error) but may be intact.
Checkpoint open_checkpoint(const std::string& path);
// Reads state.json only: for the other ranks, after one has checked all files.
Checkpoint read_checkpoint(const std::string& path);

struct FoundCheckpoint {
  std::optional<Checkpoint> newest;
  std::vector<std::string> skipped;  // for each newer one, a line that says what is wrong with it
};
// Finds the newest intact checkpoint of a run folder, of a step later than `after`. Throws Error if
// one cannot be read now.
FoundCheckpoint find_checkpoint(const std::string& run_folder, int64_t after = -1);

// One rank's part of a checkpoint: copies that do not change while they are written.
struct CheckpointFiles {
  std::map<std::string, std::vector<std::pair<std::string, Tensor>>> tensors = {};  // by file
  std::map<std::string, std::map<std::string, std::string>> metadata = {};  // of these files
  std::map<std::string, std::string> texts = {};
};

std::string rank_file(int rank);  // "rank-3.safetensors"

enum class Writing : uint8_t { nothing, busy, written, failed };

struct CheckpointWriterOptions {
  int64_t keep = 2;   // newest ones; the one with the lowest "valid_loss" in its state stays too
  int ranks = 1;      // each writes a file of its own
  int64_t begin = 0;  // the step at which the run starts or resumes
  // Called after each file with its name, and at the end with "renamed"; for tests. On the thread
  // that writes.
  std::function<void(const std::string&)> on_event = {};
};

// Writes the checkpoints of one rank, in the background; its methods are called by one thread.
class CheckpointWriter {
 public:
  // The first rank also removes what an earlier process left incomplete, and renames checkpoints of
  // steps later than the one at which the run starts to "step-<n>.aside".
  CheckpointWriter(const std::string& run_folder, int rank,
                   const CheckpointWriterOptions& options = {});
  ~CheckpointWriter();  // waits for what is being written

  // Starts writing this rank's files of a checkpoint. One at a time: after commit() or abandon().
  void begin(int64_t step, CheckpointFiles files);
  int64_t step() const { return step_; }  // the one begun; -1: none
  // Returns how far that is; busy also while an earlier one is hashed and renamed.
  Writing progress() { return wait(std::chrono::milliseconds(0)); }
  Writing wait(std::chrono::milliseconds most);  // may still be busy then
  Writing wait();                                // for the one begun
  // Returns why writing has failed.
  const std::string& error() const { return error_; }
  // Concludes the checkpoint, once all ranks have written their files. In the background the first
  // rank hashes, writes the manifest, renames, and removes old checkpoints.
  void commit();
  // Discards the checkpoint that was begun, because some rank has failed.
  void abandon();
  // Waits until everything that was committed is renamed. Returns false if that has failed.
  bool finish();
  // Removes all checkpoints but those to keep, on the first rank. Every commit() does; call it
  // after finish() at the end of a run to remove what an earlier, killed process left.
  void remove_old() const;

 private:
  std::string part_folder(int64_t step) const;
  void write_files(int64_t step, const CheckpointFiles& files);
  void seal(int64_t step);
  void event(const std::string& what) const;

  std::string folder_;  // of all checkpoints
  int rank_;
  CheckpointWriterOptions options_;
  int64_t step_ = -1;
  std::string error_;
  std::future<void> writing_, sealing_;  // last: their threads use the above
};

}  // namespace heddle
