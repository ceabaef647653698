#include "comm/group.h"

#include <algorithm>
#include <utility>

#include "comm/collectives.h"

namespace heddle {
namespace {

// The parent's messages, with the group's numbers for ranks.
class GroupTransport : public Transport {
 public:
  GroupTransport(Transport& parent, std::vector<int> ranks)
      : parent_(parent),
        ranks_(std::move(ranks)),
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
  void wait(uint64_t ticket) override { parent_.wait(ticket); }
  void withdraw() noexcept override { parent_.withdraw(); }
  void abort(const std::string& why, int exit_code) noexcept override {
    parent_.abort(why, exit_code);
  }
  double now() const override { return parent_.now(); }
  bool virtual_time() const override { return parent_.virtual_time(); }

 private:
  Transport& parent_;
  std::vector<int> ranks_;
  int rank_;
};

class GroupCommunicator : public MessageCommunicator {
 public:
  GroupCommunicator(MessageCommunicator& parent, const std::vector<int>& ranks)
      : MessageCommunicator(std::make_unique<GroupTransport>(parent.transport(), ranks),
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

std::unique_ptr<Communicator> make_group(Communicator& parent, std::vector<int> ranks) {
  auto* messages = dynamic_cast<MessageCommunicator*>(&parent);
  check(messages != nullptr, "groups of ranks: expected threads or MPI, found ", parent.name());
  std::vector<bool> seen(to_size(parent.size()));
  for (const int rank : ranks) {
    check(rank >= 0 && rank < parent.size() && !seen[to_size(rank)],
          "group: expected distinct ranks below ", parent.size(), ", found ", rank);
    seen[to_size(rank)] = true;
  }
  check(seen[to_size(parent.rank())], "group: expected rank ", parent.rank(), " among its ranks");
  return std::make_unique<GroupCommunicator>(*messages, ranks);
}

std::vector<int> first_ranks(const std::vector<int>& hosts) {
  std::vector<int> out;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (std::find(hosts.begin(), hosts.begin() + to_int64(rank), hosts[rank]) ==
        hosts.begin() + to_int64(rank))
      out.push_back(to_int(rank));
  return out;
}

}  // namespace heddle
