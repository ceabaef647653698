// Tensor: contiguous data on a device, with a logical shape. It knows nothing of gradients.
// Copies are cheap and share the storage; views are reshapes and slices along the first axis.
//
//   Tensor x = Tensor::zeros({32, 10});
//   float* p = x.data<float>();
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "core/bfloat16.h"
#include "core/device.h"
#include "core/error.h"
#include "core/scalar.h"

namespace heddle {

enum class DType : uint8_t { f32, bf16, i32, i64, u8 };

// Physical order of a 4-d tensor whose logical shape is always (N, C, H, W).
// plain: as the shape says. nhwc: channels last. c16: (N, C/16, H, W, 16), C a multiple of 16.
enum class Layout : uint8_t { plain, nhwc, c16 };

int64_t dtype_size(DType dtype);  // bytes
const char* dtype_name(DType dtype);
const char* layout_name(Layout layout);
// Returns the offset, in elements, of channel c of a pixel of image n in (N, C, H * W).
inline int64_t offset_in(Layout layout, int64_t channels, int64_t pixels, int64_t n, int64_t c,
                         int64_t pixel) {
  if (layout == Layout::plain) return (n * channels + c) * pixels + pixel;
  if (layout == Layout::nhwc) return (n * pixels + pixel) * channels + c;
  return ((n * (channels / 16) + c / 16) * pixels + pixel) * 16 + c % 16;
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, bfloat16>) return DType::bf16;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
}

// The extents of a tensor, at most five.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(const std::vector<int64_t>& dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t& operator[](int axis) { return dims_[axis]; }
  int64_t elements() const;  // 1 for a scalar
  bool operator==(const Shape& other) const;
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }

 private:
  std::array<int64_t, 5> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "(32, 3, 224, 224)"

// The properties that two tensors must share to be combined element by element.
struct Form {
  Shape shape;
  DType dtype;
  Layout layout;
  bool operator==(const Form&) const = default;
};

std::string to_string(const Form& form);  // "f32 (32, 3, 224, 224) nhwc"

class Pool;
class Storage;  // owns memory of a pool

// A tensor that was moved from may only be assigned to or destroyed.
class Tensor {
 public:
  Tensor() = default;

  // Return uninitialised or zero-filled memory from the pool of the calling thread's Context. Throw
  // InputError for a layout that does not fit the shape, Error when memory is exhausted.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Layout layout = Layout::plain);
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Layout layout = Layout::plain);
  static Tensor empty_on(Device device, const Shape& shape, DType dtype = DType::f32,
                         Layout layout = Layout::plain);
  // Returns host memory; where the Context has a GPU, pinned, so that copies are fast.
  static Tensor empty_pinned(const Shape& shape, DType dtype = DType::f32);
  // Returns uninitialised memory with shape, type, layout and device of another tensor.
  static Tensor empty_like(const Tensor& other);
  // Returns a CPU tensor with these values, one-dimensional or of the given shape.
  static Tensor from(const std::vector<float>& values);
  static Tensor from(const std::vector<float>& values, const Shape& shape);
  // Returns a one-dimensional CPU tensor of type i32: labels, tokens.
  static Tensor from_integers(const std::vector<int32_t>& values);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t size() const { return size_; }  // elements
  int64_t bytes() const { return size_ * dtype_size(dtype_); }
  DType dtype() const { return dtype_; }
  Layout layout() const { return layout_; }
  Form form() const { return {shape_, dtype_, layout_}; }
  Device device() const;
  // Returns whether no other tensor shares the storage: the holder may write in place.
  bool unique() const;

  void* raw() const { return data_; }
  template <class T>
  T* data() const {
    check(dtype_ == dtype_of<T>(), "tensor: expected ", dtype_name(dtype_of<T>()), ", found ",
          dtype_name(dtype_));
    return static_cast<T*>(data_);
  }

  // Returns the same memory under another shape of equal size; plain layout only.
  Tensor reshape(const Shape& shape) const;
  // Returns the same bytes under another shape and layout of equal size. The caller ensures that
  // the order fits, as for maps of one pixel.
  static Tensor view_as(const Tensor& x, const Shape& shape, Layout layout = Layout::plain);
  // Returns elements [begin, end) along the first axis, as a view.
  Tensor slice(int64_t begin, int64_t end) const;
  // Returns the same memory, in its order, as bytes: (bytes()) u8.
  Tensor as_bytes() const;
  // Returns a copy with its own memory.
  Tensor clone() const;
  // Copies bytes from a tensor of equal type, shape and layout, across devices too.
  void copy_from(const Tensor& source) const;
  // Returns a copy on the given device, or this tensor when it is there already.
  Tensor to(Device device) const;
  void fill_zero() const;
  // Returns the values as float, in logical order (plain), on the host. For tests, logs, files.
  std::vector<float> to_vector() const;
  // Returns the only element of a one-element f32 tensor; waits for a GPU.
  float item() const;

 private:
  static Tensor make(const std::shared_ptr<Pool>& pool, const Shape& shape, DType dtype,
                     Layout layout);

  std::shared_ptr<Storage> storage_;
  void* data_ = nullptr;
  Shape shape_;
  int64_t size_ = 0;
  DType dtype_ = DType::f32;
  Layout layout_ = Layout::plain;
};

// Returns the extents of a tensor for structured bindings. Throws InputError with the name unless
// it has K axes.
//   auto [n, c, h, w] = dims<4>(x, "conv2d input");
template <int K>
std::array<int64_t, K> dims(const Tensor& x, const char* name) {
  check(x.shape().rank() == K, name, ": expected ", K, " axes, found shape ", to_string(x.shape()));
  std::array<int64_t, K> out;
  for (int i = 0; i < K; ++i) out[i] = x.shape()[i];
  return out;
}

// Throw InputError, with the name, what was expected and what was found, unless x has this shape or
// this form.
void check_shape(const Tensor& x, const Shape& expected, const std::string& name);
void check_form(const Tensor& x, const Form& expected, const char* name);

}  // namespace heddle
