#include "comm/communicator.h"

#include <algorithm>

#include "comm/transport.h"
#include "core/trace.h"

namespace heddle {
namespace {

Shape with_ranks(const Tensor& mine, int size) {
  std::vector<int64_t> dims = {size};
  dims.insert(dims.end(), mine.shape().begin(), mine.shape().end());
  return Shape(dims);
}

void check_summable(const Tensor& x, const char* name) {
  check(x.dtype() != DType::u8, name, ": expected f32, bf16, i32 or i64, found ",
        dtype_name(x.dtype()));
}

void check_shares(const Tensor& mine, const Tensor& all, int size, const char* name) {
  check_shape(all, with_ranks(mine, size), name);
  check(mine.dtype() == all.dtype(), name, ": types ", dtype_name(mine.dtype()), " and ",
        dtype_name(all.dtype()), " differ");
}

}  // namespace

// Counts and traces a call, and adds to a CommError what was being done.
template <class Call>
void Communicator::run(const char* collective, const Call& call) {
  TraceRange range("comm", tag_.empty() ? collective : tag_);
  counting_ = &traffic_[{collective, tag_}];
  const Traffic before = *counting_;
  ++counting_->calls;
  try {
    call();
    if (other_ != nullptr) add(other_->traffic_[{collective, tag_}], *counting_, before);
  } catch (const CommError& error) {
    withdraw();
    throw CommError(concat(who(), ", ", collective, tag_.empty() ? "" : " of ", tag_,
                           step_ < 0 ? std::string() : concat(", step ", step_), ": ",
                           error.what()));
  } catch (...) {
    withdraw();
    throw;
  }
}

void Communicator::all_reduce(const Tensor& x) {
  check_summable(x, "all_reduce");
  run("all_reduce", [&] { do_all_reduce(x); });
}

void Communicator::broadcast(const Tensor& x, int root) {
  check(root >= 0 && root < size(), "broadcast: expected a root below ", size(), ", found ", root);
  run("broadcast", [&] { do_broadcast(x, root); });
}

void Communicator::all_gather(const Tensor& mine, const Tensor& all) {
  check_shares(mine, all, size(), "all_gather");
  run("all_gather", [&] {
    size() == 1 ? Tensor::view_as(all, mine.shape()).copy_from(mine) : do_all_gather(mine, all);
  });
}

void Communicator::reduce_scatter(const Tensor& all, const Tensor& mine) {
  check_summable(all, "reduce_scatter");
  check_shares(mine, all, size(), "reduce_scatter");
  run("reduce_scatter", [&] { do_reduce_scatter(all, mine); });
}

void Communicator::all_to_all(const Tensor& sent, const Tensor& received) {
  check_form(received, sent.form(), "all_to_all");
  check(sent.shape().rank() > 0 && sent.shape()[0] == size(), "all_to_all: expected (", size(),
        ", ...), found ", to_string(sent.form()));
  run("all_to_all",
      [&] { size() == 1 ? received.copy_from(sent) : do_all_to_all(sent, received); });
}

void Communicator::do_all_to_all(const Tensor& sent, const Tensor& received) {
  std::vector<Parcel> out, in;
  for (int peer = 0; peer < size(); ++peer) {
    const Tensor from = sent.slice(peer, peer + 1), to = received.slice(peer, peer + 1);
    if (peer == rank()) {
      to.copy_from(from);
    } else {
      out.push_back({peer, from});
      in.push_back({peer, to});
    }
  }
  do_exchange(out, in, 1);
}

void Communicator::exchange(const std::vector<Parcel>& out, const std::vector<Parcel>& in,
                            int timeouts) {
  for (const std::vector<Parcel>* parcels : {&out, &in}) {
    std::vector<bool> seen(to_size(size()));
    for (const auto& [peer, data] : *parcels) {
      check(peer >= 0 && peer < size() && peer != rank(), "exchange: expected another rank below ",
            size(), ", found ", peer);
      check(!seen[to_size(peer)], "exchange: expected one parcel for each peer, found two for ",
            peer);
      seen[to_size(peer)] = true;
    }
  }
  run("exchange", [&] { do_exchange(out, in, timeouts); });
}

void Communicator::barrier() {
  run("barrier", [&] { do_barrier(); });
}

void add(Traffic& sum, const Traffic& now, const Traffic& before) {
  sum.sent += now.sent - before.sent;
  sum.received += now.received - before.received;
  sum.calls += now.calls - before.calls;
}

Traffic Communicator::total_traffic() const {
  Traffic total;
  for (const auto& [key, t] : traffic_) add(total, t);
  return total;
}

std::string Communicator::who() const { return concat("rank ", rank(), " of ", size()); }

std::vector<double> mean_over_ranks(Communicator& comm, const std::vector<double>& mine) {
  std::vector<double> mean(mine.size());
  for (const std::vector<double>& values : gather_values(comm, mine))
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += values[i] / comm.size();
  return mean;
}

std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine) {
  std::vector<char> padded(300);
  mine.copy(padded.data(), padded.size() - 1);
  std::vector<std::string> texts;
  texts.reserve(to_size(comm.size()));
  for (const std::vector<char>& text : gather_values(comm, padded)) texts.emplace_back(text.data());
  return texts;
}

std::string broadcast_text(const std::string& text, Communicator& comm, int root) {
  const Tensor length = Tensor::empty_on(Device{}, {1}, DType::i64);
  length.data<int64_t>()[0] = std::ssize(text);
  comm.broadcast(length, root);
  const int64_t size = length.data<int64_t>()[0];
  if (size == 0) return "";
  const Tensor bytes = Tensor::empty_on(Device{}, {size}, DType::u8);
  if (comm.rank() == root) std::copy(text.begin(), text.end(), bytes.data<uint8_t>());
  comm.broadcast(bytes, root);
  return {static_cast<const char*>(bytes.raw()), to_size(size)};
}

}  // namespace heddle
