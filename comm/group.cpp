#include "comm/group.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "comm/collectives.h"

namespace heddle {
namespace {

// The parent's messages, with the group's numbers for ranks.
class GroupTransport : public Transport {
 public:
  GroupTransport(Transport& parent, std::vector<int> ranks, bool patient)
      : parent_(parent),
        ranks_(std::move(ranks)),
        patient_(patient),
        rank_(to_int(std::ranges::find(ranks_, parent.rank()) - ranks_.begin())) {}

  int rank() const override { return rank_; }
  int size() const override { return to_int(ranks_.size()); }
  const char* name() const override { return parent_.name(); }
  uint64_t post_send(int peer, const void* data, size_t bytes) override {
    return parent_.post_send(ranks_.at(to_size(peer)), data, bytes);
  }
  uint64_t post_receive(int peer, void* data, size_t bytes) override {
    return parent_.post_receive(ranks_.at(to_size(peer)), data, bytes);
  }
  void wait(uint64_t ticket) override {
    for (;;) {
      try {
        return parent_.wait(ticket);
      } catch (const CommTimeout&) {
        if (!patient_) throw;
      }
    }
  }
  void withdraw() noexcept override { parent_.withdraw(); }
  void abort(const std::string& why, int exit_code) noexcept override {
    parent_.abort(why, exit_code);
  }
  double now() const override { return parent_.now(); }
  bool virtual_time() const override { return parent_.virtual_time(); }
  std::vector<int> hosts() override {
    throw InputError("a group does not know its hosts: ask the communicator that it is a part of");
  }

 private:
  Transport& parent_;
  std::vector<int> ranks_;
  bool patient_;
  int rank_;
};

class GroupCommunicator : public MessageCommunicator {
 public:
  GroupCommunicator(MessageCommunicator& parent, const std::vector<int>& ranks, bool patient)
      : MessageCommunicator(std::make_unique<GroupTransport>(parent.transport(), ranks, patient),
                            parent.options()),
        parent_(parent) {
    count_in(parent);
  }

 protected:
  std::string who() const override {
    return concat("rank ", parent_.rank(), " of ", parent_.size(), " (", rank(), " of a group of ",
                  size(), ")");
  }

 private:
  const MessageCommunicator& parent_;
};

}  // namespace

std::unique_ptr<Communicator> make_patient(Communicator& parent) {
  if (dynamic_cast<MessageCommunicator*>(&parent) == nullptr) return nullptr;
  std::vector<int> ranks(to_size(parent.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto all = make_group(parent, ranks, /*patient=*/true);
  all->set_tag(parent.tag());
  return all;
}

std::unique_ptr<Communicator> make_group(Communicator& parent, const std::vector<int>& ranks,
                                         bool patient) {
  auto* messages = dynamic_cast<MessageCommunicator*>(&parent);
  check(messages != nullptr, "groups of ranks: expected threads or MPI, found ", parent.name());
  std::vector<bool> seen(to_size(parent.size()));
  for (const int rank : ranks) {
    check(rank >= 0 && rank < parent.size() && !seen[to_size(rank)],
          "group: expected distinct ranks below ", parent.size(), ", found ", rank);
    seen[to_size(rank)] = true;
  }
  check(seen[to_size(parent.rank())], "group: expected rank ", parent.rank(), " among its ranks");
  return std::make_unique<GroupCommunicator>(*messages, ranks, patient);
}

std::vector<int> host_numbers(const std::vector<int>& names) {
  std::map<int, int> numbers;
  std::vector<int> out;
  out.reserve(names.size());
  for (const int name : names)
    out.push_back(numbers.try_emplace(name, to_int(numbers.size())).first->second);
  return out;
}

std::vector<int> first_ranks(const std::vector<int>& hosts) {
  std::set<int> seen;
  std::vector<int> out;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (seen.insert(hosts[rank]).second) out.push_back(to_int(rank));
  return out;
}

}  // namespace heddle
