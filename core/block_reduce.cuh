// Reductions over the threads of a CUDA block in shared memory. The order is fixed by the numbers
// of the threads, so every run yields the same bits. Every thread of the block must call them; two
// calls may share their scratch memory.
//
//   __shared__ double scratch[kThreads];
//   const double total = block_reduce(mine, Plus(), scratch);   // all threads get it
//
//   thread      0   1   2   3           0 joins 2, 1 joins 3, then 0 joins 1:
//   value       a   b   c   d     ->    (a + c) + (b + d)
#pragma once

#include "core/bfloat16.h"
#include "core/scalar.h"

namespace heddle {

struct Plus {
  template <class V>
  HEDDLE_HD V operator()(V a, V b) const {
    return a + b;
  }
};

// The larger of two values; a NaN in `b` is ignored.
struct Larger {
  template <class V>
  HEDDLE_HD V operator()(V a, V b) const {
    return b > a ? b : a;
  }
};

#if defined(__CUDACC__) || defined(HEDDLE_EMULATED)
// Joins one value of each thread in a tree, separately for each group of `width` neighbouring
// threads; returns the group's result on the first thread of a group. kThreads and width: powers of
// two.
template <class V, int kThreads, class Join>
__device__ V group_reduce(V mine, Join join, int width, V (&scratch)[kThreads]) {
  const int thread = to_int(threadIdx.x);
  __syncthreads();  // an earlier call may still be reading
  scratch[thread] = mine;
  for (int half = width / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread % width < half) scratch[thread] = join(scratch[thread], scratch[thread + half]);
  }
  return scratch[thread];
}

// Joins one value of each of the kThreads threads; returns the result on all of them.
template <class V, int kThreads, class Join>
__device__ V block_reduce(V mine, Join join, V (&scratch)[kThreads]) {
  group_reduce(mine, join, kThreads, scratch);
  __syncthreads();
  return scratch[0];
}

// Adds one value of each thread of a column (threadIdx.x) in a tree over the rows (threadIdx.y), a
// power of two; returns the sum on row 0.
template <class V, int kRows, int kColumns>
__device__ V sum_column(V mine, V (&scratch)[kRows][kColumns]) {
  __syncthreads();
  scratch[threadIdx.y][threadIdx.x] = mine;
  for (int half = kRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (to_int(threadIdx.y) < half)
      scratch[threadIdx.y][threadIdx.x] += scratch[threadIdx.y + half][threadIdx.x];
  }
  return scratch[threadIdx.y][threadIdx.x];
}
#endif

}  // namespace heddle
