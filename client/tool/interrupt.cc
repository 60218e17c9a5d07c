#include "client/tool/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace aft::client {
namespace {

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// A shell starts a program in the background with SIGINT ignored, so that Ctrl-C ends only the one
// in the foreground. Waiting for a signal receives it even if it is ignored.
bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Interrupt::Interrupt(CancelToken& token) : token_(token) {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  stopping_ = true;
  // Wakes the thread. The signal goes to that thread only, so no signal is left over.
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void Interrupt::Run() {
  const sigset_t signals = Signals();
  while (true) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    if (stopping_) return;
    if (IsIgnored(signal)) continue;
    const int code = 128 + signal;
    if (exit_code_ != 0) _exit(code);
    exit_code_ = code;
    token_.Cancel();
  }
}

}  // namespace aft::client
