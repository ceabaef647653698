#include "optim/buckets.h"

namespace heddle {

Buckets::Buckets(ParameterStore& store, int64_t bytes) {
  check(bytes > 0, "bucket size: expected at least one byte, found ", bytes);
  int64_t filled = bytes;
  for (auto p = store.parameters().rbegin(); p != store.parameters().rend(); ++p) {
    if (filled >= bytes) cuts_.emplace_back();
    cuts_.back().push_back(&*p);
    filled = (p->offset + p->size() - cuts_.back().front()->offset) * 4;
  }
  join(std::vector<bool>(cuts_.size(), false));
}

void Buckets::join(const std::vector<bool>& joined) {
  if (joined == joined_) return;
  joined_ = joined;
  buckets_.clear();
  for (size_t i = 0; i < cuts_.size(); ++i) {
    const int64_t begin = cuts_[i].front()->offset;
    if (!joined[i]) buckets_.push_back({.begin = begin, .end = begin, .parameters = {}});
    Bucket& bucket = buckets_.back();
    for (Parameter* p : cuts_[i]) {
      bucket.end = p->offset + p->size();
      bucket.parameters.push_back(p);
      index_[p] = buckets_.size() - 1;
    }
  }
}

void Buckets::begin_step() {
  ready_.clear();
  for (Bucket& bucket : buckets_) bucket.pending = bucket.parameters.size();
}

bool Buckets::mark_ready(const Parameter& p) {
  if (!ready_.insert(&p).second) return false;
  --buckets_[index_of(p)].pending;
  return true;
}

std::vector<std::vector<std::string>> Buckets::names() const {
  std::vector<std::vector<std::string>> out;
  for (const auto& parameters : cuts_)
    for (out.emplace_back(); const Parameter* p : parameters) out.back().push_back(p->name);
  return out;
}

}  // namespace heddle
