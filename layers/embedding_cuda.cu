// An embedding's gradient on CUDA, without the host, so that a step can be recorded: each position
// finds the next one of its token, and the first position of a token adds up along that chain, in
// the order of positions, as the CPU does.
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// links (N, 2): the next position of the token at position i, or N; 1 if it has not occurred
// before.
struct Link {
  const int32_t* tokens;
  int32_t* links;
  int64_t count;
  HEDDLE_HD void operator()(int64_t i) const {
    const int32_t token = tokens[i];
    int64_t next = i + 1, before = 0;
    while (next < count && tokens[next] != token) ++next;
    while (tokens[before] != token) ++before;
    links[2 * i] = static_cast<int32_t>(next);
    links[2 * i + 1] = before == i ? 1 : 0;
  }
};

template <class T>
struct AddAlong {
  const T* dy;
  const int32_t *tokens, *links;
  float* dweight;
  int64_t count, width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    if (links[2 * r + 1] == 0) return;
    float* to = dweight + tokens[r] * width + c;
    float sum = *to;
    for (int64_t i = r; i < count; i = links[2 * i]) sum += to_float(dy[i * width + c]);
    *to = sum;
  }
};

}  // namespace

void embedding_backward(const Tensor& dy, const Tensor& tokens, Parameter& weight) {
  if (weight.next_beta() == 0.0f) weight.grad.fill_zero();
  const int64_t count = tokens.size(), width = weight.shape()[1];
  const Tensor links = Tensor::empty_on(dy.device(), {count, 2}, DType::i32);
  for_each(count, Link{tokens.data<int32_t>(), links.data<int32_t>(), count});
  with_type(dy, [&]<class T>() {
    for_each_in_grid(count, width,
                     AddAlong<T>{dy.data<T>(), tokens.data<int32_t>(), links.data<int32_t>(),
                                 weight.grad.data<float>(), count, width});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
