#include "compress/shared_indices.h"

#include "compress/codecs/sparse_kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"

namespace heddle {

bool sum_at_indices(Exchange& e, ErrorFeedback& feedback, const std::vector<Tensor>& indices) {
  NamedTensors sums = e.dense;
  {
    const TraceRange range("compress", "gather values");
    for (size_t i = 0; i < indices.size(); ++i) {
      const Tensor values = Tensor::empty_on(e.device, indices[i].shape());
      HEDDLE_DISPATCH(e.device, gather(e.compressed[i].tensor, indices[i], values));
      explain_selection(e.compressed[i], values);
      sums.emplace_back(e.compressed[i].name(), values);
    }
  }
  if (!all_reduce(e, sums)) return false;
  const TraceRange range("compress", "residuals, sums");
  for (size_t i = 0; i < indices.size(); ++i) {
    const Exchange::Item& item = e.compressed[i];
    feedback.keep_unsent(item.name(), item.old_residual(), indices[i]);
    HEDDLE_DISPATCH(e.device, scatter(sums[e.dense.size() + i].second, indices[i], item.sum));
  }
  return true;
}

}  // namespace heddle
