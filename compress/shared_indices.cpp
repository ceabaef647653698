#include "compress/shared_indices.h"

#include "compress/codecs/sparse_kernels.h"
#include "core/shared_kernel.h"

namespace heddle {

bool SharedIndices::exchange(Exchange& e) {
  const std::vector<Tensor> chosen = choose(e);
  NamedTensors sums = e.dense;
  {
    const TraceRange range("compress", "take values");
    for (size_t i = 0; i < chosen.size(); ++i) {
      const Tensor values = Tensor::empty_on(e.device, chosen[i].shape());
      HEDDLE_DISPATCH(e.device, gather(e.compressed[i].tensor, chosen[i], values));
      explain_selection(e.compressed[i], values);
      sums.emplace_back(e.compressed[i].name(), values);
    }
  }
  if (!all_reduce(e, sums)) return false;
  const TraceRange range("compress", "residuals, sums");
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Item& item = e.compressed[i];
    feedback_->keep_unsent(item.name(), item.sum, chosen[i]);
    HEDDLE_DISPATCH(e.device, scatter(sums[e.dense.size() + i].second, chosen[i], item.sum));
  }
  return true;
}

}  // namespace heddle
