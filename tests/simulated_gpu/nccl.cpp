// NCCL of the simulated GPU, for ranks that are threads of one process: a collective is carried out
// once every rank's stream has reached it, by the last of them, in the order of ranks.
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "core/bfloat16.h"
#include "tests/simulated_gpu/device.h"

namespace simulated {

enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, exchange };

struct Part {  // of a point-to-point exchange
  char* data;
  size_t bytes;
  int peer;
};

struct Call {  // of one rank
  Kind kind;
  const char* from;
  char* to;
  size_t count;
  ncclDataType_t type;
  int root = 0;
  std::vector<Part> sent = {}, received = {};
};

struct Collective {
  std::map<int, Call> calls;  // by rank, as their streams come to it
  bool done = false;
};

struct Group {
  int size = 0;
  std::map<int, int> devices;  // by rank
  bool same_device = false;
  int ended = 0;  // ranks that have called ncclCommFinalize
  std::map<size_t, std::shared_ptr<Collective>> collectives;  // by number
};

namespace {

int version() {
  const char* text = std::getenv("SIMULATED_NCCL");
  return text == nullptr ? NCCL_VERSION_CODE : std::atoi(text);
}

bool may_share() {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version() >= 23000 && text != nullptr && std::atoi(text) != 0;
}

std::map<int, std::shared_ptr<Group>>& groups() {
  static auto& all = *new std::map<int, std::shared_ptr<Group>>;
  return all;
}

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt64:
      return 8;
    default:
      return 4;
  }
}

template <class T>
void add(void* sum, const void* x, size_t n) {
  for (size_t i = 0; i < n; ++i)
    static_cast<T*>(sum)[i] = static_cast<T>(static_cast<T*>(sum)[i] + static_cast<const T*>(x)[i]);
}

void add(void* sum, const void* x, size_t n, ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return add<float>(sum, x, n);
    case ncclInt32:
      return add<int32_t>(sum, x, n);
    case ncclInt64:
      return add<int64_t>(sum, x, n);
    case ncclUint8:
      return add<uint8_t>(sum, x, n);
    case ncclBfloat16: {
      auto* to = static_cast<heddle::bfloat16*>(sum);
      const auto* from = static_cast<const heddle::bfloat16*>(x);
      for (size_t i = 0; i < n; ++i)
        to[i] = heddle::bfloat16(static_cast<float>(to[i]) + static_cast<float>(from[i]));
      return;
    }
    default:
      std::abort();
  }
}

[[noreturn]] void give_up(const char* why) {  // a GPU would wait for ever, or mix up what it sends
  std::fprintf(stderr, "simulated NCCL: %s\n", why);
  std::abort();
}

// All ranks' streams have reached the collective.
void carry_out(const Group& group, Collective& c) {
  const Call& first = c.calls.begin()->second;
  for (const auto& [rank, call] : c.calls)
    if (call.kind != first.kind || call.type != first.type || call.root != first.root ||
        (call.kind != Kind::exchange && call.count != first.count))
      give_up("the ranks' calls differ");
  const size_t bytes = first.count * bytes_of(first.type);
  std::vector<char> sum;
  if (first.kind == Kind::all_reduce || first.kind == Kind::reduce_scatter) {
    const size_t all = first.kind == Kind::all_reduce ? 1 : static_cast<size_t>(group.size);
    sum.assign(first.from, first.from + bytes * all);
    for (auto next = std::next(c.calls.begin()); next != c.calls.end(); ++next)
      add(sum.data(), next->second.from, first.count * all, first.type);
  }
  for (auto& [rank, call] : c.calls) {
    const auto place = static_cast<size_t>(rank);
    switch (call.kind) {
      case Kind::all_reduce:
        std::memcpy(call.to, sum.data(), bytes);
        break;
      case Kind::reduce_scatter:
        std::memcpy(call.to, sum.data() + place * bytes, bytes);
        break;
      case Kind::broadcast:
        std::memmove(call.to, c.calls.at(first.root).from, bytes);
        break;
      case Kind::all_gather:
        for (auto& [r, to] : c.calls) std::memmove(to.to + place * bytes, call.from, bytes);
        break;
      case Kind::exchange: {
        std::map<int, size_t> taken;  // parts for each peer so far
        for (const Part& part : call.sent) {
          size_t skip = taken[part.peer]++;
          const Part* to = nullptr;
          for (const Part& r : c.calls.at(part.peer).received)
            if (r.peer == rank && skip-- == 0) to = &r;
          if (to == nullptr || to->bytes != part.bytes) give_up("what is sent is not received");
          std::memmove(to->data, part.data, part.bytes);
        }
        break;
      }
    }
  }
}

}  // namespace
}  // namespace simulated

using namespace simulated;

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0, device = 0;
  size_t calls = 0;
  bool ended = false;
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);  // lets go of this rank alone
};

namespace {

// Between ncclGroupStart and ncclGroupEnd.
struct Open {
  int depth = 0;
  ncclComm_t comm = nullptr;
  Stream* stream = nullptr;
  Call call{};
};
thread_local Open open_group;

ncclResult_t submit(ncclComm_t comm, Stream* stream, Call call) {
  if (stream == nullptr || stream->device != comm->device) return ncclInvalidArgument;
  const size_t bytes = call.count * bytes_of(call.type),
               all = bytes * static_cast<size_t>(comm->group->size);
  const bool scatters = call.kind == Kind::reduce_scatter, gathers = call.kind == Kind::all_gather;
  if (stream->recording != nullptr) {
    stream->spoiled = true;
    return ncclInvalidUsage;
  }
  if (call.kind != Kind::exchange && (!on_device(call.from, scatters ? all : bytes, comm->device) ||
                                      !on_device(call.to, gathers ? all : bytes, comm->device)))
    return ncclInvalidArgument;
  for (const auto* parts : {&call.sent, &call.received})
    for (const Part& part : *parts)
      if (!on_device(part.data, part.bytes, comm->device)) return ncclInvalidArgument;
  const auto group = comm->group;
  auto& collective = group->collectives[comm->calls++];
  if (collective == nullptr) collective = std::make_shared<Collective>();
  put(stream, [group, c = collective, call = std::move(call), rank = comm->rank,
               aborted = comm->aborted, come = false]() mutable {
    if (!come) c->calls.emplace(rank, std::move(call));
    come = true;
    if (!c->done && std::ssize(c->calls) == group->size) {
      with_rights([&] { carry_out(*group, *c); });
      c->done = true;
      changed().notify_all();
    }
    return c->done || *aborted;
  });
  return ncclInProgress;
}

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, Call call) {
  const auto held = lock();
  return submit(comm, find(stream), std::move(call));
}

}  // namespace

ncclResult_t ncclGetVersion(int* number) {
  *number = version();
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidUsage ? "invalid usage" : "failed";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const auto held = lock();
  static int last = 0;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &++last, sizeof last);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  const auto held = lock();
  int number = 0;
  std::memcpy(&number, &id, sizeof number);
  auto& group = groups()[number];
  if (group == nullptr)
    group = std::make_shared<Group>(Group{.size = size, .devices = {}, .collectives = {}});
  for (const auto& [other, device] : group->devices)
    group->same_device = group->same_device || device == current_device();
  group->devices[rank] = current_device();
  *comm = new ncclComm{group, rank, current_device()};
  changed().notify_all();
  return ncclInProgress;
}

// In progress until all ranks have made or finalized their communicators.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const auto held = lock();
  *result = ncclInProgress;
  if (std::ssize(comm->group->devices) == comm->group->size) *result = ncclSuccess;
  if (comm->ended && comm->group->ended < comm->group->size) *result = ncclInProgress;
  if (comm->group->same_device && !may_share()) *result = ncclInvalidUsage;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {  // done when all ranks have called it
  const auto held = lock();
  comm->ended = true;
  ++comm->group->ended;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const auto held = lock();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto held = lock();
  *comm->aborted = true;
  changed().notify_all();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return submit(
      comm, stream,
      {Kind::all_reduce, static_cast<const char*>(from), static_cast<char*>(to), count, type});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit(
      comm, stream,
      {Kind::broadcast, static_cast<const char*>(from), static_cast<char*>(to), count, type, root});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit(
      comm, stream,
      {Kind::all_gather, static_cast<const char*>(from), static_cast<char*>(to), count, type});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return submit(
      comm, stream,
      {Kind::reduce_scatter, static_cast<const char*>(from), static_cast<char*>(to), count, type});
}

ncclResult_t ncclGroupStart() {
  if (open_group.depth++ == 0)
    open_group = {
        .depth = 1,
        .call = {
            .kind = Kind::exchange, .from = nullptr, .to = nullptr, .count = 0, .type = ncclUint8}};
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const auto held = lock();
  if (open_group.depth == 0) return ncclInvalidUsage;
  open_group.comm = comm;
  open_group.stream = find(stream);
  open_group.call.sent.push_back(
      {static_cast<char*>(const_cast<void*>(from)), count * bytes_of(type), peer});
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const auto held = lock();
  if (open_group.depth == 0) return ncclInvalidUsage;
  open_group.comm = comm;
  open_group.stream = find(stream);
  open_group.call.received.push_back({static_cast<char*>(to), count * bytes_of(type), peer});
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const auto held = lock();
  if (--open_group.depth > 0) return ncclSuccess;
  return submit(open_group.comm, open_group.stream, std::move(open_group.call));
}
