// Exchanges of several ranks on two devices, as in test_gpu.cpp: every codec's sums and residuals,
// learners that share a device, NCCL, and memory that two streams use.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <thread>
#include <utility>

#ifdef HEDDLE_CUDA
#include "comm/nccl_communicator.h"
#endif
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/error_feedback.h"
#include "core/kernels.h"
#include "core/streams.h"
#include "optim/decentralized.h"
#ifdef HEDDLE_SIMULATED_GPU
#include "tests/simulated_gpu/device.h"
#endif
#include "tests/compare.h"
#include "tests/gradcheck.h"
#include "tests/learner_net.h"

using namespace heddle;

namespace {

constexpr const char* kSpecs[] = {
    "none",
    "bf16",
    "fp16",
    "topk:density=0.02",
    "topk:density=0.3",
    "randomk:density=0.02",
    "scalecom:rate=50",
    "scalecom:rate=3",
    "scalecom:rate=3,select=exact",
    "topk:density=0.3,indices=plain",
    "scalecom:rate=50,values=bf16",
    "topk:density=0.3,values=bf16",
    "scalecom:rate=30,beta=0.3,select=exact",
    "scalecom:rate=auto",
    "adacomp:bin=50",
    "adacomp:bin=3,scale=bin",
    "lgc:density=0.02,train=2,gate=10",
    "lgc:density=0.02,train=2,order=index,gate=10,codec=paper,refresh=2",
    "qsgd:bits=4,bucket=64",
    "qsgd:bits=3,rounding=nearest"};

// Returns sums and residuals of four steps of three ranks; in the third step one rank has NaN,
// in fc.weight, which is then NaN on all ranks.
Results reduce_steps(const std::string& spec) {
  const ContextOptions of_rank = Context::current().options();
  std::vector<Results> seen(3);
  expect_none(run_ranks(
      3,
      [&](Communicator& comm) {
        ParameterStore store;
        store.add("conv1.weight", {40, 3, 3, 3}, constant_init(0));
        store.add("conv2.weight", {16, 8, 9, 3}, constant_init(0));
        store.add("fc.weight", {35, 50}, constant_init(0));
        store.add("fc.bias", {35}, constant_init(0));
        store.finalize(1);
        const auto reducer =
            make_reducer(parse_compress(spec), {.seed = 5, .min_compress = 100}, store);
        Ledger ledger;
        for (int64_t step = 0; step < 4; ++step) {
          GradientBucket bucket{{}, {}, step};
          for (Parameter& p : store.parameters()) {
            const auto seed = static_cast<uint64_t>(100 * step + 10 * comm.rank());
            p.grad.copy_from(random_tensor(p.shape(), seed + p.name.size()));
            if (step == 2 && comm.rank() == 1 && p.name == "fc.weight")
              fill(p.grad.slice(7, 8), std::numeric_limits<float>::quiet_NaN());
            bucket.parameters.insert(bucket.parameters.begin(), &p);
          }
          const Parameter& last = *bucket.parameters.back();
          bucket.flat =
              store.grads().slice(bucket.parameters.front()->offset, last.offset + last.size());
          Results& mine = seen[static_cast<size_t>(comm.rank())];
          const bool accepted = reducer->reduce(bucket, comm, ledger);
          mine.push_back({accepted ? 1.0f : 0.0f});
          for (const Parameter& p : store.parameters()) {
            const std::vector<float> g = p.grad.to_vector();
            const bool nan = std::ranges::any_of(g, [](float x) { return std::isnan(x); });
            if (nan == (accepted || p.name != "fc.weight")) throw Error("wrong culprit: " + p.name);
            if (accepted) mine.push_back(g);
          }
          for (const auto& [name, x] : reducer->named_state()) mine.push_back(x.to_vector());
        }
      },
      {.timeout_s = 30}, of_rank));
  Results out;
  for (Results& mine : seen) std::move(mine.begin(), mine.end(), std::back_inserter(out));
  return out;
}

// Returns the weights of three ranks on a ring after three steps.
Results peer_steps(const std::string& innovation) {
  const ContextOptions of_rank = Context::current().options();
  Results seen(3);
  expect_none(run_ranks(
      3,
      [&](Communicator& comm) {
        ParameterStore store;
        store.add("conv.weight", {16, 8, 3, 3}, uniform_init(1));
        store.add("fc.weight", {35, 50}, uniform_init(1));
        store.add("fc.bias", {35}, constant_init(0));
        store.finalize(1);
        DecentralizedOptimizer optimizer(
            store, make_sgd({.momentum = 0.5}), comm, {},
            {.innovation = innovation, .resync = 2, .bucket_bytes = 1000});
        for (uint64_t step = 0; step < 3; ++step) {
          optimizer.begin_step(0.1);
          for (auto p = store.parameters().rbegin(); p != store.parameters().rend(); ++p) {
            p->grad.copy_from(random_tensor(p->shape(), 10 * step + to_size(comm.rank())));
            p->written = true;
            optimizer.ready(*p);
            optimizer.weights_free(*p);
          }
          (void)optimizer.finish_step();
        }
        seen[to_size(comm.rank())] = store.values().to_vector();
      },
      {.timeout_s = 30}, of_rank));
  return seen;
}

}  // namespace

TEST_CASE("kernels: memory released by one stream is not overwritten by a faster one") {
  Context context(subject());
  const std::vector<float> values = random_tensor({1 << 20}, 1).to_vector();
  Tensor x = Tensor::from(values).to(context.device());
  const Tensor y = Tensor::empty_like(x);
  wait_for_stream();
  for (int i = 0; i < 50; ++i) y.copy_from(x);
  x = {};
  std::thread([&] {
    const ContextScope scope(context);
    const SideStream side(StreamUse::exchange);
    const Tensor z = Tensor::empty_like(y);
    fill(z, 7);
    wait_for_stream();
  }).join();
  CHECK(y.to_vector() == values);
}

TEST_CASE("kernels: host memory may be reused right after a copy") {
  Context context(subject());
  const Tensor busy = Tensor::empty({1 << 22});
  for (const int64_t n : {100, 16385, 1 << 18, 1 << 22}) {
    const Tensor host = random_tensor({n}, 1).to(Device{});
    const std::vector<float> values = host.to_vector();
    for (int i = 0; i < 200; ++i) fill(busy, static_cast<float>(i));
    const Tensor there = Tensor::empty({n});
    there.copy_from(host);
    host.fill_zero();
    there.clone().copy_from(host);  // no copy overwrites what an earlier one has yet to read
    CHECK(there.to_vector() == values);
  }
}

TEST_CASE("kernels: pinned copies of host memory are released once the GPU has read them") {
  Context context(subject());
  if (!context.device().is_cuda()) return;
  const Tensor host = random_tensor({1000}, 1).to(Device{}), there = Tensor::empty({1000});
  for (int i = 0; i < 50; ++i) there.copy_from(host);
  wait_for_stream();
  there.copy_from(host);
  CHECK(context.pinned_pool()->bytes_in_use() <= 4096);
}

// The simulated GPU obeys the variable; on a GPU this shows no more than the tests above.
TEST_CASE("kernels: host memory may be reused after a copy where there is no pinned memory") {
  setenv("SIMULATED_PINNED_MIB", "0", 1);
  Context context(subject());
  const Tensor host = random_tensor({1000}, 1).to(Device{}), there = Tensor::empty({1000});
  const std::vector<float> values = host.to_vector();
  there.copy_from(host);
  host.fill_zero();
  unsetenv("SIMULATED_PINNED_MIB");
  CHECK(there.to_vector() == values);
}

TEST_CASE("kernels: the largest magnitude where there are many chunks") {
  Context context(subject());
  for (const float largest : {NAN, -INFINITY, 50.0f})
    for (const int64_t at : {0, 130000, 262142}) {
      ErrorFeedback feedback;
      const Tensor g = random_tensor({262143}, 3);
      fill(g.slice(at, at + 1), largest);
      const Tensor found = feedback.compensate_swapping("w", g, 2).magnitudes;
      CHECK(largest_magnitude_of({found}) == magnitude(largest));
      CHECK(largest_magnitude_of({random_tensor({5}, 1), found, found}) == magnitude(largest));
    }
}

TEST_CASE("kernels, compare: exchanges of three ranks, bit for bit") {
  for (const char* spec : kSpecs)
    compare("exchange", spec, DType::f32, [&] { return reduce_steps(spec); });
}

#ifdef HEDDLE_SIMULATED_GPU
// Each kernel or copy takes the host some microseconds to start: an exchange must not start several
// for every layer. And while the host waits it starts none: a lone rank may only wait for the sums.
TEST_CASE("exchange of many layers: work that the GPU is given") {
  Context context(subject());
  if (!context.device().is_cuda()) return;
  const auto work_of = [](const char* spec, int layers, int64_t waits_for) {
    ParameterStore store;
    for (int i = 0; i < layers; ++i) {
      store.add(concat("conv", i, ".weight"), {16, 8, 3, 3}, constant_init(0));
      store.add(concat("bn", i, ".weight"), {16}, constant_init(0));
      store.add(concat("bn", i, ".bias"), {16}, constant_init(0));
    }
    store.finalize(1);
    const auto comm = make_solo();
    const auto reducer = make_reducer(parse_compress(spec), {.min_compress = 100}, store);
    Ledger ledger;
    int64_t before = 0, waits = 0;
    for (int64_t step = 0; step < 2; ++step) {  // the first makes the residuals
      store.grads().copy_from(random_tensor(store.grads().shape(), to_size(step)));
      GradientBucket bucket{{}, {}, step};
      for (Parameter& p : store.parameters())
        bucket.parameters.insert(bucket.parameters.begin(), &p);
      bucket.flat = store.grads();
      before = simulated::work_started;
      waits = simulated::waits;
      CHECK(reducer->reduce(bucket, *comm, ledger));
    }
    CHECK(simulated::waits - waits == waits_for);
    return simulated::work_started - before;
  };
  struct Case {
    const char* spec;
    int64_t ten, thirty_more, waits;  // work for ten layers, for thirty more; waits of the host
  };
  for (const Case& c :
       {Case{"scalecom:rate=50", 12, 5, 1}, Case{"qsgd:bits=4", 12, 13, 1}, Case{"bf16", 12, 13, 1},
        Case{"powersgd:rank=2", 61, 154, 2}}) {  // waits for sums of P, too
    const int64_t few = work_of(c.spec, 10, c.waits), many = work_of(c.spec, 40, c.waits);
    MESSAGE(std::string(c.spec), ", 10 layers: ", few, ", 40 layers: ", many);
    CHECK(few <= c.ten);
    CHECK(many - few <= c.thirty_more);
  }
}

TEST_CASE("update of layers with and without a residual: work that the GPU is given") {
  Context context(subject());
  if (!context.device().is_cuda()) return;
  ParameterStore store;
  for (int i = 0; i < 40; ++i) store.add(concat("w", i), {50}, constant_init(1));
  store.finalize(1);
  Optimizer optimizer(store, make_sgd({.momentum = 0.5}));
  optimizer.begin_step(0.1);
  bool from_residual = false;
  for (Parameter& p : store.parameters()) {
    fill(p.grad, 1);
    p.written = true;
    optimizer.ready(p, from_residual = !from_residual);
  }
  const int64_t before = simulated::work_started;
  (void)optimizer.finish_step();
  CHECK(simulated::work_started - before <= 6);
}
#endif

// A library computes PowerSGD's products, with sums in a different order.
TEST_CASE("compare: PowerSGD exchanges of three ranks") {
  compare("exchange of factors", "powersgd:rank=2", DType::f32,
          [&] { return reduce_steps("powersgd:rank=2"); });
}

TEST_CASE("compare: learners that talk to neighbours only") {
  // A code that rounds could round differently after an update that does.
  compare("peers", "none", DType::f32, [] { return peer_steps("none"); });
}

#ifdef HEDDLE_CUDA
// Each rank's thread has a GPU of its own; needs two.
TEST_CASE("NCCL: sums equal the threads', and a failed rank does not block the other") {
  const ContextOptions options = subject();
  if (!options.device.is_cuda() || cuda_device_count() < 2) {
    MESSAGE("skipped: needs two GPUs");
    return;
  }
  for (const bool fails : {false, true}) {
    const auto errors = run_ranks(2, [&](Communicator& control) {
      ContextOptions own = options;
      own.device.index = control.rank();
      Context context(own);
      const auto comm = make_nccl(control, 6);
      const auto mine = static_cast<float>(comm->rank() + 1);
      const Tensor x = Tensor::empty({1000}), all = Tensor::empty({2, 3}),
                   own_row = Tensor::empty({3});
      fill(x, mine);
      comm->all_reduce(x);
      if (x.to_vector() != std::vector<float>(1000, 3.0f)) throw Error("wrong sum");
      fill(own_row, mine);
      comm->all_gather(own_row, all);
      if (all.to_vector() != std::vector<float>{1, 1, 1, 2, 2, 2}) throw Error("not gathered");
      const Tensor rows = Tensor::empty({2, 3});
      comm->all_to_all(all, rows);
      if (rows.to_vector() != std::vector<float>(6, mine)) throw Error("not dealt out");
      comm->broadcast(rows, 1);
      if (rows.to_vector() != std::vector<float>(6, 2)) throw Error("not broadcast");
      const int other = 1 - comm->rank();
      const std::vector<float> expected(3, static_cast<float>(other + 1));
      const Tensor here = Tensor::empty({3}), host = Tensor::empty_on(Device{}, {3}),
                   nothing = Tensor::empty_on(Device{}, {0});
      comm->exchange({{other, own_row}}, {{other, here}});
      if (here.to_vector() != expected) throw Error("not exchanged");
      comm->exchange({{other, own_row.to(Device{})}}, {{other, host}});
      if (host.to_vector() != expected) throw Error("not exchanged on the host");
      comm->exchange({{other, nothing}}, {{other, nothing}});
      comm->exchange({}, {});
      host.fill_zero();
      if (comm->rank() == 0)
        comm->exchange({{other, own_row}}, {});
      else
        comm->exchange({}, {{other, host}});
      if (comm->rank() == 1 && host.to_vector() != expected) throw Error("not sent one way");
      if (fails && comm->rank() == 1) throw Error("this rank fails");
      if (fails) comm->all_reduce(x);
    });
    if (!fails) {
      expect_none(errors);
      continue;
    }
    CHECK(errors[1] == "this rank fails");
    CHECK(errors[0].find("no answer from the other ranks for 6 s") != std::string::npos);
  }
}
#endif

TEST_CASE("steps, compare: learners that share a device") {
  for (const char* spec : {"", "scalecom:rate=4", "qsgd:bits=8", "powersgd:rank=2"})
    compare("learners", concat("3 learners ", spec), DType::f32, [&]() -> Results {
      RunOptions o{.compress = spec};
      o.parallel.bucket_bytes = 1000;
      // A selection that differs by rounding would persist: compressed runs take a single step.
      o.steps = *spec == 0 ? 5 : 1;
      const ContextOptions of_rank = Context::current().options();
      const Results overlapped = train_ranks(3, o, of_rank);
      o.parallel.overlap = false;
      CHECK(train_ranks(3, o, of_rank) == overlapped);
      return overlapped;
    });
}
