#include "io/text_file.h"

#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/random.h"
#include "dsckpt/error.h"
#include "io/output_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

Folder folder_of(const fs::path& path) {
  try {
    return Folder::at(fs::absolute(path).parent_path());
  } catch (const IoError& error) {
    throw IoError({.file = path.string()}, "cannot write", error.errno_value());
  }
}

void replace_with(TextFile&& file, bool durable) {
  file.publish();
  if (durable) file.sync_published();
}

}  // namespace

TextFile::TextFile(const fs::path& path, std::string text, bool durable,
                   std::optional<Folder> staging)
    : TextFile(folder_of(path), path.filename(), std::move(text), durable, std::move(staging)) {}

TextFile::TextFile(Folder folder, fs::path name, std::string text, bool durable,
                   std::optional<Folder> staging)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      text_(std::move(text)),
      durable_(durable),
      staged_in_(staging ? *std::move(staging) : folder_) {
  write();
}

TextFile::~TextFile() {
  if (!staged_.empty()) staged_in_.remove(staged_);
}

void TextFile::write() {
  const std::string staged = name_.string() + ".dsckpt-" + std::to_string(random_number());
  const int fd = staged_in_.create(staged);
  if (fd < 0) fail(errno);
  const bool good = write_all(fd, text_) && (!durable_ || ::fsync(fd) == 0);
  int failed = errno;
  const bool closed = ::close(fd) == 0;
  if (good && !closed) failed = errno;
  if (!good || !closed) {
    staged_in_.remove(staged);
    fail(failed);
  }
  staged_ = staged;
}

void TextFile::fail(int reason) const {
  throw IoError({.file = (folder_.path() / name_).string()}, "cannot write", reason);
}

void TextFile::publish() {
  int failed = staged_in_.rename(staged_, folder_, name_);
  if (failed == EXDEV) {  // an output folder that is a file system of its own
    staged_in_.remove(std::exchange(staged_, {}));
    staged_in_ = folder_;
    write();
    failed = staged_in_.rename(staged_, folder_, name_);
  }
  if (failed != 0) fail(failed);
  staged_.clear();
}

bool TextFile::publish_new() {
  int failed = folder_.rename(staged_, folder_, name_, RENAME_NOREPLACE);
  if (failed == 0) staged_.clear();
  // Not every file system has that; a link is refused where there is something, too.
  if (failed == EINVAL || failed == ENOSYS) failed = folder_.link(staged_, folder_, name_);
  if (failed != 0 && failed != EEXIST) fail(failed);
  return failed == 0;
}

void replace_text_file(const fs::path& path, const std::string& text, bool durable) {
  replace_with(TextFile(path, text, durable), durable);
}

void replace_text_file(const Folder& folder, const fs::path& name, const std::string& text,
                       bool durable) {
  replace_with(TextFile(folder, name, text, durable), durable);
}

}  // namespace dsckpt
