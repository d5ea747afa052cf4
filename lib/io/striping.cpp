#include "io/striping.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "io/file_system.h"

extern char** environ;

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kProgram = "lfs";

bool is_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string_view left = path == nullptr ? "" : path;
  for (bool more = true; more;) {
    const size_t end = left.find(':');
    more = end != left.npos;
    const fs::path folder = left.substr(0, end);
    if (::access((folder / program).c_str(), X_OK) == 0) return true;
    if (more) left.remove_prefix(end + 1);
  }
  return false;
}

// Reads a program's output until it ends.
std::string read_all(int fd) {
  constexpr size_t kMostText = 4096;
  std::string text;
  std::array<char, 512> buffer{};
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > kMostText) text.resize(kMostText);
  }
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

class Pipe {
 public:
  explicit Pipe(const fs::path& folder) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw IoError({.file = folder.string()}, "cannot make a pipe", errno);
    }
    reader_ = FileDescriptor(ends[0]);
    writer_ = FileDescriptor(ends[1]);
  }

  int reader() const { return reader_.get(); }
  int writer() const { return writer_.get(); }
  void close_writer() { writer_.reset(); }

 private:
  FileDescriptor reader_;
  FileDescriptor writer_;
};

}  // namespace

void check_can_stripe(const fs::path& path) {
  if (file_system_kind(path) != FileSystemKind::lustre) {
    throw UsageError("--stripe: " + existing_part(path).string() + " is not on Lustre")
        .with_hint("leave --stripe out, or choose an output that is");
  }
  if (!is_in_path(kProgram)) {
    throw UsageError("--stripe: there is no `lfs` in PATH")
        .with_hint(
            "it is one of Lustre's client tools; or leave --stripe out, and have "
            "`lfs setstripe` set the folder that the output is made in, elsewhere");
  }
}

void set_striping(const Folder& folder, const Striping& striping) {
  Pipe said(folder.path());
  std::string program = kProgram;
  std::array<std::string, 6> words{
      "setstripe", "-c", std::to_string(striping.count), "-S", std::to_string(striping.bytes), "."};
  std::array<char*, 8> arguments{program.data()};
  for (size_t i = 0; i < words.size(); ++i) arguments[i + 1] = words[i].data();

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addfchdir_np(&actions, folder.descriptor());
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, said.writer(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, said.writer(), STDERR_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, kProgram, &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  const Where where{.file = folder.path().string()};
  if (failed != 0) throw IoError(where, "cannot run `lfs setstripe`", failed);
  said.close_writer();
  const std::string text = read_all(said.reader());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw IoError(where, "cannot wait for `lfs setstripe`", errno);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  std::string message = "`lfs setstripe` has failed";
  if (WIFEXITED(status)) message += " with status " + std::to_string(WEXITSTATUS(status));
  if (WIFSIGNALED(status)) message += ", killed by signal " + std::to_string(WTERMSIG(status));
  if (!text.empty()) message += ": " + printable(text);
  throw IoError(where, message, 0);
}

}  // namespace dsckpt
