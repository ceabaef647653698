// Linked into train_resnet_hooked, which tests kill while it saves: it waits TEST_SAVE_PAUSE_MS
// milliseconds after each file of a checkpoint, and is killed after it has written
// TEST_SAVE_KILL_AT files. train_resnet itself has no such hook.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "apps/checkpoint/saver.h"

namespace heddle {

std::function<void(const std::string&)> save_hook() {
  const char* pause = std::getenv("TEST_SAVE_PAUSE_MS");
  const char* kill = std::getenv("TEST_SAVE_KILL_AT");
  if (pause == nullptr && kill == nullptr) return {};
  const int ms = pause == nullptr ? 0 : std::atoi(pause),
            last = kill == nullptr ? 0 : std::atoi(kill);
  return [ms, last](const std::string&) {
    static std::atomic<int> written = 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    if (++written == last) (void)std::raise(SIGKILL);
  };
}

}  // namespace heddle
