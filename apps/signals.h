// SIGTERM, SIGINT and SIGUSR1 ask a run to save itself and end; a second one, half a second later
// or more, ends it at once.
//
//   const SignalScope signals;          // around the training
//   if (signal_received()) ...          // looked at between steps
#pragma once

namespace heddle {

// Catches the signals while it lives. One at a time, on the main thread.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;
};

// Whether one has come since the scope began.
bool signal_received();

}  // namespace heddle
