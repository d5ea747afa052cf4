#include "io/text_file.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/random.h"
#include "dsckpt/error.h"
#include "io/input_file.h"
#include "io/output_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kReadAtOnce = 64 << 10;

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
  if (failed == EXDEV) {  // the output folder is a mount point of its own
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
  // File systems without RENAME_NOREPLACE get a link, which fails in the same way if the name is
  // taken.
  if (failed == EINVAL || failed == ENOSYS) failed = folder_.link(staged_, folder_, name_);
  if (failed != 0 && failed != EEXIST) fail(failed);
  return failed == 0;
}

std::optional<std::string> own_content(const Folder& folder, const fs::path& name, uint64_t begin,
                                       uint64_t most) {
  const Where where{.file = (folder.path() / name).string()};
  const FileDescriptor file(folder.open_ours(name, {.is_read_too = true}));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) throw IoError(where, "cannot open", errno);
  std::string content;
  while (content.size() < most) {
    const size_t had = content.size();
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(kReadAtOnce, most - had));
    content.resize(had + wanted);
    const ssize_t got =
        ::pread(file.get(), content.data() + had, wanted, static_cast<off_t>(begin + had));
    content.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(where, "cannot read", errno);
    if (got == 0) break;
  }
  return content;
}

std::string read_text(const fs::path& path, std::string_view what) {
  const InputFile file(path);
  if (file.size() > InputFile::kMostAtOnce) {
    throw UsageError(path.string() + ": is too long for " + std::string(what));
  }
  const std::vector<std::byte> bytes = file.read(0, file.size());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool holds_text(const std::filesystem::path& path, std::string_view text) {
  try {
    const InputFile file(path);
    return file.size() == text.size() && as_text(file.read(0, file.size())) == text;
  } catch (const Error&) {
    return false;
  }
}

void replace_text_file(const fs::path& path, const std::string& text, bool durable) {
  replace_with(TextFile(path, text, durable), durable);
}

void replace_text_file(const Folder& folder, const fs::path& name, const std::string& text,
                       bool durable) {
  replace_with(TextFile(folder, name, text, durable), durable);
}

}  // namespace dsckpt
