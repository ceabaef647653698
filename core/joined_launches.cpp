#include "core/joined_launches.h"

#include <utility>
#include <vector>

#include "core/error.h"

namespace heddle {
namespace {

thread_local bool collecting_now = false;
thread_local std::vector<void (*)(bool)> kinds;

void finish_all(bool start) {
  const auto all = std::exchange(kinds, {});
  size_t i = 0;
  try {
    for (; i < all.size(); ++i) all[i](start);
  } catch (...) {
    for (++i; i < all.size(); ++i) all[i](false);
    throw;
  }
}

}  // namespace

JoinedLaunches::JoinedLaunches() {
  check(!collecting_now, "joined launches: this thread collects already");
  collecting_now = true;
}

JoinedLaunches::~JoinedLaunches() {
  finish_all(false);
  collecting_now = false;
}

void JoinedLaunches::launch() { finish_all(true); }

bool JoinedLaunches::collecting() { return collecting_now; }

void JoinedLaunches::enlist(void (*finish)(bool)) { kinds.push_back(finish); }

}  // namespace heddle
