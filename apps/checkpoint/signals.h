// SIGTERM, SIGINT, SIGHUP and SIGUSR1 ask a run to save itself and end; a second one, half a second
// later or more, ends it at once.
//
// One thread takes them with sigwait, and all others have them blocked: no handler may run on a
// thread that computes. oneDNN's generated matrix products point the stack pointer into heap
// memory, and the kernel would write the handler's frame over what lies there.
//
//   watch_signals();               // before there are other threads
//   catch_signals();               // before the training
//   if (signal_received()) ...     // asked between steps
#pragma once

namespace heddle {

// Blocks the signals in this thread, and so in all that it starts, and starts the thread that takes
// them. Until catch_signals() each does what it does by default. A SIGHUP that was ignored when the
// program started (nohup) stays ignored. Once, before any other thread exists.
void watch_signals();

// From now on, until the process ends, signals are requests to stop.
void catch_signals();

// Whether one has come since catch_signals().
bool signal_received();

}  // namespace heddle
