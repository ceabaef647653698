// Selection on CUDA: the largest of every chunk in the pass that adds the residual, and the exact k
// largest by radix select. Counters are integers, which may be added in any order: the same bits in
// every run.
#include <algorithm>

#include "compress/codecs/bits.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/block_reduce.cuh"
#include "core/pack.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kThreads = 256;

// ------------------------------------------------------------------ the largest of every chunk
// read() only loads, so that a thread can have several loads on their way before a store, which
// they might depend on for all that the compiler knows.

// Swaps: m = m + g, and g = the old m.
struct AccumulateValues {
  float *g, *m;
  template <int kPack>
  struct Read {
    Pack<float, kPack> residual, gradient;
  };
  template <int kPack>
  __device__ Read<kPack> read(int64_t i) const {
    return {load_pack<kPack>(m + i), load_pack<kPack>(g + i)};
  }
  template <int kPack>
  __device__ Pack<float, kPack> take(int64_t i, const Read<kPack>& read) const {
    Pack<float, kPack> sum;
    for (int k = 0; k < kPack; ++k) sum.value[k] = read.gradient.value[k] + read.residual.value[k];
    store_pack<kPack>(g + i, read.residual);
    store_pack<kPack>(m + i, sum);
    return sum;
  }
};

struct PlainValues {
  const float* x;
  bool numbers;
  template <int kPack>
  using Read = Pack<float, kPack>;
  template <int kPack>
  __device__ Read<kPack> read(int64_t i) const {
    return load_pack<kPack>(x + i);
  }
  template <int kPack>
  __device__ Pack<float, kPack> take(int64_t, Read<kPack> v) const {
    for (int k = 0; k < kPack; ++k)
      if (numbers && v.value[k] != v.value[k]) v.value[k] = 0;
    return v;
  }
};

__device__ int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Returns the magnitude of one value.
template <class Values>
__device__ uint32_t magnitude_at(const Values& values, int64_t i) {
  return magnitude(values.take(i, values.template read<1>(i)).value[0]);
}

constexpr int kTile = 4096;

// Searches `tile` chunks in each block: as many as make a piece of kTile elements, or one longer
// chunk piece by piece. Reads 16 bytes at a time where tiles begin at such addresses, keeps
// magnitudes in shared memory, and then `across` threads search each chunk.
template <class Values>
struct LargestOfChunks {
  Values values;
  int64_t n, chunk;
  int tile, across;
  uint32_t *indices, *magnitudes;

  __device__ void operator()(unsigned block) const {
    __shared__ uint32_t found[kTile];
    __shared__ uint64_t best[kThreads];
    constexpr int kEach = kTile / 4 / kThreads;
    typename Values::template Read<4> read[kEach];
    const int thread = static_cast<int>(threadIdx.x), lane = thread % across;
    const int groups = kThreads / across, size = static_cast<int>(chunk < kTile ? chunk : kTile);
    const int64_t first = to_int64(block) * tile * chunk, end = least(n, first + tile * chunk);
    uint64_t mine = 0;
    for (int64_t begin = first; begin < end; begin += kTile) {
      const int length = static_cast<int>(least(end - begin, kTile));
      const int packs = tile * chunk % 4 == 0 ? length / 4 : 0;
#pragma unroll
      for (int each = 0; each < kEach; ++each)
        if (const int i = thread + each * kThreads; i < packs)
          read[each] = values.template read<4>(begin + 4 * i);
#pragma unroll
      for (int each = 0; each < kEach; ++each) {
        const int i = thread + each * kThreads;
        if (i >= packs) continue;
        const auto v = values.take(begin + 4 * i, read[each]);
        for (int k = 0; k < 4; ++k) found[4 * i + k] = magnitude(v.value[k]);
      }
#pragma unroll 1
      for (int i = 4 * packs + thread; i < length; i += kThreads)
        found[i] = magnitude_at(values, begin + i);
      __syncthreads();
      for (int round = 0; round < tile; round += groups) {
        const int c = round + thread / across, from = c * size;
        const int to = from + size < length ? from + size : length;
        if (tile > 1) mine = 0;  // else it may be from the chunk's earlier pieces
        if (c < tile)
#pragma unroll 4
          for (int i = from + lane; i < to; i += across)
            mine = Larger()(mine, sort_key(found[i], static_cast<uint32_t>(begin + i)));
        const uint64_t largest = group_reduce(mine, Larger(), across, best);
        if (lane > 0 || c >= tile || from >= length) continue;
        indices[to_int64(block) * tile + c] = index_of_key(largest);
        magnitudes[to_int64(block) * tile + c] = magnitude_of_key(largest);
      }
    }
  }
};

template <class Values>
void largest(const Values& values, int64_t n, int64_t chunk, const Tensor& indices,
             const Tensor& magnitudes) {
  if (n == 0) return;
  const int64_t step = chunk % 4 == 0 ? 1 : 4;
  const int tile = static_cast<int>(std::max<int64_t>(kTile / (step * chunk) * step, 1));
  int across = 1;
  while (2 * across * tile <= kThreads) across *= 2;
  for_blocks(
      ceil_div(ceil_div(n, chunk), tile),
      LargestOfChunks<Values>{values, n, chunk, tile, across, words(indices), words(magnitudes)});
}

// ------------------------------------------------------------------------- the k largest of all
// The k-th largest, as far as its upper digits are known, and how many values are certainly above
// it. Zeros at first.
struct Threshold {
  uint32_t value;
  uint32_t above;
};

constexpr int kDigits = 2048, kEach = 16, kPart = kThreads * kEach;

__device__ uint32_t rank_bits(float v) { return v != v ? 0 : magnitude(v); }

// Adds to count[d] the number of those x whose digits so far equal the threshold's and whose next
// digit is d.
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

// Finds the next digit of the threshold: the largest that leaves at least k values at or above it.
// One block, which clears the counters for the next digit.
__global__ void find_digit(uint32_t* count, int shift, uint32_t k, Threshold* threshold) {
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
  uint32_t equal = k - threshold->above;
  int group = kThreads - 1;
  for (; group > 0 && equal > sums[group]; --group) equal -= sums[group];
  int digit = (group + 1) * kMine - 1;
  for (; digit > 0 && equal > all[digit]; --digit) equal -= all[digit];
  threshold->value |= static_cast<uint32_t>(digit) << shift;
  threshold->above = k - equal;
}

// Selections have two classes: `sure` elements are selected, and of those that are `maybe` the
// first equal().
struct AboveThreshold {
  const float* x;
  const Threshold* threshold;
  uint32_t k;
  __device__ bool sure(int64_t i) const { return rank_bits(x[i]) > threshold->value; }
  __device__ bool maybe(int64_t i) const { return rank_bits(x[i]) == threshold->value; }
  __device__ uint32_t equal() const { return k - threshold->above; }
};
struct Active {
  const float *x, *old;
  const uint32_t* magnitudes;
  float ahead;
  int64_t bin;
  __device__ bool sure(int64_t i) const {
    return is_active(x[i], old[i], ahead, magnitudes[i / bin]);
  }
  __device__ bool maybe(int64_t) const { return false; }
  __device__ uint32_t equal() const { return 0; }
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

// Returns the sum over the threads before this one; `total` becomes the sum over all.
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

// Counts the selected elements of kEach from `first` on.
template <class Selection>
__device__ Counts count_of(const Selection& selection, int64_t first, int64_t n) {
  Counts mine = {0, 0};
  for (int64_t i = first; i < first + kEach && i < n; ++i) {
    mine.sure += selection.sure(i) ? 1 : 0;
    mine.maybe += selection.maybe(i) ? 1 : 0;
  }
  return mine;
}

// Counts the selected elements of each part of kPart.
template <class Selection>
__global__ void count_parts(Selection selection, int64_t n, Counts* parts) {
  __shared__ Counts shared[kThreads];
  const int64_t first = blockIdx.x * static_cast<int64_t>(kPart) + threadIdx.x * kEach;
  Counts total;
  (void)sum_before(count_of(selection, first, n), &total, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// Replaces parts[p] by the sum of those before p, and parts[count] by the sum of all. One block.
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
  if (threadIdx.x == 0) parts[count] = before;
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

// Returns how many elements are selected before each part and, in the last row, of all: Counts, as
// (parts + 1) i64.
template <class Selection>
Tensor counts_before(const Selection& selection, int64_t n, Device device) {
  const int64_t parts = (n + kPart - 1) / kPart;
  Tensor space = Tensor::empty_on(device, {parts + 1}, DType::i64);
  auto* counts = static_cast<Counts*>(space.raw());
  launch("select: count", count_parts<Selection>, static_cast<unsigned>(parts), kThreads, selection,
         n, counts);
  launch("select: add", add_parts, 1, kThreads, counts, parts);
  return space;
}

template <class Selection>
void write_selected(const Selection& selection, int64_t n, const Tensor& counts,
                    const Tensor& indices) {
  if (indices.size() == 0) return;
  launch("select: write", write_indices<Selection>, static_cast<unsigned>(counts.size() - 1),
         kThreads, selection, n, static_cast<const Counts*>(counts.raw()), indices.size(),
         words(indices));
}

template <class Selection>
void select(const Selection& selection, int64_t n, const Tensor& indices) {
  write_selected(selection, n, counts_before(selection, n, indices.device()), indices);
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

// Packs offsets from multiples of `step`, the length of a chunk; step 0: indices.
struct PackByte {
  const uint32_t* values;
  int64_t n, step;
  int bits;
  uint8_t* bytes;
  __device__ void operator()(int64_t j) const {
    bytes[j] = packed_byte(n, bits, j,
                           [&](int64_t i) { return values[i] - static_cast<uint32_t>(i * step); });
  }
};

struct UnpackValue {
  const uint8_t* bytes;
  int64_t step;
  int bits;
  uint32_t* values;
  __device__ void operator()(int64_t i) const {
    values[i] = unpacked_value(bytes, bits, i) + static_cast<uint32_t>(i * step);
  }
};

PackByte pack(const Tensor& values, int bits, int64_t step, const Tensor& bytes) {
  return {words(values), values.size(), step, bits, bytes.data<uint8_t>()};
}

UnpackValue unpack(const Tensor& bytes, int bits, int64_t step, const Tensor& values) {
  return {bytes.data<uint8_t>(), step, bits, words(values)};
}

struct CopyWord {
  const uint32_t* from;  // null: zeros
  uint32_t* to;
  __device__ void operator()(int64_t i) const { to[i] = from == nullptr ? 0 : from[i]; }
};

}  // namespace

void add_and_swap(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& indices,
                  const Tensor& magnitudes) {
  largest(AccumulateValues{g.data<float>(), m.data<float>()}, g.size(), chunk, indices, magnitudes);
}

void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& indices,
                       const Tensor& magnitudes) {
  largest(PlainValues{static_cast<const float*>(x.raw()), numbers}, x.size(), chunk, indices,
          magnitudes);
}

void select_top(const Tensor& x, int64_t k, const Tensor& indices) {
  const int64_t n = x.size();
  if (k <= 0) return;
  const Tensor space = Tensor::empty_on(x.device(), {kDigits + 2}, DType::i32);
  auto* count = words(space);
  auto* threshold = reinterpret_cast<Threshold*>(count + kDigits);
  const auto wanted = static_cast<uint32_t>(k);
  space.fill_zero();
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((n + kPart - 1) / kPart, 1024));
  for (const auto& [shift, width] : {std::pair{20, 11}, {9, 11}, {0, 9}}) {
    launch("select: digits", count_digits, blocks, kThreads, x.data<float>(), n, threshold, shift,
           width, count);
    launch("select: threshold", find_digit, 1, kThreads, count, shift, wanted, threshold);
  }
  select(AboveThreshold{x.data<float>(), threshold, wanted}, n, indices);
}

Tensor select_active(const Tensor& x, const Tensor& old, float ahead, int64_t bin,
                     const Tensor& magnitudes) {
  const Active active{x.data<float>(), old.data<float>(), words(magnitudes), ahead, bin};
  const Tensor counts = counts_before(active, x.size(), x.device());
  const Tensor all = counts.slice(counts.size() - 1, counts.size()).to(Device{});
  Tensor indices =
      Tensor::empty_on(x.device(), {static_cast<const Counts*>(all.raw())->sure}, DType::i32);
  write_selected(active, x.size(), counts, indices);
  return indices;
}

void encode_indices(const IndexCode& code, const Tensor& indices, const Tensor& bytes) {
  if (!code.is_bitmap())
    return for_each_joined(bytes.size(), pack(indices, code.width(), code.chunk, bytes));
  const Tensor marks = Tensor::empty_on(indices.device(), {code.n}, DType::i32);
  marks.fill_zero();
  for_each(indices.size(), Mark{words(indices), words(marks), code.n});
  for_each(bytes.size(), pack(marks, 1, 0, bytes));
}

Tensor decode_indices(const IndexCode& code, const Tensor& bytes) {
  const Tensor indices = Tensor::empty_on(bytes.device(), {code.k}, DType::i32);
  if (!code.is_bitmap()) {
    for_each_joined(indices.size(), unpack(bytes, code.width(), code.chunk, indices));
    return indices;
  }
  const Tensor marks = Tensor::empty_on(bytes.device(), {code.n}, DType::i32);
  for_each(marks.size(), unpack(bytes, 1, 0, marks));
  if (code.k > 0) select(Marked{words(marks)}, code.n, indices);
  return indices;
}

void clear_words(const Tensor& x) {
  for_each_joined(x.size(), CopyWord{nullptr, static_cast<uint32_t*>(x.raw())});
}

void copy_words(const Tensor& from, const Tensor& to) {
  for_each_joined(to.size(), CopyWord{static_cast<const uint32_t*>(from.raw()),
                                      static_cast<uint32_t*>(to.raw())});
}

}  // namespace heddle::HEDDLE_BACKEND
