#include "comm/nccl_communicator.h"

#include <nccl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <thread>

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

// What a GPU is known by: its machine and its place on the bus.
using GpuName = std::array<char, 128>;
GpuName own_gpu() {
  GpuName name{};
  char bus[32] = "", host[64] = "";
  check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, Context::current().device().index), "bus id");
  gethostname(host, sizeof host - 1);
  std::snprintf(name.data(), name.size(), "%s %s", host, bus);
  return name;
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(Communicator& control, const NcclOptions& options)
      : control_(control), options_(options) {
    check(Context::current().device().is_cuda(), "--comm nccl: expected a GPU, found ",
          to_string(Context::current().device()));
    control.set_tag("NCCL's start");
    refuse_shared_gpus();
    ncclUniqueId id{};
    if (rank() == 0) check_nccl(ncclGetUniqueId(&id), "id");
    const Tensor text = Tensor::empty_on(Device{}, {sizeof id}, DType::u8);
    std::memcpy(text.raw(), &id, sizeof id);
    control.broadcast(text, 0);
    std::memcpy(&id, text.raw(), sizeof id);
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
    // The end is a collective, too, and the other ranks may not come to it.
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
  void do_all_to_all(const Tensor& sent, const Tensor& received) override {
    const int64_t share = sent.size() / size(), bytes = sent.bytes() / size();
    count(bytes * (size() - 1));
    const Tensor from = sent.to(gpu());
    run(received, [&](const Tensor& t) {
      const auto at = [&](const Tensor& x, int peer) {
        return static_cast<char*>(x.raw()) + peer * bytes;
      };
      ncclResult_t status = ncclGroupStart();
      for (int peer = 0; peer < size() && status == ncclSuccess; ++peer) {
        const auto n = static_cast<size_t>(share);
        status = ncclSend(at(from, peer), n, nccl_type(t.dtype()), peer, comm_, cuda_stream());
        if (status == ncclSuccess || status == ncclInProgress)
          status = ncclRecv(at(t, peer), n, nccl_type(t.dtype()), peer, comm_, cuda_stream());
        if (status == ncclInProgress) status = ncclSuccess;
      }
      const ncclResult_t end = ncclGroupEnd();
      return status == ncclSuccess ? end : status;
    });
  }
  void do_barrier() override { do_all_reduce(Tensor::empty_on(gpu(), {1}, DType::i32)); }

  // Kernels that wait for a rank that is gone would keep the GPU, and the end of the Context,
  // waiting. ncclCommAbort() lets them go, but may itself wait for the other ranks for ever (NCCL's
  // issues 863 and 1777), so that it gets a thread which can be left behind.
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
    } catch (const std::exception&) {  // no thread to be had: the process ends as it can
    }
  }

 private:
  static constexpr std::chrono::seconds kAbortTime{10};

  static size_t elements(const Tensor& x) { return static_cast<size_t>(x.size()); }
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

  // Runs a call on `x`, which may lie on the host, and waits until the stream has done it.
  template <class Call>
  void run(const Tensor& x, const Call& call) {
    if (x.size() == 0) return;
    if (failed_) throw CommError("this rank has failed");  // the communicator may be gone
    const Tensor work = x.to(gpu());
    check_nccl(call(work), "call");
    await_call("call");
    // A rank that is gone leaves the stream waiting for ever: so look instead of synchronising.
    Patience patience(options_.timeout_s);
    int polls = 0;
    for (cudaError_t state = cudaErrorNotReady; state != cudaSuccess;) {
      state = cudaStreamQuery(cuda_stream());
      if (state != cudaErrorNotReady) check_cuda(state, "collective");
      (void)cudaGetLastError();  // "not ready" is no error of the next kernel
      ncclResult_t background = ncclSuccess;
      check_nccl(ncclCommGetAsyncError(comm_, &background), "watch");
      check_nccl(background, "background");
      if (state != cudaSuccess) pause(patience, polls);
    }
    if (!x.device().is_cuda()) x.copy_from(work);
  }

  // Calls of a communicator that does not block have begun when they return, not more.
  void await_call(const char* what) {
    Patience patience(options_.timeout_s);
    int polls = 0;
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
      check_nccl(ncclCommGetAsyncError(comm_, &state), what);
      check_nccl(state, what);
      if (state == ncclInProgress) pause(patience, polls);
    }
  }

  // Closely at first: a small sum over NVLink takes less than a nap.
  void pause(Patience& patience, int& polls) const {
    constexpr int kPolls = 200;
    if (++polls <= kPolls) return std::this_thread::yield();
    if (failed_) throw CommError("this rank has failed");
    if (patience.over())
      throw CommError(concat("no answer from the other ranks for ", options_.timeout_s, " s"));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  // NCCL says only "invalid usage" here.
  void refuse_shared_gpus() {
    const GpuName name = own_gpu();
    const auto length = static_cast<int64_t>(name.size());
    const Tensor mine = Tensor::empty_on(Device{}, {length}, DType::u8);
    const Tensor all = Tensor::empty_on(Device{}, {size(), length}, DType::u8);
    std::memcpy(mine.raw(), name.data(), name.size());
    control_.all_gather(mine, all);
    const char* names = static_cast<const char*>(all.raw());
    for (int a = 0; a < size(); ++a)
      for (int b = 0; b < a; ++b)
        check(std::strcmp(names + a * length, names + b * length) != 0, "--comm nccl: ranks ", b,
              " and ", a, " have the same GPU (", names + a * length,
              "), which NCCL refuses; give each its own with --device cuda:i, or share one with "
              "--comm threads");
  }

  Communicator& control_;
  NcclOptions options_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> failed_ = false;  // by withdraw(), or by abort() from another thread
  bool gave_up_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl(Communicator& control, const NcclOptions& options) {
  return std::make_unique<NcclCommunicator>(control, options);
}

}  // namespace heddle
