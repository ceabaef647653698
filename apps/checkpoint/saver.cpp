#include "apps/checkpoint/saver.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>

#include "apps/checkpoint/signals.h"
#include "apps/log/control_word.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

constexpr auto kStop = to_size(ControlWord::stop), kWritten = to_size(ControlWord::written),
               kFailed = to_size(ControlWord::failed);
constexpr int kMaxFailures = 3;  // in a row
constexpr const char* kUnfit = ": gradients or weights are not finite";
constexpr auto kCollectiveInterval = std::chrono::milliseconds(250);

// Returns the word as a shell reads it.
std::string shell_word(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string{c};
  const bool plain = word.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789/._-+") == std::string::npos;
  return plain ? word : quoted + "'";
}

// Returns the run folder of the first rank. Collective.
std::string shared_folder(std::string folder, LearnerOptimizer& optimizer) {
  if (optimizer.learners() > 1)
    optimizer.collective("run folder",
                         [&](Communicator& comm) { folder = broadcast_text(folder, comm); });
  return folder;
}

// Checks that all ranks see what the first writes, as each writes its own files of a checkpoint
// there. Files of other hosts may take a moment to become visible (NFS).
void check_shared(const std::string& folder, int rank, LearnerOptimizer& optimizer) {
  optimizer.collective("run folder", [&](Communicator& comm) {
    char name[40];  // of fixed length, so that equal runs send equal bytes
    std::snprintf(name, sizeof name, "/.seen-by-all.tmp-%08x", std::random_device()());
    const std::string file = broadcast_text(folder + name, comm);
    if (rank == 0) write_file_atomically(file, "written at the start of a run\n");
    comm.barrier();
    bool seen = false;
    for (int tries = 0; tries < 30 && !seen; ++tries) {
      if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      seen = std::filesystem::exists(file);
    }
    const std::vector<std::vector<int64_t>> all = gather_values(comm, std::vector<int64_t>{seen});
    std::error_code ignored;
    if (rank == 0) std::filesystem::remove(file, ignored);
    for (size_t r = 0; r < all.size(); ++r)
      check(all[r][0] != 0, "run folder ", folder, ": rank ", r,
            " does not see what rank 0 writes there; checkpoints need a folder that all hosts see; "
            "--save-every 0 trains without checkpoints");
  });
}

}  // namespace

Saver::Saver(const CommonOptions& o, const SaverOptions& options, LearnerOptimizer& optimizer,
             std::function<void(const std::string&)> note)
    : optimizer_(optimizer),
      note_(std::move(note)),
      every_(o.parsed.save_every.steps(options.steps_per_epoch)),
      ahead_(o.parsed.save_every.epochs ? options.ahead : 0),
      folder_(shared_folder(options.folder, optimizer)),
      again_(concat("--config ", shell_word(folder_ + "/config.toml"), " --output-dir ",
                    shell_word(folder_), " --resume auto")),
      last_(options.start == nullptr ? "" : options.start->path) {
  // First: it waits for all ranks, and the writer sets checkpoints aside.
  if (every_ > 0 && optimizer.learners() > 1) check_shared(folder_, options.rank, optimizer);
  writer_ = std::make_unique<CheckpointWriter>(
      folder_, options.rank,
      CheckpointWriterOptions{.keep = o.keep,
                              .ranks = optimizer.learners(),
                              .begin = options.start == nullptr ? 0 : options.start->step,
                              .on_event = save_hook == nullptr ? nullptr : save_hook()});
}

bool Saver::after_step(int64_t step, const std::function<std::optional<CheckpointFiles>()>& files) {
  if (writer_->step() >= 0 && step > writer_->step() + optimizer_.control_delay())
    conclude(optimizer_.control(kWritten), optimizer_.control(kFailed));
  const bool stop = optimizer_.control(kStop) > 0;
  bool fit = true;
  if (stop || due_ || (every_ > 0 && (step - ahead_) % every_ == 0)) {
    finish();
    std::optional<CheckpointFiles> mine = files();
    fit = mine.has_value();
    if (fit) writer_->begin(step, std::move(*mine));
    if (!fit && !due_ && !stop && note_)
      note_(concat("step ", step, " is not saved", kUnfit,
                   "; the next step whose update is accepted will be"));
    due_ = !fit;
  }
  if (stop) {
    const int before = failures_;
    finish();
    if (failures_ > before)
      throw Error(concat("stopped by a signal after step ", step, ", and not saved: ", why_));
    if (note_)
      note_(concat("stopped by a signal after step ", step, fit ? "" : ", which is not saved",
                   fit ? "" : kUnfit, "; ", again_, " resumes it",
                   fit || last_.empty() ? "" : " from " + last_));
  }
  const Writing progress = writer_->progress();
  optimizer_.set_control(kStop, signal_received() ? 1.0f : 0.0f);
  optimizer_.set_control(kWritten, progress == Writing::written ? 1.0f : 0.0f);
  optimizer_.set_control(kFailed, progress == Writing::failed ? 1.0f : 0.0f);
  return !stop;
}

void Saver::conclude(double written, double failures) {
  if (written + failures < optimizer_.learners()) return;
  if (failures > 0) {
    const std::string why = causes();
    writer_->abandon();
    fail(why);
  } else {
    end_saving();
    sealing_ = writer_->step();
    writer_->commit();
  }
}

// Names the ranks that could not write their files, and why. Collective.
std::string Saver::causes() const {
  if (optimizer_.learners() == 1) return writer_->error();
  std::vector<std::string> all;
  optimizer_.collective("checkpoint",
                        [&](Communicator& comm) { all = gather_texts(comm, writer_->error()); });
  std::string text;
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) text += concat(text.empty() ? "" : "; ", "rank ", r, ": ", all[r]);
  return text;
}

// Waits for the previous checkpoint, which the first rank seals while the next one is written.
void Saver::end_saving() {
  const int64_t step = std::exchange(sealing_, -1);
  if (step < 0) return;
  if (!writer_->finish()) return fail(writer_->error());
  failures_ = 0;
  last_ = concat(folder_, "/checkpoints/step-", step);
}

void Saver::finish() {
  while (writer_->step() >= 0 || sealing_ >= 0) {
    // A periodic collective: ranks that wait for one with a slow disk do not time out.
    const Writing progress = writer_->wait(kCollectiveInterval);
    const Tensor sums = Tensor::empty_on(Device{}, {3});
    float* sum = sums.data<float>();
    sum[0] = progress == Writing::written ? 1.0f : 0.0f;
    sum[1] = progress == Writing::failed ? 1.0f : 0.0f;
    sum[2] = progress == Writing::busy ? 1.0f : 0.0f;
    if (optimizer_.learners() > 1)
      optimizer_.collective("checkpoint", [&](Communicator& comm) { comm.all_reduce(sums); });
    if (sum[2] == 0) writer_->step() < 0 ? end_saving() : conclude(sum[0], sum[1]);
  }
  writer_->remove_old();
}

void Saver::fail(const std::string& why) {
  why_ = why;
  if (note_) note_("checkpoint not saved: " + why);
  if (++failures_ >= kMaxFailures)
    throw Error(concat("checkpoints could not be saved ", failures_, " times in a row: ", why));
}

}  // namespace heddle
