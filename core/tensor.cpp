#include "core/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/context.h"

#ifdef HEDDLE_CUDA
#include "core/cuda.h"
#endif

namespace heddle {
namespace {

struct Type {
  const char* name;
  int64_t bytes;
};
// In the order of DType.
constexpr Type kTypes[] = {{"f32", 4}, {"bf16", 2}, {"i32", 4}, {"i64", 8}, {"u8", 1}};

}  // namespace

int64_t dtype_size(DType dtype) { return kTypes[to_size(dtype)].bytes; }

const char* dtype_name(DType dtype) { return kTypes[to_size(dtype)].name; }

const char* layout_name(Layout layout) {
  constexpr const char* kNames[] = {"plain", "nhwc", "c16"};
  return kNames[to_size(layout)];
}

Shape::Shape(std::initializer_list<int64_t> dims) : Shape(std::vector<int64_t>(dims)) {}

Shape::Shape(const std::vector<int64_t>& dims) {
  check(dims.size() <= dims_.size(), "shape: expected at most five axes, found ", dims.size());
  int64_t elements = 1;
  for (int64_t d : dims) {
    check(d >= 0, "shape: expected extents of at least 0, found ", d);
    check(d == 0 || elements <= std::numeric_limits<int64_t>::max() / 8 / d,
          "shape: too many elements");
    elements *= d == 0 ? 1 : d;
    dims_[rank_++] = d;
  }
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int64_t d : *this) n *= d;
  return n;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && std::equal(begin(), end(), other.begin());
}

std::string to_string(const Shape& shape) {
  std::string out = "(";
  for (int i = 0; i < shape.rank(); ++i) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + ")";
}

std::string to_string(const Form& form) {
  return concat(dtype_name(form.dtype), " ", to_string(form.shape), " ", layout_name(form.layout));
}

// Memory from a pool. Keeps the pool alive, so that a tensor may outlive the Context it came from.
class Storage {
 public:
  Storage(std::shared_ptr<Pool> pool, size_t bytes)
      : pool_(std::move(pool)), data_(pool_->allocate(bytes)) {}
  ~Storage() { pool_->release(data_); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  Device device() const { return pool_->device(); }
  bool pinned() const { return pool_->pinned(); }

 private:
  std::shared_ptr<Pool> pool_;
  void* data_;
};

namespace {

// Copies within or between devices. Waits for a copy from the host to a GPU only if `wait` is set.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, bool wait,
                int64_t bytes) {
#ifdef HEDDLE_CUDA
  if (to_device.is_cuda() && from_device == to_device) {  // in the order of the stream, no wait
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream()), "copy");
    return;
  }
  if (to_device.is_cuda() || from_device.is_cuda()) {
    // A recorded step would copy from, or to, this address of the host in every later run.
    if (stream_is_recorded()) throw Error("a copy from or to the host cannot be recorded");
    cudaError_t status = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_stream());
    if (status == cudaSuccess && (wait || !to_device.is_cuda()))
      status = cudaStreamSynchronize(cuda_stream());
    if (status != cudaSuccess)
      throw Error(concat("copy of ", bytes, " bytes from ", to_string(from_device), " to ",
                         to_string(to_device), " failed: ", cudaGetErrorString(status)));
    return;
  }
#endif
  (void)to_device;
  (void)from_device;
  (void)wait;
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

Tensor Tensor::make(const std::shared_ptr<Pool>& pool, const Shape& shape, DType dtype,
                    Layout layout) {
  check(layout == Layout::plain || shape.rank() == 4, "tensor: layout ", layout_name(layout),
        " needs four axes, found shape ", to_string(shape));
  check(layout != Layout::c16 || shape[1] % 16 == 0,
        "tensor: layout c16 needs a multiple of 16 channels, found shape ", to_string(shape));
  Tensor out;
  out.shape_ = shape;
  out.size_ = shape.elements();
  out.dtype_ = dtype;
  out.layout_ = layout;
  out.storage_ = std::make_shared<Storage>(pool, out.bytes());
  out.data_ = out.storage_->data();
  return out;
}

Tensor Tensor::empty_on(Device device, const Shape& shape, DType dtype, Layout layout) {
  return make(Context::current().pool(device), shape, dtype, layout);
}

Tensor Tensor::empty_pinned(const Shape& shape, DType dtype) {
  Context& context = Context::current();
  try {
    return make(context.pinned_pool(), shape, dtype, Layout::plain);
  } catch (const Error&) {  // the system limits pinned memory
    return make(context.pool(Device{}), shape, dtype, Layout::plain);
  }
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Layout layout) {
  return empty_on(Context::current().device(), shape, dtype, layout);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Layout layout) {
  Tensor out = empty(shape, dtype, layout);
  out.fill_zero();
  return out;
}

Tensor Tensor::empty_like(const Tensor& other) {
  return empty_on(other.device(), other.shape_, other.dtype_, other.layout_);
}

Tensor Tensor::from(const std::vector<float>& values) {
  return from(values, Shape{to_int64(values.size())});
}

Tensor Tensor::from(const std::vector<float>& values, const Shape& shape) {
  check(shape.elements() == to_int64(values.size()), "tensor: shape ", to_string(shape),
        " does not hold ", values.size(), " values");
  Tensor out = empty_on(Device{}, shape);
  if (!values.empty()) std::memcpy(out.data_, values.data(), out.bytes());
  return out;
}

Tensor Tensor::from_integers(const std::vector<int32_t>& values) {
  Tensor out = empty_on(Device{}, Shape{to_int64(values.size())}, DType::i32);
  std::ranges::copy(values, out.data<int32_t>());
  return out;
}

Device Tensor::device() const { return storage_ ? storage_->device() : Device{}; }

bool Tensor::unique() const { return storage_.use_count() == 1; }

Tensor Tensor::reshape(const Shape& shape) const {
  check(layout_ == Layout::plain, "reshape: expected a plain layout, found ", layout_name(layout_));
  check(shape.elements() == size_, "reshape: ", to_string(shape_), " does not fit ",
        to_string(shape));
  Tensor out = *this;
  out.shape_ = shape;
  return out;
}

Tensor Tensor::view_as(const Tensor& x, const Shape& shape, Layout layout) {
  check(shape.elements() == x.size_, "view: ", to_string(x.shape_), " does not fit ",
        to_string(shape));
  Tensor out = x;
  out.shape_ = shape;
  out.layout_ = layout;
  return out;
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  check(shape_.rank() > 0 && begin >= 0 && begin <= end && end <= shape_[0], "slice: [", begin,
        ", ", end, ") is not within shape ", to_string(shape_));
  Tensor out = *this;
  const int64_t row = shape_[0] == 0 ? 0 : size_ / shape_[0];
  out.shape_[0] = end - begin;
  out.size_ = (end - begin) * row;
  out.data_ = static_cast<char*>(data_) + begin * row * dtype_size(dtype_);
  return out;
}

Tensor Tensor::as_bytes() const {
  Tensor out = *this;
  out.shape_ = {out.size_ = bytes()};
  out.dtype_ = DType::u8;
  out.layout_ = Layout::plain;
  return out;
}

Tensor Tensor::clone() const {
  Tensor out = empty_like(*this);
  out.copy_from(*this);
  return out;
}

void Tensor::copy_from(const Tensor& source) const {
  check_form(source, form(), "copy");
  check(source.size_ == size_, "copy: an undefined tensor");
#ifdef HEDDLE_CUDA
  // CUDA may read host memory after the call has returned, from pageable memory too. A small
  // tensor is read from a pinned copy, so that the caller may reuse its memory without a wait; for
  // a large one the wait costs little, and pinned memory is scarce.
  constexpr int64_t kMostStaged = int64_t{4} << 20;
  if (device().is_cuda() && !source.device().is_cuda() && bytes() <= kMostStaged &&
      !(source.storage_ && source.storage_->pinned())) {
    const Tensor staged = empty_pinned(shape_, dtype_);
    if (staged.storage_->pinned()) {
      if (bytes() > 0) std::memcpy(staged.data_, source.data_, to_size(bytes()));
      copy_bytes(data_, device(), staged.data_, Device{}, false, bytes());
      keep_until_done(staged);
      return;
    }
  }
#endif
  copy_bytes(data_, device(), source.data_, source.device(), true, bytes());
}

Tensor Tensor::to(Device target) const {
  if (device() == target) return *this;
  Tensor out = empty_on(target, shape_, dtype_, layout_);
  out.copy_from(*this);
  return out;
}

void Tensor::fill_zero() const {
  if (size_ == 0) return;
#ifdef HEDDLE_CUDA
  if (device().is_cuda()) {
    check_cuda(cudaMemsetAsync(data_, 0, bytes(), cuda_stream()), "cudaMemsetAsync");
    return;
  }
#endif
  std::memset(data_, 0, bytes());
}

std::vector<float> Tensor::to_vector() const {
  const Tensor host = to(Device{});
  auto value = [&](int64_t i) -> float {
    switch (dtype_) {
      case DType::f32:
        return static_cast<const float*>(host.raw())[i];
      case DType::bf16:
        return to_float(static_cast<const bfloat16*>(host.raw())[i]);
      case DType::i32:
        return to_float(static_cast<const int32_t*>(host.raw())[i]);
      case DType::i64:
        return to_float(static_cast<const int64_t*>(host.raw())[i]);
      case DType::u8:
        return static_cast<const uint8_t*>(host.raw())[i];
    }
    return 0;
  };
  std::vector<float> out(size_);
  if (layout_ == Layout::plain) {
    for (int64_t i = 0; i < size_; ++i) out[i] = value(i);
    return out;
  }
  int64_t i = 0;
  const int64_t pixels = shape_[2] * shape_[3];
  for (int64_t n = 0; n < shape_[0]; ++n)
    for (int64_t c = 0; c < shape_[1]; ++c)
      for (int64_t p = 0; p < pixels; ++p)
        out[i++] = value(offset_in(layout_, shape_[1], pixels, n, c, p));
  return out;
}

float Tensor::item() const {
  check(size_ == 1, "item: expected one element, found shape ", to_string(shape_));
  return *to(Device{}).data<float>();
}

void check_shape(const Tensor& x, const Shape& expected, const std::string& name) {
  check(x.shape() == expected, name, ": expected shape ", to_string(expected), ", found ",
        to_string(x.shape()));
}

void check_form(const Tensor& x, const Form& expected, const char* name) {
  const Form found = x.form();
  if (found != expected)
    check(false, name, ": expected ", to_string(expected), ", found ", to_string(found));
}

}  // namespace heddle
