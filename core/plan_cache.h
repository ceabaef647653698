// Plans of vendor libraries (oneDNN primitives, cuDNN and cuBLASLt algorithms), made at the first
// use of a shape and kept until the Context ends: nothing is created twice in a run. Internal.
//
//   struct PoolPlan { … };
//   PoolPlan& plan = cached_plan<PoolPlan>(plan_key(x.shape(), kernel, x.dtype()),
//                                          [&] { return make_plan(x, kernel); });
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <type_traits>

#include "core/context.h"
#include "core/tensor.h"

namespace heddle {

using PlanKey = std::array<int64_t, 16>;

// Joins integers, enumerators and shapes, at most 16 numbers, into a key.
template <class... Parts>
PlanKey plan_key(const Parts&... parts) {
  PlanKey key{};
  size_t used = 0;
  const auto append = [&](const auto& part) {
    if constexpr (std::is_same_v<std::decay_t<decltype(part)>, Shape>)
      for (int64_t extent : part) key.at(used++) = extent;
    else
      key.at(used++) = to_int64(part);
  };
  (append(parts), ...);
  return key;
}

// Returns the current Context's plan for a key, from make() at its first use. The reference stays
// valid for the life of the Context. Keys of different Plan types are independent.
template <class Plan, class Make>
Plan& cached_plan(const PlanKey& key, const Make& make) {
  auto& plans = Context::current().state<std::map<PlanKey, Plan>>();
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make()).first;
  return found->second;
}

}  // namespace heddle
