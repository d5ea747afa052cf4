// TextFile: a file with a text that gets its name when it is whole. And small files, read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "io/folder.h"

namespace dsckpt {

// Written under another name, and removed again unless it is published.
class TextFile {
 public:
  // `staging`: a folder for the time until it is published, where whoever goes on removes what a
  // run that was killed has left; else that is beside its name. Throws IoError, and UsageError for
  // another user's link on the way.
  TextFile(const std::filesystem::path& path, std::string text, bool durable,
           std::optional<Folder> staging = std::nullopt);
  // The same in a folder that is open.
  TextFile(Folder folder, std::filesystem::path name, std::string text, bool durable,
           std::optional<Folder> staging = std::nullopt);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  // A reader sees what was there before or the new file, whole. Throws IoError.
  void publish();
  // The same, but false where a file is there already. Not with a staging folder.
  bool publish_new();
  // Waits until the name is on the device. Throws IoError.
  void sync_published() const { folder_.sync(); }

 private:
  void write();
  [[noreturn]] void fail(int reason) const;

  const Folder folder_;
  const std::filesystem::path name_;
  const std::string text_;
  const bool durable_;
  Folder staged_in_;
  std::string staged_ = {};  // its name there; "": it is not there
};

// What is in a file of this user's with one name, from `begin` on, `most` bytes at most; nothing if
// there is none. Throws UsageError if it is anything else, IoError.
std::optional<std::string> own_content(const Folder& folder, const std::filesystem::path& name,
                                       uint64_t begin = 0, uint64_t most = ~uint64_t{0});

// The whole of a small file that was written for a tool, compressed or not. Throws IoError, and
// UsageError "PATH: is too long for WHAT" for more than InputFile::kMostAtOnce bytes.
std::string read_text(const std::filesystem::path& path, std::string_view what);

// Puts a file with `text` in the place of `path`, or makes it. Throws what a TextFile throws.
void replace_text_file(const std::filesystem::path& path, const std::string& text, bool durable);
// The same in a folder that is open.
void replace_text_file(const Folder& folder, const std::filesystem::path& name,
                       const std::string& text, bool durable);

}  // namespace dsckpt
