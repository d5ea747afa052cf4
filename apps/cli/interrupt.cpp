#include "cli/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

namespace dsckpt::cli {
namespace {

std::atomic<std::atomic<bool>*> cancel_flag{nullptr};

extern "C" void on_signal(int) {
  if (std::atomic<bool>* flag = cancel_flag.load()) *flag = true;
}

constexpr std::array kSignals{SIGHUP, SIGINT, SIGTERM};

}  // namespace

InterruptGuard::InterruptGuard(Progress& progress) {
  cancel_flag = &progress.cancelled;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : kSignals) {
    struct sigaction inherited {};
    ::sigaction(signal, nullptr, &inherited);
    // What was started with nohup goes on when the terminal goes.
    if (inherited.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler == on_signal) std::signal(signal, SIG_DFL);
  }
  cancel_flag = nullptr;
}

}  // namespace dsckpt::cli
