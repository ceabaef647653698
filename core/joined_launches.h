// Loops over many small tensors, as a few kernels: on a GPU a kernel over a small tensor takes
// longer to start than to run.
//
//   JoinedLaunches joined;
//   for (const Layer& l : layers) HEDDLE_DISPATCH(device, gather(l.x, l.indices, l.values));
//   joined.launch();
#pragma once

namespace heddle {

// While one exists, for_blocks() and for_each_joined() (core/shared_kernel.h) collect this thread's
// loops on a GPU; launch() starts all of a kind as one kernel, kinds in the order of their first
// loops. Loops of a kind must not depend on each other, and their tensors must live until then. On
// the CPU loops run at once. One at a time in a thread.
class JoinedLaunches {
 public:
  JoinedLaunches();
  ~JoinedLaunches();  // forgets what was not launched
  JoinedLaunches(const JoinedLaunches&) = delete;
  JoinedLaunches& operator=(const JoinedLaunches&) = delete;
  void launch();

  static bool collecting();  // on this thread
  // Calls finish(start) at launch() or at the end: it starts or forgets the loops of its kind.
  static void enlist(void (*finish)(bool start));
};

}  // namespace heddle
