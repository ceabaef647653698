// An embedding's gradient on CUDA, without the host, so that a step can be recorded: positions are
// sorted by token, and the first one of a token adds up the token's others, in the order of
// positions, as the CPU does.
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// Each position's token, above 32 bits of the position: no two are equal.
HEDDLE_HD inline int32_t token_of(int64_t key) { return static_cast<int32_t>(key >> 32); }

constexpr int64_t kRun = 32;

// Makes keys, sorted within runs of kRun positions.
struct SortRuns {
  const int32_t* tokens;
  int64_t* keys;
  int64_t count;
  HEDDLE_HD void operator()(int64_t i) const {
    const int64_t begin = i / kRun * kRun;
    int64_t place = begin;
    for (int64_t k = begin; k < begin + kRun && k < count; ++k)
      place += tokens[k] < tokens[i] || (tokens[k] == tokens[i] && k < i) ? 1 : 0;
    keys[place] = (to_int64(tokens[i]) << 32) | i;
  }
};

// Merges pairs of adjacent sorted runs: a key moves on by as many as are smaller in the other run.
struct MergeRuns {
  const int64_t* from;
  int64_t *to, count, run;
  HEDDLE_HD void operator()(int64_t i) const {
    const int64_t own = i / run * run, pair = i / (2 * run) * (2 * run);
    const int64_t other = own == pair ? own + run : pair;
    int64_t smaller = 0, most = run < count - other ? run : count - other;
    while (smaller < most) {  // `most` may be negative: there is no other run
      const int64_t middle = (smaller + most) / 2;
      if (from[other + middle] < from[i])
        smaller = middle + 1;
      else
        most = middle;
    }
    to[pair + i - own + smaller] = from[i];
  }
};

template <class T>
struct AddRows {
  const T* dy;
  const int64_t* keys;
  float* dweight;
  int64_t count, width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    const int32_t token = token_of(keys[r]);
    if (r > 0 && token_of(keys[r - 1]) == token) return;
    float* to = dweight + token * width + c;
    float sum = *to;
    for (int64_t i = r; i < count && token_of(keys[i]) == token; ++i)
      sum += to_float(dy[static_cast<int32_t>(keys[i]) * width + c]);
    *to = sum;
  }
};

}  // namespace

void embedding_backward(const Tensor& dy, const Tensor& tokens, Parameter& weight) {
  if (weight.next_beta() == 0.0f) weight.grad.fill_zero();
  const int64_t count = tokens.size(), width = weight.shape()[1];
  Tensor keys = Tensor::empty_on(dy.device(), {count}, DType::i64),
         merged = Tensor::empty_like(keys);
  for_each(count, SortRuns{tokens.data<int32_t>(), keys.data<int64_t>(), count});
  for (int64_t run = kRun; run < count; run *= 2) {
    for_each(count, MergeRuns{keys.data<int64_t>(), merged.data<int64_t>(), count, run});
    std::swap(keys, merged);
  }
  with_type(dy, [&]<class T>() {
    for_each_in_grid(
        count, width,
        AddRows<T>{dy.data<T>(), keys.data<int64_t>(), weight.grad.data<float>(), count, width});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
