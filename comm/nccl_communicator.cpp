#include "comm/nccl_communicator.h"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport.h"
#include "core/context.h"
#include "core/cuda.h"

namespace heddle {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      break;
  }
  return ncclUint8;
}

// Identifies this rank's GPU: host name and PCI address, padded with zeros.
std::vector<char> own_gpu() {
  std::vector<char> name(128);
  char bus[32] = "", host[64] = "";
  check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, Context::current().device().index), "bus id");
  gethostname(host, sizeof host - 1);
  std::snprintf(name.data(), name.size(), "%s %s", host, bus);
  return name;
}

// Returns whether NCCL lets ranks share a GPU: from 2.30 on, if the environment says so.
bool may_share_gpus() {
  const char* wish = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  int version = 0;
  return wish != nullptr && std::strcmp(wish, "1") == 0 &&
         ncclGetVersion(&version) == ncclSuccess && version >= NCCL_VERSION(2, 30, 0);
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(Communicator& control, double timeout_s)
      : control_(control), timeout_s_(timeout_s) {
    check(Context::current().device().is_cuda(), "--comm nccl: expected a GPU, found ",
          to_string(Context::current().device()));
    control.set_tag("NCCL's start");
    refuse_shared_gpus();
    ncclUniqueId id{};
    if (rank() == 0) check_nccl(ncclGetUniqueId(&id), "id");
    const std::string bytes = broadcast_text({id.internal, sizeof id.internal}, control);
    std::copy(bytes.begin(), bytes.end(), id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      check_nccl(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), "start");
      await_call("start");
    } catch (...) {
      withdraw();
      throw;
    }
  }
  ~NcclCommunicator() override {
    if (comm_ == nullptr || failed_) return;
    // Finalising is collective, and after a failure the other ranks may not take part.
    if (std::uncaught_exceptions() > 0) {
      withdraw();
      return;
    }
    if (const ncclResult_t s = ncclCommFinalize(comm_); s != ncclSuccess && s != ncclInProgress)
      return;
    try {
      await_call("end");
      (void)ncclCommDestroy(comm_);
    } catch (const CommError&) {
    }
  }

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  const char* name() const override { return "nccl"; }
  std::vector<int> hosts() override { return control_.hosts(); }
  double now() const override { return steady_seconds(); }
  void abort(const std::string& why, int exit_code) noexcept override {
    failed_ = true;
    control_.abort(why, exit_code);
  }

 protected:
  void do_all_reduce(const Tensor& x) override {
    count(2 * x.bytes() * (size() - 1) / size());
    run(x, [&](const Tensor& t) {
      return ncclAllReduce(t.raw(), t.raw(), elements(t), nccl_type(t.dtype()), ncclSum, comm_,
                           cuda_stream());
    });
  }
  void do_broadcast(const Tensor& x, int root) override {
    if (size() > 1) (rank() == root ? counting().sent : counting().received) += x.bytes();
    run(x, [&](const Tensor& t) {
      return ncclBroadcast(t.raw(), t.raw(), elements(t), nccl_type(t.dtype()), root, comm_,
                           cuda_stream());
    });
  }
  void do_all_gather(const Tensor& mine, const Tensor& all) override {
    count(mine.bytes() * (size() - 1));
    const Tensor own = mine.to(gpu());
    run(all, [&](const Tensor& t) {
      return ncclAllGather(own.raw(), t.raw(), elements(own), nccl_type(t.dtype()), comm_,
                           cuda_stream());
    });
  }
  void do_reduce_scatter(const Tensor& all, const Tensor& mine) override {
    count(mine.bytes() * (size() - 1));
    const Tensor from = all.to(gpu());
    run(mine, [&](const Tensor& t) {
      return ncclReduceScatter(from.raw(), t.raw(), elements(t), nccl_type(t.dtype()), ncclSum,
                               comm_, cuda_stream());
    });
  }
  void do_exchange(const std::vector<Parcel>& out, const std::vector<Parcel>& in,
                   int /*timeouts*/) override {
    std::vector<Tensor> from, to;
    for (size_t i = 0; i < out.size(); ++i) {  // the same tensor for several peers: one copy
      const bool again = i > 0 && out[i].data.raw() == out[i - 1].data.raw() &&
                         out[i].data.bytes() == out[i - 1].data.bytes();
      from.push_back(again ? from.back() : out[i].data.to(gpu()));
    }
    for (const auto& [peer, data] : in)
      to.push_back(data.device().is_cuda()
                       ? data
                       : Tensor::empty_on(gpu(), data.shape(), data.dtype(), data.layout()));
    const auto nothing = [](const Tensor& x) { return x.bytes() == 0; };
    if (std::ranges::all_of(from, nothing) && std::ranges::all_of(to, nothing)) return;
    launch([&] {
      ncclResult_t status = ncclGroupStart();
      const auto post = [&](const std::vector<Parcel>& parcels, const std::vector<Tensor>& tensors,
                            const auto& call) {
        for (size_t i = 0; i < parcels.size() && status == ncclSuccess; ++i) {
          if (tensors[i].bytes() == 0) continue;
          status = call(tensors[i].raw(), to_size(tensors[i].bytes()), ncclUint8, parcels[i].peer,
                        comm_, cuda_stream());
          if (status == ncclInProgress) status = ncclSuccess;
        }
      };
      post(out, from, ncclSend);
      post(in, to, ncclRecv);
      const ncclResult_t end = ncclGroupEnd();
      return status == ncclSuccess ? end : status;
    });
    for (const Tensor& x : from) counting().sent += x.bytes();
    for (size_t i = 0; i < in.size(); ++i) {
      counting().received += to[i].bytes();
      if (!in[i].data.device().is_cuda()) in[i].data.copy_from(to[i]);
    }
  }
  void do_barrier() override { do_all_reduce(Tensor::empty_on(gpu(), {1}, DType::i32)); }

  // Kernels that wait for a failed rank would block the GPU, and the Context's destructor.
  // ncclCommAbort() ends them, but may itself wait for the other ranks forever (NCCL's issues 863
  // and 1777), so it runs on a detached thread.
  void withdraw() noexcept override {
    if (comm_ == nullptr || gave_up_) return;
    failed_ = gave_up_ = true;
    try {
      auto done = std::make_shared<std::promise<void>>();
      std::thread([comm = comm_, device = gpu().index, done] {
        (void)cudaSetDevice(device);
        (void)ncclCommAbort(comm);
        done->set_value();
      }).detach();
      (void)done->get_future().wait_for(kAbortTime);
    } catch (const std::exception&) {  // no thread available: the process ends without the abort
    }
  }

 private:
  static constexpr std::chrono::seconds kAbortTime{10};

  static size_t elements(const Tensor& x) { return to_size(x.size()); }
  static Device gpu() { return Context::current().device(); }

  void count(int64_t bytes) {
    counting().sent += bytes;
    counting().received += bytes;
  }

  void check_nccl(ncclResult_t status, const char* what) const {
    if (status == ncclSuccess || status == ncclInProgress) return;
    const char* detail = comm_ == nullptr ? "" : ncclGetLastError(comm_);
    throw CommError(concat("NCCL: ", what, ": ", ncclGetErrorString(status), " ", detail));
  }

  // Runs a call on `x`, through a copy if it is on the host.
  template <class Call>
  void run(const Tensor& x, const Call& call) {
    if (x.size() == 0) return;
    const Tensor work = x.to(gpu());
    launch([&] { return call(work); });
    if (!x.device().is_cuda()) x.copy_from(work);
  }

  // Runs a call, and waits for the stream.
  template <class Call>
  void launch(const Call& call) {
    if (failed_) throw CommError("this rank has failed");  // the communicator may be gone
    check_nccl(call(), "call");
    await_call("call");
    // If another rank has failed, the stream never finishes: poll instead of synchronising.
    ProgressTimeout timeout(timeout_s_);
    int polls = 0;
    for (cudaError_t state = cudaErrorNotReady; state != cudaSuccess;) {
      state = cudaStreamQuery(cuda_stream());
      if (state != cudaErrorNotReady) check_cuda(state, "collective");
      (void)cudaGetLastError();  // clears "not ready", so that the next kernel does not report it
      ncclResult_t background = ncclSuccess;
      check_nccl(ncclCommGetAsyncError(comm_, &background), "watch");
      check_nccl(background, "background");
      if (state != cudaSuccess) pause(timeout, polls);
    }
  }

  // Waits until a call of the non-blocking communicator has been enqueued.
  void await_call(const char* what) {
    ProgressTimeout timeout(timeout_s_);
    int polls = 0;
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
      check_nccl(ncclCommGetAsyncError(comm_, &state), what);
      check_nccl(state, what);
      if (state == ncclInProgress) pause(timeout, polls);
    }
  }

  // Yields at first, since a small sum over NVLink takes less than a sleep.
  void pause(ProgressTimeout& timeout, int& polls) const {
    constexpr int kPolls = 200;
    if (++polls <= kPolls) return std::this_thread::yield();
    if (failed_) throw CommError("this rank has failed");
    if (timeout.expired())
      throw CommError(concat("no answer from the other ranks for ", timeout_s_, " s"));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  // NCCL would report only "invalid usage".
  void refuse_shared_gpus() {
    const auto gpus = gather_values(control_, own_gpu());
    const auto may_share = gather_values(control_, std::vector<char>{may_share_gpus() ? '1' : '0'});
    const bool all_may =
        std::ranges::all_of(may_share, [](const auto& one) { return one[0] == '1'; });
    for (size_t a = 0; a < gpus.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        check(gpus[a] != gpus[b] || all_may, "--comm nccl: ranks ", b, " and ", a,
              " have the same GPU (", gpus[a].data(), "), which NCCL refuses; give each its own ",
              "with --device cuda:i, or share one with --comm threads, or, with NCCL 2.30 or ",
              "newer, with NCCL_MULTI_RANK_GPU_ENABLE=1 in every rank's environment");
  }

  Communicator& control_;
  double timeout_s_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> failed_ = false;  // by withdraw(), or by abort() from another thread
  bool gave_up_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl(Communicator& control, double timeout_s) {
  return std::make_unique<NcclCommunicator>(control, timeout_s);
}

}  // namespace heddle
