// Uses tensors and the texts that are part of the library. See CMakeLists.txt in this folder.
#include <core/context.h>
#include <core/tensor.h>
#include <data/text.h>

int main() {
  heddle::Context context;
  const heddle::Tensor x = heddle::Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3});
  if (heddle::embedded_sources().empty()) return 1;
  return x.slice(1, 2).to_vector() == std::vector<float>{4, 5, 6} ? 0 : 1;
}
