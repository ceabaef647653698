// What the compressing reducers share: which layers they compress and with which setting,
// residuals, gradients that are not finite, and the staging of several layers' values for one
// collective. An algorithm derives from it and writes exchange().
//
//   bool exchange(Exchange& e) override {
//     SumPayload sums(e.dense, n);   // room for n values of the compressed layers beside them
//     if (!sums.all_reduce(e)) return false;
//     ...
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compress/error_feedback.h"
#include "compress/families.h"
#include "compress/reducer.h"

namespace heddle {

class CompressedReducer : public Reducer {
 public:
  explicit CompressedReducer(const ReducerSetup& setup);

  const char* name() const override { return family_.name.c_str(); }
  bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) final;
  void set_choice(const std::string& parameter, double value) override;
  double choice(const std::string& parameter) const override;
  // The residuals, as "residual.<parameter>"; zero before the first step.
  std::vector<std::pair<std::string, Tensor>> named_state() const override;
  ErrorFeedback* feedback() { return feedback_ ? &*feedback_ : nullptr; }

  struct Layer {
    const Parameter* parameter;
    uint64_t index;   // in the order of creation: a key of random numbers
    bool compressed;  // false: travels dense whatever is set
    double choice;
  };
  // A layer of a bucket. x holds its gradient, with the residual where there is one, and takes the
  // sum over the ranks.
  struct Item {
    Layer* layer;
    Tensor tensor;  // (n)
    float* x;       // its elements
    int64_t n;
    const std::string& name() const { return layer->parameter->name; }
  };
  // Host memory; items in the order of memory, at least one of them compressed.
  struct Exchange {
    std::vector<Item> compressed, dense;
    bool finite;  // false: this rank's gradients were not, and are zero now
    int64_t step;
    Communicator& comm;
    Ledger& ledger;
  };

 protected:
  // Puts the sums over the ranks into the items, commits residuals, and returns true; or returns
  // false, on all ranks alike, with the residuals as they were.
  virtual bool exchange(Exchange& e) = 0;
  // Whether the setting makes the layer smaller; else it travels dense for now.
  virtual bool pays(const Layer& /*layer*/) const { return true; }

  mutable std::optional<ErrorFeedback> feedback_;  // set by algorithms that use it
  std::map<std::string, Layer> layers_;

 private:
  const Family& family_;
};

// Several layers' floats and the flag of ranks that have nothing finite to give, in one all-reduce.
class SumPayload {
 public:
  // The gradients of the dense items, and room for so many values.
  SumPayload(const std::vector<CompressedReducer::Item>& dense, int64_t values);
  // Some of the room for a layer, to be filled; holds the sums after the call.
  Tensor add(const std::string& layer, const Shape& shape);
  // False on all ranks when one of them raised the flag, or when a sum is beyond 1e36.
  bool all_reduce(const CompressedReducer::Exchange& e);
  // Puts the sums into the dense items.
  void take_dense() const;

 private:
  const std::vector<CompressedReducer::Item>& dense_;
  Tensor data_;
  int64_t used_ = 0;
  std::vector<PayloadPart> parts_;
};

// Sums a bucket's gradients as they are; false when a sum is not finite.
bool sum_dense(const GradientBucket& bucket, const Tensor& flat, Communicator& comm,
               Ledger& ledger);

}  // namespace heddle
