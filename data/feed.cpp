#include "data/feed.h"

#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/kernels.h"

namespace heddle {
namespace {

constexpr std::chrono::microseconds kPatience{50};  // until the step is looked at again

}  // namespace

Tensor images_on(Device device, const Batch& batch, const Augmentation& augmentation, DType dtype) {
  if (batch.count == 0) return {};
  if (!batch.bytes.defined()) return converted(batch.images.to(device), dtype, Layout::plain);
  const int64_t side = batch.bytes.shape()[1];
  Tensor images = Tensor::empty_on(device, {batch.count, 3, side, side}, dtype,
                                   device.is_cuda() ? Layout::nhwc : Layout::plain);
  augment_bytes(augmentation, batch.bytes.to(device), batch.placements.to(device), images);
  return images;
}

BatchFeed::BatchFeed(Epoch epoch, const Augmentation& augmentation, Device device, DType dtype)
    : epoch_(std::move(epoch)), augmentation_(augmentation), device_(device), dtype_(dtype) {}

// Converts the epoch's current batch.
FedBatch BatchFeed::convert() {
  const Batch& batch = epoch_.batch();
  return {.images = images_on(device_, batch, augmentation_, dtype_),
          .labels = batch.labels,
          .first_sample = batch.first_sample,
          .count = batch.count};
}

bool BatchFeed::next() {
  batch_ = {};
  consumed_.record();
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (ahead_) {
    arrived_.wait();
    batch_ = *std::exchange(ahead_, std::nullopt);
    return true;
  }
  if (!std::exchange(pending_, false) && !epoch_.next()) return false;
  batch_ = convert();
  return true;
}

bool BatchFeed::prefetch() {
  if (ahead_ || failure_ != nullptr) return true;
  if (!device_.is_cuda() || pending_ || !epoch_.coming()) return false;
  step_.record();
  while (!epoch_.ready(kPatience))
    if (step_.passed()) return false;
  try {
    pending_ = epoch_.next();
  } catch (...) {
    failure_ = std::current_exception();
    return true;
  }
  try {
    const SideStream copies(StreamUse::copy);
    consumed_.wait();  // its memory may be reused
    ahead_ = convert();
    arrived_.record();
    pending_ = false;
  } catch (const Error&) {  // no memory: next() tries again after the step
    ahead_.reset();
  }
  return ahead_.has_value();
}

}  // namespace heddle
