// Shapes, tensors, the pool, the Context and the trace.
#include <doctest/doctest.h>

#include <omp.h>
#include <cstring>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "core/context.h"
#include "core/kernels.h"
#include "core/random.h"
#include "core/tensor.h"

using namespace heddle;

namespace {

// Allocates and frees at random, and checks that no other block overlaps.
void stress(Pool& pool, uint64_t seed, int rounds) {
  struct Held {
    unsigned char* p;
    size_t bytes;
    unsigned char pattern;
  };
  const Philox rng(seed, stream_id(Stream::sample));
  std::vector<Held> held;
  auto release = [&](size_t i) {
    const Held h = held[i];
    for (size_t k : {size_t{0}, h.bytes / 2, h.bytes - 1}) REQUIRE(h.p[k] == h.pattern);
    pool.release(h.p);
    held[i] = held.back();
    held.pop_back();
  };
  for (int i = 0; i < rounds; ++i) {
    if (held.size() > 40 || (!held.empty() && rng.below(4 * i, 3) == 0)) {
      release(rng.below(4 * i + 1, static_cast<uint32_t>(held.size())));
      continue;
    }
    // Mostly small, sometimes a few MiB.
    const size_t bytes = 1 + rng.below(4 * i + 2, rng.below(4 * i + 3, 10) == 0 ? 5000000 : 5000);
    auto* p = static_cast<unsigned char*>(pool.allocate(bytes));
    REQUIRE(reinterpret_cast<size_t>(p) % 256 == 0);
    const auto pattern = static_cast<unsigned char>(seed * 31 + i);
    for (size_t k : {size_t{0}, bytes / 2, bytes - 1}) p[k] = pattern;
    held.push_back({p, bytes, pattern});
  }
  while (!held.empty()) release(held.size() - 1);
}

}  // namespace

TEST_CASE("Pool: blocks never overlap, freed neighbours are merged") {
  Pool pool(Device{}, true);
  stress(pool, 1, 20000);
  CHECK(pool.bytes_in_use() == 0);
  const size_t reserved = pool.bytes_reserved();
  // A few segments of 32 MiB each, merged again: each serves a request of its full size.
  REQUIRE(reserved % (size_t{32} << 20) == 0);
  std::vector<void*> whole;
  for (size_t i = 0; i < reserved >> 25; ++i) whole.push_back(pool.allocate(size_t{32} << 20));
  CHECK(pool.bytes_reserved() == reserved);
  for (void* p : whole) pool.release(p);
  void* large = pool.allocate((size_t{40} << 20) + 1);
  CHECK(reinterpret_cast<size_t>(large) % 256 == 0);
  CHECK(pool.bytes_reserved() == reserved + (size_t{42} << 20));  // whole huge pages
  CHECK(pool.peak_bytes_in_use() >= size_t{40} << 20);
  pool.release(large);
  pool.reset_peak();
  CHECK(pool.peak_bytes_in_use() == 0);
  CHECK(pool.allocate(0) != nullptr);
  CHECK_THROWS_AS(pool.allocate(std::numeric_limits<size_t>::max()), Error);
  CHECK_THROWS_AS(pool.allocate((size_t{1} << 47) + 1), Error);
  // More than the machine has: the system would grant the pages, and kill the process that uses
  // them.
  CHECK(available_memory() > 0);
  CHECK(available_memory() < int64_t{1} << 46);
  const auto more = static_cast<size_t>(available_memory()) + (size_t{1} << 36);
  CHECK_THROWS_WITH_AS(pool.allocate(more), doctest::Contains("MiB are left on this machine"),
                       Error);
}

TEST_CASE("Pool: unused segments are released") {
  Pool pool(Device{}, true);
  constexpr size_t kSegment = size_t{32} << 20;
  void* first = pool.allocate(kSegment);
  void* second = pool.allocate(kSegment);
  void* third = pool.allocate(kSegment / 2);
  CHECK(pool.bytes_reserved() == 3 * kSegment);
  pool.trim();
  CHECK(pool.bytes_reserved() == 3 * kSegment);
  pool.release(second);
  pool.trim();
  CHECK(pool.bytes_reserved() == 2 * kSegment);
  CHECK(pool.bytes_in_use() == kSegment + kSegment / 2);
  std::memset(first, 1, kSegment);
  void* behind = pool.allocate(kSegment / 2);
  pool.release(third);
  pool.trim();  // the third segment's end is in use
  CHECK(pool.bytes_reserved() == 2 * kSegment);
  pool.release(first);
  pool.release(behind);
  pool.trim();
  CHECK(pool.bytes_reserved() == 0);
  stress(pool, 2, 2000);  // as before
  CHECK(pool.bytes_in_use() == 0);
  pool.trim();
  CHECK(pool.bytes_reserved() == 0);
}

TEST_CASE("Pool: without caching") {
  Pool pool(Device{}, false);
  stress(pool, 1, 2000);
  CHECK(pool.bytes_in_use() == 0);
  CHECK(pool.bytes_reserved() == 0);
  CHECK(pool.peak_bytes_in_use() > 0);
  void* block = pool.allocate(1000);
  CHECK(reinterpret_cast<size_t>(block) % 256 == 0);
  CHECK(pool.bytes_reserved() == 1000);
  pool.release(block);
  CHECK_THROWS_AS(pool.allocate(size_t{1} << 49), Error);
}

TEST_CASE("Pool: several threads") {
  Pool pool(Device{}, true);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) threads.emplace_back([&, t] { stress(pool, t + 10, 2000); });
  for (auto& thread : threads) thread.join();
  CHECK(pool.bytes_in_use() == 0);
}

TEST_CASE("Shape: extents, equality, overflow") {
  CHECK(Shape{}.elements() == 1);
  CHECK(Shape{2, 3, 0}.elements() == 0);
  CHECK(to_string(Shape{2, 3}) == "(2, 3)");
  CHECK(Shape{2, 3} == Shape(std::vector<int64_t>{2, 3}));
  CHECK_FALSE(Shape{2, 3} == Shape{2, 3, 1});
  const int64_t big = int64_t{1} << 31;
  CHECK(Shape{big, big / 8}.elements() == big * (big / 8));
  CHECK_THROWS_AS((Shape{big, big}), InputError);
  CHECK_THROWS_AS((Shape{big, big, big, big}), InputError);
  CHECK_THROWS_AS((Shape{std::numeric_limits<int64_t>::max()}), InputError);
  CHECK_THROWS_AS((Shape{1, -1}), InputError);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1}), InputError);
}

TEST_CASE("Tensor: views share memory, errors name shapes") {
  Context context;
  const Tensor x = Tensor::from({0, 1, 2, 3, 4, 5}, {3, 2});
  CHECK(x.unique());
  const Tensor row = x.slice(1, 3);
  CHECK_FALSE(x.unique());
  CHECK(row.shape() == Shape{2, 2});
  CHECK(row.to_vector() == std::vector<float>{2, 3, 4, 5});
  row.data<float>()[0] = 9;
  CHECK(x.reshape({6}).to_vector()[2] == 9);
  CHECK(x.slice(3, 3).size() == 0);
  CHECK(x.slice(1, 2).slice(0, 1).to_vector() == std::vector<float>{9, 3});
  for (auto [begin, end] : {std::pair{-1, 2}, {2, 1}, {0, 4}, {4, 4}})
    CHECK_THROWS_AS(x.slice(begin, end), InputError);
  CHECK_THROWS_AS(Tensor::from({1}, {}).slice(0, 1), InputError);
  CHECK_THROWS_AS(x.reshape({5}), InputError);
  CHECK_THROWS_AS(x.data<int32_t>(), InputError);
  CHECK_THROWS_AS(x.item(), InputError);
  CHECK_THROWS_AS(x.copy_from(Tensor::zeros({2, 3})), InputError);
  CHECK_THROWS_WITH(Tensor::zeros({}).copy_from(Tensor()), "copy: an undefined tensor");
  CHECK_THROWS_AS(Tensor::from({1, 2, 3}, {2}), InputError);
  CHECK_THROWS_WITH(dims<4>(x, "images"), "images: expected 4 axes, found shape (3, 2)");
  CHECK_THROWS_WITH(check_shape(x, {2, 3}, "w"), "w: expected shape (2, 3), found (3, 2)");
  CHECK_THROWS_AS(Tensor::empty({2, 3}, DType::f32, Layout::nhwc), InputError);
  CHECK_THROWS_AS(Tensor::empty({2, 17, 2, 2}, DType::f32, Layout::c16), InputError);
  const Tensor maps = Tensor::zeros({1, 16, 2, 2}, DType::f32, Layout::c16);
  CHECK_THROWS_AS(maps.reshape({64}), InputError);
  const Tensor copy = x.clone();
  copy.fill_zero();
  CHECK(x.to_vector()[2] == 9);
  CHECK(Tensor::zeros({}, DType::f32).item() == 0);
  CHECK(Tensor().to_vector().empty());
  CHECK_FALSE(Tensor().defined());
}

TEST_CASE("Tensor: outlives its Context; without a Context there is a clear error") {
  Tensor kept;
  {
    Context context;
    kept = Tensor::from({1, 2});
  }
  CHECK(kept.to_vector() == std::vector<float>{1, 2});
  CHECK_THROWS_WITH(Tensor::zeros({1}),
                    "no Context on this thread: make one first (core/context.h)");
  kept = {};
  Context outer({.threads = 1});
  {
    Context inner({.threads = 3});
    CHECK(&Context::current() == &inner);
    CHECK(omp_get_max_threads() == 3);
  }
  CHECK(&Context::current() == &outer);
  CHECK(omp_get_max_threads() == 1);
  std::thread([&] {
    CHECK_THROWS_AS(Context::current(), Error);
    ContextScope scope(outer);
    CHECK(&Context::current() == &outer);
    CHECK(Tensor::zeros({3}).size() == 3);
  }).join();
  CHECK_THROWS_AS(Context({.threads = -1}), InputError);
}

TEST_CASE("parse_device: accepted and refused texts") {
  CHECK(parse_device("cpu") == Device{});
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:1234567", "CPU", "cuda:-1"})
    CHECK_THROWS_AS(parse_device(text), InputError);
  if (cuda_device_count() == 0) {
    CHECK(parse_device("auto") == Device{});
    CHECK_THROWS_AS(parse_device("cuda"), InputError);
  }
}

TEST_CASE("Trace: the text is valid JSON, whatever the names") {
  Context context;
  { TraceRange off("forward", "not recorded"); }
  context.trace().start();
  { TraceRange range("forward", "a \"quoted\" \\ name\nwith a line"); }
  { TraceRange range("backward", "conv1.weight"); }
  std::thread([&] {
    ContextScope scope(context);
    TraceRange range("data", "batch 1");
  }).join();
  context.trace().stop();
  const auto parsed = nlohmann::json::parse(Trace::json(context.trace().events(3)));
  int ranges = 0;
  for (const auto& event : parsed["traceEvents"]) {
    CHECK(event["pid"] == 3);
    if (event["ph"] != "X") continue;
    ++ranges;
    CHECK(event["dur"].get<double>() >= 0);
  }
  CHECK(ranges == 3);
}

TEST_CASE("Trace: memory, and the events of an explained step, as marks") {
  Context context;
  { const Tensor first = Tensor::empty({1000}); }  // the pool has its memory
  Trace& trace = context.trace();
  trace.explain(true);
  explain("final", "conv1", [] { return Figures{}; });  // the trace is off
  trace.start();
  const auto held = [&] { return context.pool(Device{})->bytes_in_use(); };
  const size_t before = held();
  size_t during = 0;
  {
    TraceRange range("forward", "a");
    const Tensor x = Tensor::empty({1000});
    during = held();
    { TraceRange inner("forward", "b"); }
    { TraceRange inner("forward", "c"); }  // nothing has changed: no event
  }
  std::thread([&] {
    ContextScope scope(context);
    explain("select", "conv1", [] {
      return Figures{{"chosen", 12, Unit::count}, {"energy", NAN}, {"dense", 0, Unit::none}};
    });
  }).join();
  const auto parsed = nlohmann::json::parse(Trace::json(trace.events(2)));
  std::vector<size_t> in_use;
  std::map<int, std::string> tracks;
  std::vector<nlohmann::json> marks;
  for (const auto& event : parsed["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name")
      tracks[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "i") marks.push_back(event);
    if (event["ph"] != "C") continue;
    CHECK(event["name"] == "host memory");
    in_use.push_back(event["args"]["in use"]);
    const size_t reserved = context.pool(Device{})->bytes_reserved();  // 0: the pool keeps nothing
    if (reserved > 0) CHECK(in_use.back() + event["args"]["free"].get<size_t>() == reserved);
  }
  CHECK(during > before);
  CHECK(in_use == std::vector<size_t>{before, during, before});
  REQUIRE(marks.size() == 1);
  CHECK(marks[0]["name"] == "select: conv1");
  CHECK(tracks[marks[0]["tid"]] == "explain");
  const auto& figures = marks[0]["args"];
  CHECK(figures["chosen"] == 12);
  CHECK(figures["energy"] == "nan");
  CHECK(figures["dense"] == true);
  CHECK(figures["place"].get<std::string>().starts_with("tests/test_core_memory.cpp:"));
  CHECK(trace.take_notes().size() == 2);
}

TEST_CASE("Trace: arrows, all ranks in one text, bounded size") {
  Context context;
  Trace& trace = context.trace();
  trace.flow(Trace::Flow::begin, "backward", 7);  // off: nothing
  trace.start();
  // A point lies in the range that is open, comes next or came last on its track and thread, by
  // its kind.
  {
    TraceRange open("backward", "a");
    trace.flow(Trace::Flow::begin, "backward", 7);
  }
  trace.flow(Trace::Flow::pass, "comm", 7);
  { TraceRange other("update", "before"); }
  { TraceRange next("comm", "b"); }
  { TraceRange last("update", "c"); }
  trace.flow(Trace::Flow::end, "update", 7);
  std::thread([&] {
    ContextScope scope(context);
    TraceRange other("update", "another thread's");
  }).join();
  const auto parsed = nlohmann::json::parse(Trace::json(trace.events(0) + trace.events(1, 1e6)));
  std::string points;
  std::map<std::string, nlohmann::json> ranges, points_at;  // of rank 1 in the end
  std::set<std::string> tracks;
  std::set<std::string> ids;
  double first = 0;
  for (const auto& event : parsed["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "M") tracks.insert(event["args"]["name"]);
    if (phase == "M" || phase == "C") continue;
    if (phase == "X") {
      ranges[event["name"]] = event;
      continue;
    }
    points_at[phase] = event;
    points += phase;
    ids.insert(event["id"]);
    if (first == 0) first = event["ts"];
    if (event["pid"] == 1) CHECK(event["ts"].get<double>() > first + 9e5);  // shifted
  }
  CHECK(points == "stfstf");
  CHECK(ids == std::set<std::string>{"0x7", "0x10000000007"});  // one arrow for each rank
  for (const auto& [phase, range] :
       std::map<std::string, std::string>{{"s", "a"}, {"t", "b"}, {"f", "c"}}) {
    const std::string& part = phase;  // clang 14 captures no structured bindings
    CAPTURE(part);
    const auto &point = points_at[phase], &r = ranges[range];
    CHECK(point["tid"] == r["tid"]);
    CHECK(point["ts"].get<double>() >= r["ts"].get<double>());
    CHECK(point["ts"].get<double>() <= r["ts"].get<double>() + r["dur"].get<double>() + 0.002);
  }
  CHECK(tracks.contains("update 2"));
  for (size_t i = 0; i < Trace::kMaxEvents; ++i) trace.add("x", "comm", 0, 1);
  const std::string text = trace.events();
  CHECK(text.find("rank 0, 9 events left out") != std::string::npos);  // eight, and the memory
  CHECK(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) ==
        Trace::kMaxEvents + 5);  // and the names of four tracks and of the process
}
