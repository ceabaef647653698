#include "optim/control_words.h"

#include <algorithm>

#include "compress/reducer.h"

namespace heddle {

Tensor ControlWords::own_values() const {
  Tensor host = Tensor::empty_on(Device{}, {ParameterStore::kExtra});
  std::copy(own_.begin(), own_.end(), host.data<float>());
  return host;
}

void ControlWords::set_sums(const Tensor& host) {
  std::copy_n(host.data<float>(), kCount, sums_.begin());
}

void ControlWords::write(const Tensor& elements) const { elements.copy_from(own_values()); }

void ControlWords::read(const Tensor& elements) {
  set_sums(elements.to(Device{}));
  elements.fill_zero();
}

void ControlWords::sum_separately(const Tensor& elements, Communicator& comm, Ledger& ledger) {
  const Tensor host = own_values();
  ledger.book(comm, {{kControlWords, PayloadKind::control, 0}}, [&] { comm.all_reduce(host); });
  set_sums(host);
  elements.fill_zero();
}

void ControlWords::use_own() { std::copy(own_.begin(), own_.end(), sums_.begin()); }

}  // namespace heddle
