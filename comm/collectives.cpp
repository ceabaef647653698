#include "comm/collectives.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <type_traits>

#include "core/bfloat16.h"

namespace heddle {
namespace {

constexpr size_t kWindow = 4;              // receives posted ahead
constexpr int64_t kSegmentsPerPiece = 16;  // of a parcel

template <class T>
void add_values(void* into, const void* from, int64_t n) {
  using Sum = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
  T* x = static_cast<T*>(into);
  const T* y = static_cast<const T*>(from);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = T(static_cast<Sum>(x[i]) + static_cast<Sum>(y[i]));
}

void add(DType dtype, void* into, const void* from, int64_t n) {
  switch (dtype) {
    case DType::f32:
      return add_values<float>(into, from, n);
    case DType::bf16:
      return add_values<bfloat16>(into, from, n);
    case DType::i32:
      return add_values<int32_t>(into, from, n);
    case DType::i64:
      return add_values<int64_t>(into, from, n);
    case DType::u8:
      break;
  }
  throw Error("sum: expected f32, bf16, i32 or i64, found u8");
}

char* bytes_of(const Tensor& x) { return static_cast<char*>(x.raw()); }

// A tensor's values on the host, or uninitialised memory of its shape; finish() copies results back
// to a device.
class Staged {
 public:
  explicit Staged(const Tensor& x, bool values = true) : x_(x), host_(memory_for(x)) {
    if (x.device().is_cuda() && values) host_.copy_from(x);
  }
  const Tensor& host() const { return host_; }
  void finish() const {
    if (x_.device().is_cuda()) x_.copy_from(host_);
  }

 private:
  static Tensor memory_for(const Tensor& x) {
    constexpr int64_t kMostPinned = int64_t{64} << 20;  // a bucket, or its largest layer
    if (!x.device().is_cuda()) return x;
    return x.bytes() <= kMostPinned && x.layout() == Layout::plain
               ? Tensor::empty_pinned(x.shape(), x.dtype())
               : Tensor::empty_on(Device{}, x.shape(), x.dtype(), x.layout());
  }

  Tensor x_, host_;
};

// Declared after the buffers of a call: if the call fails, cancels its messages before the buffers
// are freed.
class Withdrawal {
 public:
  explicit Withdrawal(Transport& transport) : transport_(transport) {}
  ~Withdrawal() {
    if (std::uncaught_exceptions() > exceptions_) transport_.withdraw();
  }
  Withdrawal(const Withdrawal&) = delete;
  Withdrawal& operator=(const Withdrawal&) = delete;

 private:
  Transport& transport_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

MessageCommunicator::MessageCommunicator(std::unique_ptr<Transport> transport,
                                         const CollectiveOptions& options)
    : transport_(std::move(transport)), options_(options) {
  check(options.segment_bytes >= 64 && options.segment_bytes % 64 == 0,
        "segment: expected a multiple of 64 bytes, found ", options.segment_bytes);
  check(options.pairs_ahead > 0, "exchange: expected at least one pair ahead, found ",
        options.pairs_ahead);
}

uint64_t MessageCommunicator::send(int peer, const void* data, int64_t bytes) {
  counting().sent += bytes;
  return transport_->post_send(peer, data, to_size(bytes));
}

uint64_t MessageCommunicator::receive(int peer, void* data, int64_t bytes) {
  counting().received += bytes;
  return transport_->post_receive(peer, data, to_size(bytes));
}

// Runs the ring of the header's picture: lists the segments that will arrive, in order, then
// receives them, adds where the pass reduces, and forwards each segment as soon as it has arrived.
void MessageCommunicator::run_ring(const Tensor& host, const Ring& ring) {
  const int p = size(), next = wrap(rank() + 1), previous = wrap(rank() - 1);
  if (p == 1 || host.size() == 0) return;
  struct Segment {
    int64_t begin, end;  // elements
    bool reduce, forward;
    bool summed;  // the forwarded values are final
  };
  const int64_t n = host.size(), element = dtype_size(host.dtype());
  const int64_t length = options_.segment_bytes / element;
  std::vector<Segment> incoming;
  auto for_segments = [&](int chunk, auto&& each) {
    const int64_t begin = n * chunk / p, end = n * (chunk + 1) / p;
    for (int64_t at = begin; at < end; at += length) each(at, std::min(end, at + length));
  };
  if (ring.reduce)
    for (int s = 0; s < p - 1; ++s)
      for_segments(wrap(rank() + ring.shift - 1 - s), [&](int64_t begin, int64_t end) {
        incoming.push_back({begin, end, true, ring.gather || s < p - 2, s == p - 2});
      });
  const size_t reductions = incoming.size();
  const int owned = ring.reduce ? wrap(rank() + ring.shift + 1) : rank();
  if (ring.gather)
    for (int s = 0; s < p - 1; ++s)
      for_segments(wrap(owned - 1 - s), [&](int64_t begin, int64_t end) {
        incoming.push_back({begin, end, false, s < p - 2, true});
      });

  Tensor scratch;  // allocated before anything is sent: if that fails, no message is open
  if (reductions > 0)
    scratch = Tensor::empty_on(Device{}, {to_int64(kWindow), options_.segment_bytes}, DType::u8);
  const Withdrawal withdrawal(*transport_);
  std::vector<uint64_t> partial, summed;  // tickets of sends
  auto forward = [&](int64_t begin, int64_t end, bool is_summed) {
    (is_summed ? summed : partial)
        .push_back(send(next, bytes_of(host) + begin * element, (end - begin) * element));
  };
  for_segments(ring.reduce ? wrap(rank() + ring.shift) : rank(),
               [&](int64_t begin, int64_t end) { forward(begin, end, !ring.reduce); });

  std::vector<uint64_t> tickets;
  for (size_t done = 0; done < incoming.size(); ++done) {
    // Gathered values overwrite partial sums in the tensor, whose sends must have completed.
    // Waiting for them earlier, or for sends of final values, could make all ranks wait for each
    // other.
    if (done == reductions) {
      for (uint64_t ticket : partial) transport_->wait(ticket);
      partial.clear();
    }
    const size_t limit = done < reductions ? reductions : incoming.size();
    while (tickets.size() < std::min(limit, done + kWindow)) {
      const size_t i = tickets.size();
      char* target = incoming[i].reduce
                         ? bytes_of(scratch) + to_int64(i % kWindow) * options_.segment_bytes
                         : bytes_of(host) + incoming[i].begin * element;
      tickets.push_back(receive(previous, target, (incoming[i].end - incoming[i].begin) * element));
    }
    transport_->wait(tickets[done]);
    const Segment& s = incoming[done];
    if (s.reduce)
      add(host.dtype(), bytes_of(host) + s.begin * element,
          bytes_of(scratch) + to_int64(done % kWindow) * options_.segment_bytes, s.end - s.begin);
    if (s.forward) forward(s.begin, s.end, s.summed);
  }
  for (uint64_t ticket : partial) transport_->wait(ticket);
  for (uint64_t ticket : summed) transport_->wait(ticket);
}

void MessageCommunicator::do_all_reduce(const Tensor& x) {
  if (size() == 1) return;
  const Staged staged(x);
  run_ring(staged.host(), {.reduce = true, .gather = true});
  staged.finish();
}

void MessageCommunicator::do_all_gather(const Tensor& mine, const Tensor& all) {
  const Staged staged(all, false);
  const Tensor own = mine.to(Device{});
  std::copy_n(bytes_of(own), own.bytes(), bytes_of(staged.host()) + rank() * own.bytes());
  run_ring(staged.host(), {.gather = true});
  staged.finish();
}

void MessageCommunicator::do_reduce_scatter(const Tensor& all, const Tensor& mine) {
  const Tensor work = all.device().is_cuda() ? all.to(Device{}) : all.clone();
  run_ring(work, {.reduce = true, .shift = -1});
  const Tensor own = Tensor::view_as(work.slice(rank(), rank() + 1), mine.shape());
  mine.copy_from(own);
}

void MessageCommunicator::do_broadcast(const Tensor& x, int root) {
  if (size() == 1 || x.size() == 0) return;
  const Staged staged(x, rank() == root);
  const Withdrawal withdrawal(*transport_);
  if (x.bytes() <= options_.tree_bytes)
    broadcast_tree(bytes_of(staged.host()), x.bytes(), root);
  else
    broadcast_chain(bytes_of(staged.host()), x.bytes(), root);
  if (rank() != root) staged.finish();
}

// Binomial tree: rank root + v receives from root + (v without its lowest set bit), then sends to
// root + v + b for every power of two b below that bit.
void MessageCommunicator::broadcast_tree(char* data, int64_t bytes, int root) {
  const int p = size(), v = wrap(rank() - root);
  int bit = 1;
  while (bit < p && (v & bit) == 0) bit <<= 1;
  if (v != 0) transport_->wait(receive(wrap(root + v - bit), data, bytes));
  std::vector<uint64_t> tickets;
  for (bit >>= 1; bit > 0; bit >>= 1)
    if (v + bit < p) tickets.push_back(send(wrap(root + v + bit), data, bytes));
  for (uint64_t ticket : tickets) transport_->wait(ticket);
}

void MessageCommunicator::broadcast_chain(char* data, int64_t bytes, int root) {
  const int v = wrap(rank() - root), next = wrap(rank() + 1), previous = wrap(rank() - 1);
  const int64_t length = options_.segment_bytes, count = (bytes + length - 1) / length;
  auto size_of = [&](int64_t i) { return std::min(length, bytes - i * length); };
  std::vector<uint64_t> received, sent;
  for (int64_t i = 0; i < count; ++i) {
    if (v > 0) {
      while (std::ssize(received) < std::min<int64_t>(count, i + to_int64(kWindow))) {
        const int64_t ahead = std::ssize(received);
        received.push_back(receive(previous, data + ahead * length, size_of(ahead)));
      }
      transport_->wait(received[to_size(i)]);
    }
    if (v + 1 < size()) sent.push_back(send(next, data + i * length, size_of(i)));
  }
  for (uint64_t ticket : sent) transport_->wait(ticket);
}

// On a device the shares are copied together.
void MessageCommunicator::do_all_to_all(const Tensor& sent, const Tensor& received) {
  const Staged to(received, false);
  Communicator::do_all_to_all(sent.to(Device{}), to.host());
  to.finish();
}

// In the s-th of P - 1 rounds rank r sends to r + s and receives from r - s, if there is anything.
// A few rounds run at once: while one peer is late, messages of others use the link. Ranks cannot
// wait for each other in a cycle: each waits for its lowest open round, and a peer that has not yet
// begun that round is itself waiting in a lower one. Long parcels travel in pieces, each of which
// has the whole timeout: over 10 Mbit/s, a layer of 30 MB takes half a minute. The last piece is
// shorter than the others, if need be empty, so that unequal lengths are noticed.
void MessageCommunicator::do_exchange(const std::vector<Parcel>& out, const std::vector<Parcel>& in,
                                      int timeouts) {
  struct Round {
    const Tensor *out = nullptr, *in = nullptr;
  };
  std::vector<Tensor> from;
  std::vector<Staged> to;
  from.reserve(out.size());
  to.reserve(in.size());
  for (const Parcel& parcel : out) from.push_back(parcel.data.to(Device{}));
  for (const Parcel& parcel : in) to.emplace_back(parcel.data, false);
  std::vector<Round> rounds(to_size(size()));
  for (size_t i = 0; i < out.size(); ++i)
    rounds[to_size(wrap(out[i].peer - rank()))].out = &from[i];
  for (size_t i = 0; i < in.size(); ++i)
    rounds[to_size(wrap(rank() - in[i].peer))].in = &to[i].host();
  const int64_t piece = kSegmentsPerPiece * options_.segment_bytes;
  const Withdrawal withdrawal(*transport_);
  std::deque<std::vector<uint64_t>> open;  // tickets by round
  const auto wait = [&](uint64_t ticket) {
    for (int left = timeouts;; --left) {
      try {
        return transport_->wait(ticket);
      } catch (const CommTimeout&) {
        if (left <= 1) throw;
      }
    }
  };
  const auto finish_oldest = [&] {
    for (const uint64_t ticket : open.front()) wait(ticket);
    open.pop_front();
  };
  for (int s = 1; s < size(); ++s) {
    const Round& round = rounds[to_size(s)];
    if (round.out == nullptr && round.in == nullptr) continue;
    if (std::ssize(open) == options_.pairs_ahead) finish_oldest();
    std::vector<uint64_t>& tickets = open.emplace_back();
    const auto post = [&](auto call, int peer, const Tensor* x) {
      int64_t at = 0, length = piece;
      for (; length == piece; at += length) {
        length = std::min(piece, x->bytes() - at);
        tickets.push_back((this->*call)(peer, bytes_of(*x) + at, length));
      }
    };
    if (round.in != nullptr) post(&MessageCommunicator::receive, wrap(rank() - s), round.in);
    if (round.out != nullptr) post(&MessageCommunicator::send, wrap(rank() + s), round.out);
  }
  while (!open.empty()) finish_oldest();
  for (const Staged& each : to) each.finish();
}

void MessageCommunicator::do_barrier() {
  for (int step = 1; step < size(); step <<= 1) {
    const uint64_t in = receive(wrap(rank() - step), nullptr, 0);
    const uint64_t out = send(wrap(rank() + step), nullptr, 0);
    transport_->wait(in);
    transport_->wait(out);
  }
}

}  // namespace heddle
