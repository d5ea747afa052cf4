#include "cli/interrupt.h"

#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "cli/cli.h"

namespace dsckpt::cli {
namespace {

std::atomic<std::atomic<bool>*> cancel_flag{nullptr};

std::atomic<int> writers{0};
std::atomic<const LastWords*> last_words{nullptr};

void say(int descriptor, const std::string& words) {
  [[maybe_unused]] const ssize_t put = ::write(descriptor, words.data(), words.size());
}

extern "C" void on_patience_lost(int) {
  if (writers > 0) return;
  if (const LastWords* words = last_words) end_at_once(*words, kInterrupted);
  ::_exit(kInterrupted);
}

extern "C" void on_signal(int) {
  if (std::atomic<bool>* flag = cancel_flag.load()) *flag = true;
  if (writers > 0) return;
  itimerval patience{};
  patience.it_value.tv_usec = 150'000;
  ::setitimer(ITIMER_REAL, &patience, nullptr);
}

std::atomic<bool> asked{false};
std::atomic<bool> answered{false};  // by a progress display

extern "C" void on_request(int) {
  asked = true;
  if (answered) return;
  constexpr std::string_view kText = "reading and planning; nothing is written yet, or all is\n";
  const int before = errno;
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, kText.data(), kText.size());
  errno = before;
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
    // A program under nohup ignores SIGHUP, and this must not change.
    if (inherited.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
  struct sigaction patience {};
  patience.sa_handler = on_patience_lost;
  ::sigaction(SIGALRM, &patience, nullptr);
  struct sigaction request {};
  request.sa_handler = on_request;
  request.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &request, nullptr);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler == on_signal) std::signal(signal, SIG_DFL);
  }
  // Such a signal may still be pending.
  std::signal(SIGALRM, SIG_IGN);
  std::signal(SIGUSR1, SIG_IGN);
  cancel_flag = nullptr;
}

bool is_interrupted() {
  const std::atomic<bool>* const flag = cancel_flag.load();
  return flag != nullptr && *flag;
}

void end_at_once(const LastWords& words, int status) {
  say(STDOUT_FILENO, words.on_stdout);
  say(STDERR_FILENO, words.on_stderr);
  ::_exit(status);
}

void set_last_words(const LastWords& words) {
  last_words = &words;
}

Writing::Writing() {
  ++writers;
}

Writing::~Writing() {
  --writers;
}

ProgressRequests::ProgressRequests() {
  asked = false;
  answered = true;
}

ProgressRequests::~ProgressRequests() {
  answered = false;
}

bool ProgressRequests::take() {
  return asked.exchange(false);
}

}  // namespace dsckpt::cli
