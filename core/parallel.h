// Loops and reductions over the threads of this learner. How a loop is split never changes its
// result; reductions add fixed chunks in order, so that theirs does not depend on the number of
// threads. Bodies must not throw.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/scalar.h"

namespace heddle {

// Calls body(begin, end) for pieces of [0, n) on several threads: at most ceil(n / grain) pieces,
// which begin at multiples of 64 if grain >= 64.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return;
  const int64_t pieces = std::min<int64_t>(omp_get_max_threads(), ceil_div(n, grain));
  if (pieces <= 1 || omp_in_parallel()) return body(int64_t{0}, n);
  const int64_t unit = grain >= 64 ? 64 : 1, blocks = ceil_div(n, unit);
  auto piece = [&](int64_t t, int64_t count) {
    const int64_t begin = blocks * t / count * unit;
    const int64_t end = std::min(n, blocks * (t + 1) / count * unit);
    if (begin < end) body(begin, end);
  };
#ifdef HEDDLE_TSAN  // libgomp's barriers are invisible to ThreadSanitizer: plain threads there
  std::vector<std::thread> threads;
  for (int64_t t = 1; t < pieces; ++t) threads.emplace_back([&, t] { piece(t, pieces); });
  piece(0, pieces);
  for (auto& thread : threads) thread.join();
#else
#pragma omp parallel num_threads(static_cast <int>(pieces))
  piece(omp_get_thread_num(), omp_get_num_threads());
#endif
}

// Returns the sum of map(begin, end) over chunks of fixed size of [0, n), added in order.
template <class T, class Map>
T parallel_reduce(int64_t n, T zero, Map&& map) {
  constexpr int64_t kChunk = 16384;
  const int64_t chunks = ceil_div(n, kChunk);
  if (chunks == 1) return map(int64_t{0}, n);
  std::vector<T> partial(chunks, zero);
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      partial[c] = map(c * kChunk, std::min(n, (c + 1) * kChunk));
  });
  T total = zero;
  for (const T& p : partial) total += p;
  return total;
}

}  // namespace heddle
