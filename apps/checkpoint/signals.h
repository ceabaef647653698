// Handles SIGTERM, SIGINT, SIGHUP and SIGUSR1, which ask a run to save itself and end; a second
// one, half a second later or more, ends it at once. A pipe whose reader is gone asks the same:
// Ctrl-C ends the `tee` of a run as well.
//
// One thread receives them with sigwait, and all others block them: no handler may run on a thread
// that computes. oneDNN's generated matrix products point the stack pointer into heap memory, and
// the kernel would write the handler's frame over the data there.
//
//   watch_signals();               // before there are other threads
//   catch_signals();               // before training starts
//   if (signal_received()) ...     // asked between steps
#pragma once

namespace heddle {

// Blocks the signals in this thread, and thus in all that it starts, and starts the thread that
// receives them. Until catch_signals() each has its default effect. A SIGHUP that was ignored when
// the program started (nohup) stays ignored. Called once, before any other thread exists.
void watch_signals();

// Turns signals into requests to stop, from now until the process ends. The first one writes the
// note to stderr. Any thread.
void catch_signals(const char* note = "");

// Returns whether one has arrived since catch_signals(), or a pipe has lost its reader. Any thread.
bool signal_received();

}  // namespace heddle
