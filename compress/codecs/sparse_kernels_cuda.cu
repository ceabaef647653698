// Selection on CUDA, at memory bandwidth where it counts: the largest of every chunk while the
// residual is added, and the exact k largest by radix select. Counters are integers, which may be
// added in any order: the same bits in every run.
#include <algorithm>

#include "compress/codecs/sparse_kernels.h"
#include "core/pack.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kThreads = 256;

__device__ uint32_t magnitude_bits(float v) {
  return __builtin_bit_cast(uint32_t, v) & 0x7fffffffu;
}

// One integer, larger for larger magnitudes and, among equal ones, for lower indices.
__device__ uint64_t sort_key(uint32_t magnitude, uint32_t index) {
  return static_cast<uint64_t>(magnitude) << 32 | static_cast<uint32_t>(~index);
}

__device__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// ------------------------------------------------------------------ the largest of every chunk
// m = m + g, and g = m as it was.
struct AccumulateValues {
  float *g, *m;
  template <int kPack>
  __device__ Pack<float, kPack> load(int64_t i) const {
    const auto residual = load_pack<kPack>(m + i), gradient = load_pack<kPack>(g + i);
    Pack<float, kPack> sum;
    for (int k = 0; k < kPack; ++k) sum.value[k] = gradient.value[k] + residual.value[k];
    store_pack<kPack>(g + i, residual);
    store_pack<kPack>(m + i, sum);
    return sum;
  }
};

struct PlainValues {
  const float* x;
  bool numbers;
  template <int kPack>
  __device__ Pack<float, kPack> load(int64_t i) const {
    auto v = load_pack<kPack>(x + i);
    for (int k = 0; k < kPack; ++k)
      if (numbers && v.value[k] != v.value[k]) v.value[k] = 0;
    return v;
  }
};

// The largest over `across` neighbouring threads, a power of two; valid in the first of them.
__device__ uint64_t join_threads(uint64_t mine, int across, uint64_t (&shared)[kThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[thread] = mine;
  for (int half = across / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread % across < half) shared[thread] = larger(shared[thread], shared[thread + half]);
  }
  return shared[thread];
}

constexpr int kTile = 4096, kLongestShort = kTile / 4;

// A block has a tile of whole chunks: it reads 16 bytes at a time, leaves magnitudes in shared
// memory, and then `across` threads look through each chunk. `tile` is a multiple of four chunks,
// so that tiles begin at multiples of 16 bytes.
template <class Values>
__global__ void largest_of_short(Values values, int64_t n, int64_t chunk, int64_t tile, int across,
                                 uint32_t* indices, uint32_t* magnitudes) {
  __shared__ uint32_t found[kTile];
  __shared__ uint64_t best[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = blockIdx.x * tile * chunk;
  const int length = static_cast<int>(n - begin < tile * chunk ? n - begin : tile * chunk);
  for (int i = 4 * thread; i < length; i += 4 * kThreads) {
    if (i + 4 <= length) {
      const auto v = values.template load<4>(begin + i);
      for (int k = 0; k < 4; ++k) found[i + k] = magnitude_bits(v.value[k]);
    } else {
      for (int k = i; k < length; ++k)
        found[k] = magnitude_bits(values.template load<1>(begin + k).value[0]);
    }
  }
  __syncthreads();
  const int groups = kThreads / across, lane = thread % across;
  const int size = static_cast<int>(chunk), rounds = static_cast<int>((tile + groups - 1) / groups);
  for (int round = 0; round < rounds; ++round) {
    const int c = round * groups + thread / across, from = c * size;
    const int to = from + size < length ? from + size : length;
    uint64_t mine = 0;
    if (c < tile)
      for (int i = from + lane; i < to; i += across)
        mine = larger(mine, sort_key(found[i], static_cast<uint32_t>(begin + i)));
    mine = join_threads(mine, across, best);
    if (lane > 0 || c >= tile || from >= length) continue;
    indices[blockIdx.x * tile + c] = ~static_cast<uint32_t>(mine);
    magnitudes[blockIdx.x * tile + c] = static_cast<uint32_t>(mine >> 32);
  }
}

// A block for each chunk.
template <class Values>
__global__ void largest_of_long(Values values, int64_t n, int64_t chunk, uint32_t* indices,
                                uint32_t* magnitudes) {
  __shared__ uint64_t best[kThreads];
  const int64_t begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  uint64_t mine = 0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    mine = larger(mine, sort_key(magnitude_bits(values.template load<1>(i).value[0]),
                                 static_cast<uint32_t>(i)));
  mine = join_threads(mine, kThreads, best);
  if (threadIdx.x > 0) return;
  indices[blockIdx.x] = ~static_cast<uint32_t>(mine);
  magnitudes[blockIdx.x] = static_cast<uint32_t>(mine >> 32);
}

uint32_t* words(const Tensor& x) { return reinterpret_cast<uint32_t*>(x.data<int32_t>()); }

template <class Values>
void largest(const Values& values, int64_t n, int64_t chunk, const Tensor& indices,
             const Tensor& magnitudes) {
  if (n == 0) return;
  const int64_t chunks = (n + chunk - 1) / chunk;
  if (chunk > kLongestShort) {
    launch("largest of chunks", largest_of_long<Values>, static_cast<unsigned>(chunks), kThreads,
           values, n, chunk, words(indices), words(magnitudes));
    return;
  }
  const int64_t tile = kTile / chunk / 4 * 4;
  int across = 1;
  while (2 * across * tile <= kThreads) across *= 2;
  launch("largest of chunks", largest_of_short<Values>,
         static_cast<unsigned>((chunks + tile - 1) / tile), kThreads, values, n, chunk, tile,
         across, words(indices), words(magnitudes));
}

// ------------------------------------------------------------------------- the k largest of all
// What is known of the k-th largest: its upper digits, and how many of those that agree with it so
// far are to be taken.
struct Threshold {
  uint32_t value;
  uint32_t equal;
};

constexpr int kDigits = 2048, kEach = 16, kPart = kThreads * kEach;

__device__ uint32_t rank_bits(float v) { return v != v ? 0 : magnitude_bits(v); }

// Of k values that begin anywhere. One block.
__global__ void begin_threshold(uint32_t k, uint32_t* count, Threshold* threshold) {
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += kThreads) count[d] = 0;
  if (threadIdx.x == 0) *threshold = {0, k};
}

// Adds to count[d] the number of those x that agree with the threshold so far and go on with d.
__global__ void count_digits(const float* x, int64_t n, const Threshold* threshold, int shift,
                             int width, uint32_t* count) {
  __shared__ uint32_t mine[kDigits];
  const int thread = static_cast<int>(threadIdx.x);
  for (int d = thread; d < kDigits; d += kThreads) mine[d] = 0;
  __syncthreads();
  const uint32_t upper = threshold->value >> (shift + width), mask = (1u << width) - 1;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + thread; i < n; i += stride) {
    const uint32_t r = rank_bits(x[i]);
    if (r >> (shift + width) == upper) atomicAdd(&mine[r >> shift & mask], 1u);
  }
  __syncthreads();
  for (int d = thread; d < kDigits; d += kThreads)
    if (mine[d] > 0) atomicAdd(&count[d], mine[d]);
}

// The next digit of the threshold: the largest with at least `equal` values from it on. One block,
// which clears the counters for the next digit.
__global__ void find_digit(uint32_t* count, int shift, Threshold* threshold) {
  __shared__ uint32_t sums[kThreads], all[kDigits];
  constexpr int kMine = kDigits / kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t sum = 0;
  for (int d = thread * kMine; d < (thread + 1) * kMine; ++d) {
    all[d] = count[d];
    sum += all[d];
    count[d] = 0;
  }
  sums[thread] = sum;
  __syncthreads();
  if (thread > 0) return;
  uint32_t equal = threshold->equal;
  int group = kThreads - 1;
  for (; group > 0 && equal > sums[group]; --group) equal -= sums[group];
  int digit = (group + 1) * kMine - 1;
  for (; digit > 0 && equal > all[digit]; --digit) equal -= all[digit];
  threshold->value |= static_cast<uint32_t>(digit) << shift;
  threshold->equal = equal;
}

// What is selected, in two classes: those in any case, and of the others the first `equal`.
struct AboveThreshold {
  const float* x;
  const Threshold* threshold;
  __device__ bool sure(int64_t i) const { return rank_bits(x[i]) > threshold->value; }
  __device__ bool maybe(int64_t i) const { return rank_bits(x[i]) == threshold->value; }
  __device__ uint32_t equal() const { return threshold->equal; }
};
struct Marked {
  const uint32_t* marks;
  __device__ bool sure(int64_t i) const { return marks[i] != 0; }
  __device__ bool maybe(int64_t) const { return false; }
  __device__ uint32_t equal() const { return 0; }
};

struct Counts {
  uint32_t sure, maybe;
};
__device__ Counts operator+(Counts a, Counts b) { return {a.sure + b.sure, a.maybe + b.maybe}; }

// The sum over the threads before this one; `total` becomes that over all.
__device__ Counts sum_before(Counts mine, Counts* total, Counts (&shared)[kThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[thread] = mine;
  for (int reach = 1; reach < kThreads; reach *= 2) {
    __syncthreads();
    const Counts left = thread >= reach ? shared[thread - reach] : Counts{0, 0};
    __syncthreads();
    shared[thread] = left + shared[thread];
  }
  __syncthreads();
  *total = shared[kThreads - 1];
  return {shared[thread].sure - mine.sure, shared[thread].maybe - mine.maybe};
}

// Of the kEach elements from `first` on.
template <class Selection>
__device__ Counts count_of(const Selection& selection, int64_t first, int64_t n) {
  Counts mine = {0, 0};
  for (int64_t i = first; i < first + kEach && i < n; ++i) {
    mine.sure += selection.sure(i) ? 1 : 0;
    mine.maybe += selection.maybe(i) ? 1 : 0;
  }
  return mine;
}

// How many there are in each part of kPart elements.
template <class Selection>
__global__ void count_parts(Selection selection, int64_t n, Counts* parts) {
  __shared__ Counts shared[kThreads];
  const int64_t first = blockIdx.x * static_cast<int64_t>(kPart) + threadIdx.x * kEach;
  Counts total;
  (void)sum_before(count_of(selection, first, n), &total, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// parts[p] = the sum of those before p. One block.
__global__ void add_parts(Counts* parts, int64_t count) {
  __shared__ Counts shared[kThreads];
  Counts before = {0, 0}, total;
  for (int64_t begin = 0; begin < count; begin += kThreads) {
    const int64_t p = begin + threadIdx.x;
    const Counts mine = p < count ? parts[p] : Counts{0, 0};
    const Counts here = sum_before(mine, &total, shared);
    if (p < count) parts[p] = before + here;
    before = before + total;
  }
}

template <class Selection>
__global__ void write_indices(Selection selection, int64_t n, const Counts* parts, int64_t k,
                              uint32_t* indices) {
  __shared__ Counts shared[kThreads];
  const int64_t first = blockIdx.x * static_cast<int64_t>(kPart) + threadIdx.x * kEach;
  Counts total;
  Counts before = parts[blockIdx.x] + sum_before(count_of(selection, first, n), &total, shared);
  const uint32_t equal = selection.equal();
  for (int64_t i = first; i < first + kEach && i < n; ++i) {
    const bool sure = selection.sure(i), maybe = selection.maybe(i);
    if (sure || (maybe && before.maybe < equal)) {
      const uint32_t at = before.sure + (before.maybe < equal ? before.maybe : equal);
      if (at < k) indices[at] = static_cast<uint32_t>(i);
    }
    before.sure += sure ? 1 : 0;
    before.maybe += maybe ? 1 : 0;
  }
}

template <class Selection>
void select(const Selection& selection, int64_t n, int64_t k, const Tensor& indices) {
  const int64_t parts = (n + kPart - 1) / kPart;
  const Tensor space = Tensor::empty_on(indices.device(), {parts}, DType::i64);
  auto* counts = static_cast<Counts*>(space.raw());
  const auto blocks = static_cast<unsigned>(parts);
  launch("select: count", count_parts<Selection>, blocks, kThreads, selection, n, counts);
  launch("select: add", add_parts, 1, kThreads, counts, parts);
  launch("select: write", write_indices<Selection>, blocks, kThreads, selection, n, counts, k,
         words(indices));
}

// ----------------------------------------------------------------------------- indices as bits
struct Mark {
  const uint32_t* indices;
  uint32_t* marks;
  int64_t n;
  __device__ void operator()(int64_t j) const {
    if (indices[j] < n) marks[indices[j]] = 1;
  }
};

// A byte holds the ends of up to nine values.
struct PackByte {
  const uint32_t* values;
  int64_t n, step;
  int bits;
  uint8_t* bytes;
  __device__ void operator()(int64_t j) const {
    int64_t i = 8 * j / bits;
    int skip = static_cast<int>(8 * j - i * bits), filled = 0;
    uint32_t out = 0;
    for (; filled < 8 && i < n; ++i, skip = 0) {
      out |= (values[i] - static_cast<uint32_t>(i * step)) >> skip << filled;
      filled += bits - skip;
    }
    bytes[j] = static_cast<uint8_t>(out);
  }
};

struct UnpackValue {
  const uint8_t* bytes;
  int64_t step;
  int bits;
  uint32_t* values;
  __device__ void operator()(int64_t i) const {
    const int64_t first = i * bits / 8;
    const int skip = static_cast<int>(i * bits - 8 * first);
    uint64_t window = 0;
    for (int k = 0; 8 * k < skip + bits; ++k)
      window |= static_cast<uint64_t>(bytes[first + k]) << 8 * k;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    values[i] = static_cast<uint32_t>(window >> skip & mask) + static_cast<uint32_t>(i * step);
  }
};

void pack(const Tensor& values, int bits, int64_t step, const Tensor& bytes) {
  for_each(bytes.size(), PackByte{words(values), values.size(), step, bits, bytes.data<uint8_t>()});
}

void unpack(const Tensor& bytes, int bits, int64_t step, const Tensor& values) {
  for_each(values.size(), UnpackValue{bytes.data<uint8_t>(), step, bits, words(values)});
}

}  // namespace

void accumulate_residual(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& indices,
                         const Tensor& magnitudes) {
  largest(AccumulateValues{g.data<float>(), m.data<float>()}, g.size(), chunk, indices, magnitudes);
}

void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& indices,
                       const Tensor& magnitudes) {
  largest(PlainValues{x.data<float>(), numbers}, x.size(), chunk, indices, magnitudes);
}

void select_top(const Tensor& x, int64_t k, const Tensor& indices) {
  const int64_t n = x.size();
  if (k <= 0) return;
  const Tensor space = Tensor::empty_on(x.device(), {kDigits + 2}, DType::i32);
  auto* count = words(space);
  auto* threshold = reinterpret_cast<Threshold*>(count + kDigits);
  launch("select: begin", begin_threshold, 1, kThreads, static_cast<uint32_t>(k), count, threshold);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((n + kPart - 1) / kPart, 1024));
  for (const auto& [shift, width] : {std::pair{20, 11}, {9, 11}, {0, 9}}) {
    launch("select: digits", count_digits, blocks, kThreads, x.data<float>(), n, threshold, shift,
           width, count);
    launch("select: threshold", find_digit, 1, kThreads, count, shift, threshold);
  }
  select(AboveThreshold{x.data<float>(), threshold}, n, k, indices);
}

void encode_indices(const IndexCode& code, const Tensor& indices, const Tensor& bytes) {
  if (!code.is_bitmap()) return pack(indices, code.width(), code.chunk, bytes);
  const Tensor marks = Tensor::empty_on(indices.device(), {code.n}, DType::i32);
  marks.fill_zero();
  for_each(indices.size(), Mark{words(indices), words(marks), code.n});
  pack(marks, 1, 0, bytes);
}

Tensor decode_indices(const IndexCode& code, const Tensor& bytes) {
  const Tensor indices = Tensor::empty_on(bytes.device(), {code.k}, DType::i32);
  if (!code.is_bitmap()) {
    unpack(bytes, code.width(), code.chunk, indices);
    return indices;
  }
  const Tensor marks = Tensor::empty_on(bytes.device(), {code.n}, DType::i32);
  unpack(bytes, 1, 0, marks);
  if (code.k > 0) select(Marked{words(marks)}, code.n, code.k, indices);
  return indices;
}

}  // namespace heddle::HEDDLE_BACKEND
