#include "optim/host_levels.h"

#include <algorithm>

#include "comm/group.h"

namespace heddle {
namespace {

// The ledger's name for what hosts send within themselves, besides the layers between them.
std::vector<PayloadPart> parts_within(const Tensor& x) {
  return {{"within hosts", PayloadKind::values, x.bytes()}};
}

}  // namespace

HostLevels::HostLevels(Communicator& comm, const std::vector<int>& hosts) {
  check(std::ssize(hosts) == comm.size(), "hosts: expected one number for each of ", comm.size(),
        " ranks, found ", hosts.size());
  const std::vector<int> first = first_ranks(hosts);
  hosts_ = to_int(first.size());
  check(hosts_ > 1, "hosts: expected at least two, found all ranks on one");
  std::vector<int> mine;
  for (int r = 0; r < comm.size(); ++r)
    if (hosts[to_size(r)] == hosts[to_size(comm.rank())]) mine.push_back(r);
  // While its first rank exchanges, the others wait for longer than any message takes. If a rank
  // hangs, the first ranks of other hosts notice.
  within_ = make_group(comm, mine, /*patient=*/true);
  if (mine.front() == comm.rank()) between_ = make_group(comm, first);
}

void HostLevels::set_tag(const std::string& tag, int64_t step) {
  for (Communicator* level : {within_.get(), between_.get()}) {
    if (level == nullptr) continue;
    level->set_tag(tag);
    level->set_step(step);
  }
}

void HostLevels::sum_within(const GradientBucket& bucket, Ledger& ledger) {
  if (within_->size() == 1) return;
  ledger.book(*within_, parts_within(bucket.flat), [&] { within_->all_reduce(bucket.flat); });
}

bool HostLevels::share(const GradientBucket& bucket, bool finite, Ledger& ledger) {
  if (within_->size() == 1) return finite;
  const Tensor flag = Tensor::empty_on(Device{}, {1}, DType::i32);
  flag.data<int32_t>()[0] = finite ? 1 : 0;
  ledger.book(*within_, {{"within hosts", PayloadKind::control, flag.bytes()}},
              [&] { within_->broadcast(flag, 0); });
  ledger.book(*within_, parts_within(bucket.flat), [&] { within_->broadcast(bucket.flat, 0); });
  return flag.data<int32_t>()[0] != 0;
}

}  // namespace heddle
