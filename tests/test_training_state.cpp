// The training state in a checkpoint: numbers that are restored bit for bit, refusals of other
// runs, and resuming with a different number of learners.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>

#include "apps/checkpoint/exchange_state.h"
#include "apps/checkpoint/saver.h"
#include "apps/log/summary.h"
#include "apps/session/compare_runs.h"
#include "apps/session/resume.h"
#include "apps/session/training_state.h"
#include "core/kernels.h"
#include "tests/app_helpers.h"
#include "tests/state_helpers.h"

using namespace heddle;

namespace {

DataParallelOptimizer::State some_state() {
  DataParallelOptimizer::State state;
  state.steps = 42;
  state.totals = {.traffic = {1, 2, 3}, .exchange_s = 0.1, .collective_s = 1e-300, .exposed_s = 7};
  state.totals.dense_steps = 4;
  state.totals.coded_steps = 3;
  state.totals.dense_local = 2;
  state.totals.compressed_local = 5;
  state.totals.rejected = 9;
  state.ledger[{"a.weight", PayloadKind::indices}] = {5, 6, 7, 8};
  state.settings = {{"a.weight", 0.1}};
  LayerPlannerState planner;
  planner.due = 50;
  planner.layers = {{.name = "a.weight",
                     .settings = {0.1, 1.0 / 3},
                     .errors = {},
                     .bytes = {8, 9},
                     .uniform = 1}};
  planner.current = {0};
  planner.sample = {{std::numeric_limits<double>::infinity()}, 0.3};
  planner.lr = 0.7;
  planner.table = {1.0 / 3, std::numeric_limits<double>::infinity()};
  planner.window.compensated["a.weight"] = Tensor::from({1.0f, 2.0f});
  planner.window.alone["a.weight"] = Tensor::from({3.0f});
  planner.window.exchanges = {{1000, 1e-3}, {2000, 2e-3}};
  state.planner = planner;
  return state;
}

}  // namespace

// A rewritten manifest does not detect complete files under wrong names.
TEST_CASE("training state: a rank's file names its rank and its checkpoint") {
  const TempFolder folder, other;
  leave_checkpoint(folder.path, "topk:density=0.1");
  leave_checkpoint(other.path, "topk:density=0.2");
  const std::string at = folder.path + "/checkpoints/step-5";
  const Checkpoint checkpoint = read_checkpoint(at);
  const auto refusal = [&](int rank) {
    std::string why;
    std::mutex mutex;
    (void)run_ranks(3, [&](Communicator& comm) {
      Learner learner(comm, "topk:density=0.1");
      const Tensor own = Tensor::from({0.0f});
      const std::string mine = message_of([&] {
        restore_training(learner.parts, checkpoint, {.rank = {{"rank", own}}}, {});
      });
      const std::lock_guard lock(mutex);
      if (comm.rank() == rank) why = mine;
    });
    return why;
  };
  CHECK(refusal(1).empty());
  const std::string first = at + "/" + rank_file(0), second = at + "/" + rank_file(1);
  std::filesystem::rename(second, at + "/kept");
  std::filesystem::copy_file(first, second);
  CHECK_MESSAGE(contains(refusal(1),
                         "rank-1.safetensors: belongs to another rank or checkpoint: expected "
                         "rank 1, found 0"),
                refusal(1));
  std::filesystem::remove(second);
  std::filesystem::copy_file(other.path + "/checkpoints/step-5/" + rank_file(1), second);
  CHECK(mentions(refusal(1), {"rank"}));
}

TEST_CASE("saver: a failed save names the ranks and their reasons") {
  const TempFolder temp;
  std::vector<std::string> notes;
  expect_none(run_ranks(3, [&](Communicator& comm) {
    Learner learner(comm, "none");
    learner.o.parsed.save_every = {2, false};
    Saver saver(
        learner.o, {.folder = temp.path, .rank = comm.rank()}, learner.optimizer,
        comm.rank() > 0 ? std::function<void(const std::string&)>()
                        : [&](const std::string& line) { notes.push_back(line); });
    for (int64_t step = 1; step <= 2; ++step) {
      learner.step(step, comm.rank());
      (void)saver.after_step(step, [&] {
        auto files = save_training(learner.parts, step, {.json = {{"valid_loss", nullptr}}});
        if (comm.rank() == 2) files->texts["none/such"] = "x";  // a folder that is not there
        return files;
      });
    }
    saver.finish();
  }));
  REQUIRE(notes.size() == 1);
  CHECK_MESSAGE(contains(notes[0], "checkpoint not saved: rank 2: "), notes[0]);
  CHECK_MESSAGE(contains(notes[0], "none/such: cannot write: No such file"), notes[0]);
}

// The last good checkpoint must outlive a run that rejects its gradients.
TEST_CASE("training state: nothing is saved while updates are rejected") {
  const TempFolder temp;
  expect_none(run_ranks(2, [&](Communicator& comm) {
    Learner learner(comm, "none");
    learner.o.parsed.save_every = {2, false};
    Saver saver(learner.o, {.folder = temp.path, .rank = comm.rank()}, learner.optimizer, {});
    std::vector<int64_t> saved;
    for (int64_t step = 1; step <= 8; ++step) {
      const bool refused = step >= 4 && step <= 6;
      learner.step(step, comm.rank(), refused && comm.rank() == 1 ? INFINITY : 1);
      CHECK(learner.log.skipped_steps() == (refused ? step - 3 : 0));
      REQUIRE(saver.after_step(step, [&] {
        auto files = save_training(learner.parts, step, {.json = {{"valid_loss", nullptr}}});
        if (files) saved.push_back(step);
        return files;
      }));
    }
    saver.finish();
    // The save due at step 4 is made after the next accepted step.
    CHECK(saved == std::vector<int64_t>{2, 7, 8});
    if (comm.rank() == 0) CHECK(saver.last() == temp.path + "/checkpoints/step-8");
  }));
}

// Earlier versions saved checkpoints while gradients were rejected: the count starts again at 0.
TEST_CASE("training state: steps rejected before a resume do not count after it") {
  expect_none(run_ranks(1, [&](Communicator& comm) {
    Learner learner(comm, "none");
    learner.log.restore(5, 0,
                        {{"loss_sum", 1}, {"loss_units", 1}, {"train_loss", 1}, {"skipped", 9}});
    CHECK(learner.log.skipped_steps() == 0);
    CHECK(learner.log.save().at("skipped") == 0);
  }));
}

TEST_CASE("training state: the exchange's numbers are restored bit for bit") {
  Context context;
  const DataParallelOptimizer::State state = some_state();
  const nlohmann::json json = nlohmann::json::parse(exchange_json(state).dump());
  DataParallelOptimizer::State back = parse_exchange(json);
  CHECK(exchange_json(back).dump() == exchange_json(state).dump());
  CHECK(back.totals.collective_s == 1e-300);
  REQUIRE(back.planner);
  CHECK(back.planner->layers[0].settings[1] == 1.0 / 3);
  CHECK(std::isinf(back.planner->sample.norms[0]));
  CHECK(back.planner->lr == 0.7);

  const TempFolder folder;
  const auto file_of = [&](const DataParallelOptimizer::State& s, const std::string& name) {
    save_safetensors(folder.path + name, exchange_tensors(s));
    return SafetensorsFile::open(folder.path + name);
  };
  const SafetensorsFile file = file_of(state, "/a");
  const auto files = [](const std::vector<SafetensorsFile>& all) {
    return RankFiles{to_int(all.size()), [all](int r) { return all[to_size(r)]; }};
  };
  read_exchange_tensors(files({file}), back);
  CHECK(back.planner->table == state.planner->table);
  CHECK(back.planner->window.compensated.at("a.weight").to_vector() == std::vector<float>{1, 2});
  CHECK(back.planner->window.alone.at("a.weight").to_vector() == std::vector<float>{3});
  REQUIRE(back.planner->window.exchanges.size() == 2);
  CHECK(back.planner->window.exchanges[1].bytes == 2000);
  CHECK(back.planner->window.exchanges[1].seconds == 2e-3);

  DataParallelOptimizer::State other = state;
  other.planner->table = {1, 2};
  back = parse_exchange(json);
  read_exchange_tensors(files({file, file_of(other, "/b")}), back);  // two saved, any number reads
  CHECK(back.planner->table[0] == (1.0 / 3 + 1) / 2);
  CHECK(back.planner->window.compensated.empty());
  CHECK(back.planner->window.alone.empty());
  other.planner->table = {1};
  CHECK(message_of([&] {
          read_exchange_tensors(files({file, file_of(other, "/c")}), back);
        }) != "");
}

TEST_CASE("training state: invalid numbers are refused") {
  Context context;
  const nlohmann::json good = nlohmann::json::parse(exchange_json(some_state()).dump());
  const auto refused = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    CAPTURE(pointer);
    try {
      (void)parse_exchange(bad);
    } catch (const InputError&) {
      return true;
    } catch (const nlohmann::json::exception&) {
      return true;
    }
    return false;
  };
  CHECK(!refused("/steps", 43));
  CHECK(refused("/steps", "many"));
  CHECK(refused("/totals", {1, 2}));
  CHECK(refused("/ledger/0/1", 5));
  nlohmann::json older = good;  // without the bytes as the paper counts them
  older["ledger"][0].erase(5);
  CHECK(parse_exchange(older).ledger.at({"a.weight", PayloadKind::indices}).counted == 5);
  CHECK(parse_exchange(good).ledger.at({"a.weight", PayloadKind::indices}).counted == 8);
  CHECK(refused("/ledger/0", {"a"}));
  CHECK(refused("/settings/a.weight", "fine"));
  CHECK(refused("/planner/current/0", 2));
  CHECK(refused("/planner/current", {0, 0}));
  CHECK(refused("/planner/layers/0/uniform", 2));
  CHECK(refused("/planner/layers/0/bytes", {1}));
  CHECK(refused("/planner/norms", {1, 2}));
}

TEST_CASE("training state: a validation that lacks a number is refused") {
  const auto own = [](const char* json) {
    return own_json({.path = "run/step-1", .state = nlohmann::json::parse(json)},
                    {"acc1", "samples"});
  };
  CHECK(own(R"({"own": {"valid_loss": null}})").size() == 1);
  CHECK(own(R"({"own": {"valid_loss": 1.5, "acc1": 9, "samples": 4}})").at("acc1") == 9);
  for (const char* wrong :
       {R"({})", R"({"own": 3})", R"({"own": {}})", R"({"own": {"valid_loss": "1.5"}})",
        R"({"own": {"valid_loss": 1.5, "acc1": 9}})",
        R"({"own": {"valid_loss": 1.5, "acc1": null, "samples": 4}})"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(own(wrong), doctest::Contains("run/step-1/state.json"), InputError);
  }
}

TEST_CASE("training state: settings are compared without their comments") {
  CHECK(same_config("lr = 0.1  # default\n", "lr = 0.1\nquiet = true\n"));
  CHECK_FALSE(same_config("data = \"a  # b\"\n", "data = \"a  # c\"  # default\n"));
}

TEST_CASE("training state: fewer or more learners keep the mean residual") {
  for (const char* compress : {"scalecom:rate=10,beta=0.5", "powersgd:rank=2"}) {
    CAPTURE(compress);
    Context context;
    const TempFolder folder;
    const Means before = leave_checkpoint(folder.path, compress);
    REQUIRE(!before.empty());
    double size = 0;
    for (const auto& [name, mean] : before)
      for (const double m : mean) size += m * m;
    CHECK(size > 0);
    const Checkpoint checkpoint = open_checkpoint(folder.path + "/checkpoints/step-5");
    for (const int p : {1, 2, 3, 5}) {
      CAPTURE(p);
      Means after;
      std::mutex mutex;
      std::vector<std::string> notes;
      expect_none(run_ranks(p, [&](Communicator& comm) {
        Learner learner(comm, compress);
        const Tensor own = Tensor::from({-1.0f});
        restore_training(learner.parts, checkpoint, {.rank = {{"rank", own}}},
                         [&](const std::string& line) {
                           if (comm.rank() == 0) notes.push_back(line);
                         });
        const float expected = p == 3 ? static_cast<float>(comm.rank()) : -1.0f;
        if (own.item() != expected) throw Error(concat("own state ", own.item()));
        if (learner.log.step() != 5) throw Error(concat("step ", learner.log.step()));
        if (learner.optimizer.state().steps != 5) throw Error("another leader");
        {
          std::lock_guard lock(mutex);
          add_residuals(learner, p, after);
        }
        learner.step(5, comm.rank());
        learner.optimizer.check_replicas();
      }));
      for (const auto& [name, mean] : before)
        for (size_t i = 0; i < mean.size(); ++i)
          CHECK(after[name].at(i) == doctest::Approx(mean[i]).epsilon(1e-5));
      CHECK(notes.size() == (p == 3 ? 0 : 1));
    }
  }
}

TEST_CASE("training state: another --accumulate or beta keeps the unapplied sum") {
  Context context;
  const TempFolder folder;
  const Means before = leave_checkpoint(folder.path, "scalecom:rate=10,beta=0.5");
  const Checkpoint checkpoint = open_checkpoint(folder.path + "/checkpoints/step-5");
  for (const int p : {1, 3}) {
    CAPTURE(p);
    Means after;
    std::mutex mutex;
    expect_none(run_ranks(p, [&](Communicator& comm) {
      Learner learner(comm, "scalecom:rate=10,beta=0.2");
      learner.o.accumulate = 3;
      learner.o.resume = folder.path;
      learner.o.quiet = true;
      // It counts as the same run, and nothing is dropped.
      RunSpec spec{.units_per_batch = 12,
                   .plan = {.steps_per_epoch = 10, .total_steps = 100},
                   .identity = learner.spec.identity};
      (void)find_start(learner.o, spec, comm);
      const Tensor own = Tensor::from({-1.0f});
      restore_training(learner.parts, checkpoint, {.rank = {{"rank", own}}}, nullptr);
      std::lock_guard lock(mutex);
      add_residuals(learner, p, after);
    }));
    for (const auto& [name, mean] : before)  // sums over 3 batches for sums over 1; m / beta
      for (size_t i = 0; i < mean.size(); ++i)
        CHECK(after[name].at(i) == doctest::Approx(mean[i] * 3 * 0.2 / 0.5).epsilon(1e-5));
  }
}

TEST_CASE("training state: a run resumes by the samples seen") {
  Context context;
  const TempFolder folder;
  (void)leave_checkpoint(folder.path, "scalecom:rate=10");
  const auto comm = make_solo();
  nlohmann::ordered_json identity = {{"net", "small"}};
  CommonOptions o;
  o.quiet = true;
  o.compress = "scalecom:rate=10";
  parse_texts(o);
  o.resume = folder.path;
  const auto start = [&](int64_t steps_per_epoch, int64_t units) {
    RunSpec spec{.units_per_batch = units,
                 .plan = {.steps_per_epoch = steps_per_epoch, .total_steps = 100},
                 .identity = identity};
    return find_start(o, spec, *comm);
  };
  Start s = start(10, 12);  // as it was: six batches of three times four
  CHECK(s.batch == 6);
  CHECK(s.ahead == -1);  // five updates, as told, in the first six batches
  s = start(20, 6);
  CHECK(s.batch == 12);
  CHECK(s.ahead == 5 - 12);
  CHECK(s.plan_ahead == 5 - 12);  // five epochs, of which 0.6 are done
  o.steps = 100;                  // as many updates in all: 95 more
  s = start(20, 6);
  CHECK(s.plan_ahead == 0);
  CHECK(s.ahead == 5 - 12);  // for --save-every 2epochs
  o.steps = 0;
  s = start(7, 20);
  CHECK(s.batch == 3);
  s = start(2, 12);  // an epoch that has fewer batches than were seen
  CHECK(s.batch == 1);
  o.accumulate = 4;
  CHECK(start(10, 12).batch == 4);
  o.resume = folder.path + "/checkpoints/step-5";
  CHECK(start(10, 12).step() == 5);
  o.resume = folder.path + "/checkpoints/step-6";
  CHECK(message_of([&] { (void)start(10, 12); }) != "");
  o.resume = folder.path;
  o.compress = "topk";
  parse_texts(o);
  CHECK(message_of([&] { (void)start(10, 12); }).find("scalecom:rate=10") != std::string::npos);
  identity["net"] = "large";
  CHECK(message_of([&] { (void)start(10, 12); }).find("small") != std::string::npos);
  o.resume_anyway = true;
  CHECK(start(10, 12).step() == 5);
  o.resume = "";
  CHECK(!start(10, 12).checkpoint);
}

TEST_CASE("training state: weights that are not finite are not saved") {
  Context context;
  const auto comm = make_solo();
  Learner learner(*comm, "none");
  learner.step(0, 0);
  CHECK(save_training(learner.parts, 1, {}).has_value());
  learner.net.store.parameters()[2].value.data<float>()[3] = NAN;
  CHECK(!save_training(learner.parts, 1, {}).has_value());
}

TEST_CASE("saver: --save-every counts steps or epochs") {
  const auto steps = [](const char* text) { return parse_save_every(text).steps(10); };
  CHECK(steps("400") == 400);
  CHECK(steps("0") == 0);
  CHECK(steps("epoch") == 10);
  CHECK(steps("1epoch") == 10);
  CHECK(steps("3epochs") == 30);
  for (const char* bad :
       {"", "-1", "often", "1.5", "3 epochs", "99999999999999999999", "epochss"}) {
    CAPTURE(bad);
    CHECK(contains(message_of([&] { (void)parse_save_every(bad); }), "--save-every"));
  }
}
