// Exchange: one bucket on its way through CompressedReducer::reduce(), and the collectives that
// algorithms use.
//
//   if (!all_reduce(e, sums)) return false;                 // sums of tensors
//   return sum_at_indices(e, *feedback_, indices, coding);  // sums of selected elements
//   const Messages all = gather_messages(e, parts, least, most, "top-k");   // messages to all
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/codecs/blocks.h"
#include "compress/error_feedback.h"
#include "compress/layer_table.h"
#include "compress/reducer.h"

namespace heddle {

// A bucket's layers in the order of memory, on one device. At least one layer is compressed.
struct Exchange {
  // A compressed layer of n elements. All tensors are on `device`. With error feedback `tensor` is
  // the residual's memory and `sum` the gradient's (error_feedback.h has a picture); without, both
  // are the gradient's.
  struct Item {
    CompressedLayer* layer;
    Tensor tensor;         // (n) f32, what to send: gradient plus residual; then the new residual
    Tensor sum;            // (n) f32, receives the sum over ranks
    Tensor chunk_indices;  // (chunks) i32, index of the largest |x|; only if chunk() asked for it
    Tensor magnitudes;     // (chunks) i32, the largest |x| (codecs/magnitude.h); with residual only
    const std::string& name() const { return layer->name(); }
    float* x() const { return tensor.data<float>(); }
    int64_t n() const { return tensor.size(); }
    // Returns the residual of the last step, which lies in the gradient's memory until the sum is
    // written to it.
    const Tensor& old_residual() const { return sum; }
  };

  Device device;
  std::vector<Item> compressed;
  NamedTensors dense;  // gradients, residuals added where there are any; they receive the sums
  int64_t step, compressed_steps;
  Communicator& comm;
  Ledger& ledger;
  bool finite = true;  // false: this rank's gradients were non-finite, and are zero now
  // (n) i32, magnitudes on a GPU that the host has not seen, in place of `finite`: write_flag()
  // decides there whether they are finite.
  Tensor unchecked = {};
  uint64_t culprit = 0;  // 1 + index of the first non-finite layer in the order of memory; 0: none
};

// Records for --explain-step how many values (k) of an item this rank sends, and their energy.
void explain_selection(const Exchange::Item& item, const Tensor& values,
                       const char* file = __builtin_FILE(), int line = __builtin_LINE());

// Returns the ledger's kind of a tensor that is summed: control words, else values.
PayloadKind kind_of(const std::string& name);

// Writes to flag (1) f32 infinity if this rank's gradients are not finite, else 0: its sum over the
// ranks is infinite if those of any rank are not.
void write_flag(const Exchange& e, const Tensor& flag);

// Sums tensors over the ranks, in place, by one all-reduce, together with a flag that a rank sets
// if its gradients were non-finite. The names are the ledger's. Returns false on all ranks, and
// leaves the tensors as they were, if a flag was set or a sum is above kMaxSum.
bool all_reduce(Exchange& e, const NamedTensors& tensors);

// all_reduce() of dense tensors and values, these as fp32 or bf16. lost[i], where there is one,
// then receives what rounding values[i] has lost (all_reduce_bf16() in block_exchange.h). With bf16
// the tensors hold anything after false.
bool sum_values(Exchange& e, const NamedTensors& dense, const NamedTensors& values, Coding coding,
                const std::vector<Tensor>& lost = {});

// Sums the elements at indices that are the same on all ranks: gathers each item's values at
// `indices` ((k) i32 for each compressed item, on its device), sums them and the dense tensors over
// the ranks by one all-reduce, keeps what was not sent in the residuals, and scatters the sums into
// item.sum. A learner's traffic does not grow with the number of learners. Returns false on all
// ranks, as all_reduce() does. `coding`: of the values, fp32 or bf16; what rounding loses stays in
// the residuals.
bool sum_at_indices(Exchange& e, ErrorFeedback& feedback, const std::vector<Tensor>& indices,
                    Coding coding);

// A part of a message: any type, on any device.
struct MessagePart {
  std::string layer;  // as in PayloadPart
  PayloadKind kind;
  Tensor data;
  int64_t counted = -1;  // as in PayloadPart
};

// The messages of all ranks.
struct Messages {
  Tensor bytes;                  // u8 (ranks, longest), on the exchange's device; padded with zeros
  std::vector<int64_t> lengths;  // bytes, flag included
  bool finite;                   // false: some rank's gradients were non-finite
  // Returns a rank's parts, concatenated: u8 (length - 1), a view.
  Tensor from(int rank) const { return row(rank).slice(1, lengths[to_size(rank)]); }
  // Returns a rank's whole row: u8 (longest), a view.
  Tensor row(int rank) const { return bytes.slice(rank, rank + 1).reshape({bytes.shape()[1]}); }
};

// Gathers one message from each rank: a flag (e.finite), then the parts. The length in bytes may
// differ from rank to rank, and then lies between `least` and `most`, which are the same on all
// ranks: lengths are gathered first, then messages padded to the longest. If least == most a single
// collective is enough. Books everything in e.ledger. Throws Error, beginning with `where`, if a
// rank announces a length out of range.
Messages gather_messages(Exchange& e, const std::vector<MessagePart>& parts, int64_t least,
                         int64_t most, const char* where);

}  // namespace heddle
