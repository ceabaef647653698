// Progress, and the training log: dumped gradients, rejected exchanges and the rate in the result.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "apps/cli/format.h"
#include "apps/log/progress.h"
#include "apps/log/run_folder.h"
#include "apps/log/training_log.h"
#include "core/context.h"
#include "core/kernels.h"
#include "core/safetensors.h"
#include "core/trace.h"
#include "tests/app_helpers.h"
#include "tests/learner_net.h"

using namespace heddle;

TEST_CASE("training log: the gradients of one step are dumped as before the exchange") {
  Context context;
  const TempFolder temp;
  // Gradients of the first rank, when those of its second update were complete.
  std::map<std::string, std::vector<double>> seen;
  expect_none(run_ranks(2, [&](Communicator& comm) {
    CommonOptions o;
    o.quiet = true;
    o.dump_gradients = 2;
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm, {.accumulate = 2},
                                    {.bucket_bytes = 64, .control_words = true});
    std::unique_ptr<RunFolder> folder;
    if (comm.rank() == 0)
      folder = std::make_unique<RunFolder>(RunFolder::create(temp.path + "/run", "x"));
    Progress progress({.total_steps = 3, .quiet = true});
    TrainingLog log({.program = "test", .rate_key = "rows_per_s"}, o, net.store, optimizer,
                    folder.get(), &progress);
    const Tensor x = Tensor::zeros({4, 20}), y = Tensor::zeros({4}, DType::i32);
    for (int64_t micro = 0; micro < 6; ++micro) {
      fill_batch(micro, comm.rank() * 4, x, y);
      Tape tape;
      const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(x), true), y);
      optimizer.begin_step(0.1);
      tape.backward(
          loss,
          [&](Parameter& p) {
            if (micro == 3 && comm.rank() == 0) {
              const std::vector<float> g = p.grad.to_vector();
              seen[p.name].assign(g.begin(), g.end());
            }
            log.record_gradient(p);
            optimizer.ready(p);
          },
          [&](Parameter& p) { optimizer.weights_free(p); });
      const StepReport report = optimizer.finish_step();
      if (micro % 2 == 1)
        log.finish_step(report, {.loss = loss.value().item(), .lr = 0.1, .units = 4, .times = {}});
    }
  }));
  const SafetensorsFile file = SafetensorsFile::open(temp.path + "/run/gradients-2.safetensors");
  CHECK(file.names().size() == seen.size());
  CHECK(seen.size() == 8);
  for (const auto& [name, expected] : seen) {
    const std::vector<float> g = file.load(name).to_vector();
    CHECK(std::vector<double>(g.begin(), g.end()) == expected);
  }
  for (const char* other : {"1", "3"})
    CHECK(!std::filesystem::exists(concat(temp.path, "/run/gradients-", other, ".safetensors")));
}

TEST_CASE(
    "training log: rejected exchanges are counted in the result, and what all ranks processed") {
  Context context;
  const TempFolder temp;
  expect_none(run_ranks(2, [&](Communicator& comm) {
    CommonOptions o;
    o.compress = "scalecom:rate=10";
    o.print_freq = 2;  // losses and units are summed after steps 2, 4 and 5
    Net net(1);
    DataParallelOptimizer optimizer(
        net.store, make_sgd({}), comm, {}, {.bucket_bytes = 1 << 20, .control_words = true},
        make_reducer(parse_compress(o.compress), {.min_compress = 100}, net.store));
    TrainingLog log({.program = "test", .rate_key = "rows_per_s"}, o, net.store, optimizer, nullptr,
                    nullptr);
    for (int step = 0; step < 5; ++step) {
      optimizer.begin_step(0.1);
      for (Parameter& p : net.store.parameters()) {
        p.next_beta();
        fill(p.grad, step > 2 && comm.rank() == 1 ? NAN : 1.0f);
        optimizer.ready(p);
        optimizer.weights_free(p);
      }
      StepFacts facts{.loss = 1, .lr = 0.1, .units = comm.rank() == 0 ? 1 : 3, .times = {}};
      facts.times.data = step + 1;
      if (!log.finish_step(optimizer.finish_step(), facts)) throw Error("the run has ended");
    }
    log.finish_epoch();
    log.finish("");
    if (log.result().rejected_buckets != 2)
      throw Error(concat(log.result().rejected_buckets, " are counted"));
    if (const double rate = log.result().rate; std::abs(rate - 4.0 * 4 / (2 + 3 + 4 + 5)) > 1e-12)
      throw Error(concat(rate, " units a second, from the second step on"));
    const auto summary = final_json(log.result(), {}, "rows_per_s", 1, "");
    if (summary.at("rejected_buckets") != 2) throw Error(summary.dump());
  }));
}

TEST_CASE("progress: lines every print_freq steps where there is no terminal") {
  const TempFolder temp;
  const std::string path = temp.path + "/out";
  for (const bool quiet : {false, true}) {
    FILE* out = std::fopen(path.c_str(), "wb");
    {
      Progress progress({.total_steps = 10, .print_freq = 4, .quiet = quiet, .out = out});
      for (int i = 1; i <= 10; ++i) progress.step(i, 1, 0.5, 0.1, 8);
      progress.note("done");
    }
    std::fclose(out);
    const std::string text = read(path);
    CHECK(contains(text, "step 4/10  loss 0.5000  lr 0.1") != quiet);
    CHECK(contains(text, "step 8/10") != quiet);
    CHECK_FALSE(contains(text, "step 5/10"));
    CHECK_FALSE(contains(text, "\r"));
    CHECK(contains(text, "done\n") != quiet);
  }
  CHECK(format_duration(3727) == "1:02:07");
  CHECK(format_duration(59.6) == "1:00");
}

TEST_CASE("progress: a round of local steps counts with its exchange") {
  const TempFolder temp;
  const std::string path = temp.path + "/out";
  FILE* out = std::fopen(path.c_str(), "wb");
  {
    Progress progress({.total_steps = 450, .print_freq = 1, .out = out});
    for (int i = 1; i <= 450; ++i) {
      progress.exchanged(i % 100 == 0 ? 80000 : 0, i % 100 == 0 ? 800 : 0, 0, 1);
      progress.step(i, 1, 0.5, 0.1, 8);
    }
  }
  std::fclose(out);
  const std::string text = read(path);
  CHECK_FALSE(contains(text.substr(0, text.find("step 100/")), "ratio"));
  for (const char* step : {"step 100/", "step 199/", "step 200/", "step 450/"}) {
    const std::string line = text.substr(text.find(step));
    CHECK_MESSAGE(contains(line.substr(0, line.find('\n')), "  ratio 100  "), line);
  }
}

TEST_CASE("progress: the rate is that of the last steps") {
  const TempFolder temp;
  const std::string path = temp.path + "/out";
  constexpr int kSteps = 2000;
  FILE* out = std::fopen(path.c_str(), "wb");
  const double begin = steady_seconds();
  {
    Progress progress({.total_steps = kSteps, .print_freq = kSteps, .out = out});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    for (int i = 1; i <= kSteps; ++i) progress.step(i, 1, 0.5, 0.1, 8);
  }
  std::fclose(out);
  const double mean = 8 * kSteps / (steady_seconds() - begin);
  const std::string text = read(path), lr = "lr 0.1  ";
  const size_t at = text.find(lr);
  REQUIRE(at != std::string::npos);
  CHECK_MESSAGE(std::stod(text.substr(at + lr.size())) > 2 * mean, text);
}
