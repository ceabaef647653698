// The memory pool and the loops over threads, used from several threads at once. CI runs these
// under ThreadSanitizer: keep "pool" or "parallel" in the names.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "core/context.h"
#include "core/parallel.h"
#include "core/pool.h"
#include "core/tensor.h"

using namespace heddle;

TEST_CASE("pool: threads allocate, write and release at the same time") {
  Pool pool(Device{}, true);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<unsigned char*, size_t>> held;
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = 1 + (i * 7919u + t * 104729u) % 100000;
        auto* block = static_cast<unsigned char*>(pool.allocate(bytes));
        if (reinterpret_cast<uintptr_t>(block) % 256 != 0) ++wrong;
        std::memset(block, t + 1, bytes);
        held.emplace_back(block, bytes);
        if (held.size() < 8) continue;
        const auto [oldest, size] = held.front();
        for (size_t b = 0; b < size; ++b) wrong += oldest[b] != t + 1;
        pool.release(oldest);
        held.erase(held.begin());
      }
      for (const auto& [block, size] : held) pool.release(block);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(pool.bytes_in_use() == 0);
  CHECK(pool.peak_bytes_in_use() > 0);
}

TEST_CASE("pool: a tensor made on one thread may be destroyed on another") {
  Context context;
  for (int i = 0; i < 20; ++i) {
    Tensor x = Tensor::zeros({1000 + i});
    std::thread([moved = std::move(x)]() mutable { moved = Tensor(); }).join();
  }
  CHECK(context.pool(Device{})->bytes_in_use() == 0);
}

TEST_CASE("parallel_for visits every index once") {
  for (const int64_t n : {0, 1, 63, 64, 65, 1000, 100003}) {
    std::vector<int> visits(n, 0);
    parallel_for(n, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++visits[i];
    });
    int64_t once = 0;
    for (const int count : visits) once += count == 1;
    CHECK(once == n);
  }
}

TEST_CASE("parallel_reduce gives the same bits for any number of threads") {
  const int64_t n = 200001;
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = 1.0f / static_cast<float>(i + 1);
  const auto sum = [&] {
    return parallel_reduce<float>(n, 0.0f, [&](int64_t begin, int64_t end) {
      float part = 0;
      for (int64_t i = begin; i < end; ++i) part += x[i];
      return part;
    });
  };
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const float one = sum();
  omp_set_num_threads(3);
  const float three = sum();
  omp_set_num_threads(threads);
  CHECK(one == three);
  CHECK(one == doctest::Approx(12.7833).epsilon(1e-4));
}
