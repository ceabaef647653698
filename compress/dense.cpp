#include "compress/dense.h"

#include <memory>
#include <vector>

#include "compress/families.h"
#include "core/kernels.h"

namespace heddle {
namespace {

// Family "none".
class Dense : public Reducer {
 public:
  const char* name() const override { return "none"; }
  bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) override {
    sum_dense(bucket, bucket.flat, comm, ledger);
    return all_finite(bucket.flat);
  }
};

}  // namespace

void sum_dense(const GradientBucket& bucket, const Tensor& flat, Communicator& comm,
               Ledger& ledger) {
  std::vector<PayloadPart> parts;
  for (const Parameter* p : bucket.parameters)
    parts.push_back({p->name, PayloadKind::values, p->size() * 4});
  if (bucket.control > 0)
    parts.push_back({kControlWords, PayloadKind::control, bucket.control * 4});
  ledger.book(comm, parts, [&] { comm.all_reduce(flat); });
}

std::unique_ptr<Reducer> make_dense(const ReducerSetup& /*setup*/) {
  return std::make_unique<Dense>();
}

}  // namespace heddle
