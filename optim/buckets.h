// Buckets: the flat gradient buffer, cut into pieces that are exchanged one at a time. Memory order
// is backward order (core/parameters.h), so a bucket is a view of the buffer, nothing is copied,
// and the first bucket is complete while backward has most of its work left.
//
//   grads   | head.weight head.bias | conv3.weight    | conv2.weight conv2.bias conv1.weight |
//           |------- bucket 0 ------|---- bucket 1 ---|--------------- bucket 2 -------------|
//
// Not thread-safe: one thread marks gradients as ready. While exchanges are under way other threads
// may read, and each may write `finite` of the bucket that it exchanges.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/parameters.h"

namespace heddle {

struct Bucket {
  int64_t begin = 0, end = 0;          // elements of the flat buffers, [begin, end)
  std::vector<Parameter*> parameters;  // inside, in memory order
  size_t pending = 0;                  // how many have no final gradient yet in this step
  bool finite = false;                 // its sum of this step may be applied

  bool complete() const { return pending == 0; }
};

class Buckets {
 public:
  Buckets() = default;  // none
  // Ends a bucket after the parameter with which it reaches `bytes`: all but the last hold at least
  // that many. The store must outlive this object. Throws InputError unless bytes > 0.
  Buckets(ParameterStore& store, int64_t bytes);

  size_t size() const { return buckets_.size(); }
  Bucket& operator[](size_t index) { return buckets_[index]; }
  const Bucket& operator[](size_t index) const { return buckets_[index]; }
  const Bucket& back() const { return buckets_.back(); }
  auto begin() const { return buckets_.begin(); }
  auto end() const { return buckets_.end(); }
  size_t index_of(const Parameter& p) const { return index_.at(&p); }

  // Begins a step, in which no gradient is final yet.
  void begin_step();
  // Marks the gradient of p as final. Returns false if it already was in this step.
  bool mark_ready(const Parameter& p);

  // Joins bucket i, as it was cut, with the one before it where joined[i], from now on; joined[0]
  // is false. To be called between steps only.
  void join(const std::vector<bool>& joined);
  size_t cuts() const { return cuts_.size(); }  // buckets when none are joined
  // Returns the names of the parameters in each bucket as it was cut.
  std::vector<std::vector<std::string>> names() const;

 private:
  std::vector<std::vector<Parameter*>> cuts_;  // by bucket, before any were joined
  std::vector<bool> joined_;
  std::vector<Bucket> buckets_;
  std::unordered_map<const Parameter*, size_t> index_;
  std::set<const Parameter*> ready_;
};

}  // namespace heddle
