// Resuming an exchange in two levels with the same hosts, other hosts, or none.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "apps/session/resume.h"
#include "tests/state_helpers.h"

using namespace heddle;

namespace {

using Hosts = std::vector<int>;

// Returns the mean residuals of a run that resumes from the checkpoint; sets `notes`.
Means resume(const Checkpoint& checkpoint, const std::string& compress, int ranks,
             const Hosts& hosts, std::vector<std::string>& notes, std::vector<float>& weights) {
  Means means;
  std::mutex mutex;
  expect_none(run_ranks(ranks, [&](Communicator& comm) {
    Learner learner(comm, compress, hosts);
    const Tensor own = Tensor::from({-1.0f});
    restore_training(learner.parts, checkpoint, {.rank = {{"rank", own}}},
                     [&](const std::string& line) {
                       if (comm.rank() == 0) notes.push_back(line);
                     });
    // As many ranks get back what is their own.
    if (ranks == 4) CHECK(own.to_vector()[0] == static_cast<float>(comm.rank()));
    {
      const std::lock_guard lock(mutex);
      add_residuals(learner, ranks, means);
    }
    for (int64_t i = 5; i < 8; ++i) learner.step(i, comm.rank());
    learner.optimizer.check_replicas();
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) weights = learner.net.store.values().to_vector();
  }));
  return means;
}

double total(const Means& means) {
  double sum = 0;
  for (const auto& [name, mean] : means) sum = std::accumulate(mean.begin(), mean.end(), sum);
  return sum;
}

}  // namespace

TEST_CASE("training state: hosts may change, and nothing that residuals keep is lost") {
  const std::string compress = "topk:density=0.1";
  Context context;
  for (const Hosts& saved : {Hosts{}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 2}}) {
    const TempFolder folder;
    const Means before = leave_checkpoint(folder.path, compress, 4, saved);
    REQUIRE(std::abs(total(before)) > 1e-3);
    const Checkpoint checkpoint = open_checkpoint(folder.path + "/checkpoints/step-5");
    for (const Hosts& hosts : {Hosts{}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 1}, Hosts{0, 1, 2, 3},
                               Hosts{0, 0, 1}, Hosts{0, 1}}) {
      const int ranks = hosts.empty() ? 4 : static_cast<int>(hosts.size());
      CAPTURE(saved.size());
      CAPTURE(hosts.size());
      std::vector<std::string> notes;
      std::vector<float> weights;
      const Means after = resume(checkpoint, compress, ranks, hosts, notes, weights);
      CHECK(notes.size() == (ranks == 4 && hosts == saved ? 0 : 1));
      // The update is the mean over the ranks of gradients and residuals: so is what is kept.
      CHECK(total(after) == doctest::Approx(total(before)).epsilon(1e-4));
    }
  }
}

TEST_CASE("training state: with the same hosts a run continues bit for bit") {
  for (const char* compress : {"scalecom:rate=10,beta=0.5", "powersgd:rank=2", "none"}) {
    CAPTURE(std::string(compress));
    Context context;
    const Hosts hosts = {0, 0, 1, 1};
    const TempFolder folder;
    leave_checkpoint(folder.path, compress, 4, hosts);
    std::vector<float> whole, resumed;
    expect_none(run_ranks(4, [&](Communicator& comm) {
      Learner learner(comm, compress, hosts);
      for (int64_t i = 0; i < 8; ++i) learner.step(i, comm.rank());
      if (comm.rank() == 0) whole = learner.net.store.values().to_vector();
    }));
    std::vector<std::string> notes;
    resume(open_checkpoint(folder.path + "/checkpoints/step-5"), compress, 4, hosts, notes,
           resumed);
    CHECK(resumed == whole);
    CHECK(notes.empty());
  }
}

TEST_CASE("training state: hosts of another number of ranks are refused") {
  Context context;
  const TempFolder folder;
  leave_checkpoint(folder.path, "topk:density=0.1", 4, {0, 0, 1, 1});
  Checkpoint checkpoint = open_checkpoint(folder.path + "/checkpoints/step-5");
  checkpoint.state["exchange"]["hosts"] = {0, 1};
  const auto errors = run_ranks(4, [&](Communicator& comm) {
    Learner learner(comm, "topk:density=0.1");
    const Tensor own = Tensor::from({-1.0f});
    restore_training(learner.parts, checkpoint, {.rank = {{"rank", own}}}, {});
  });
  for (const std::string& error : errors) CHECK(mentions(error, {"hosts", "4", "2"}));
}
