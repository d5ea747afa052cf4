// TextFile: a text file that gets its name when it is complete. read_text() reads small ones.
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
  // `staging`: a folder for the file until it is published, beside its name if not given. A resumed
  // run removes the left-overs of a killed run there. Throws IoError, and UsageError for another
  // user's link on the way.
  TextFile(const std::filesystem::path& path, std::string text, bool durable,
           std::optional<Folder> staging = std::nullopt);
  // The same in an open folder.
  TextFile(Folder folder, std::filesystem::path name, std::string text, bool durable,
           std::optional<Folder> staging = std::nullopt);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  // Replaces the old file: a reader sees the old one or the complete new one. Throws IoError.
  void publish();
  // The same, but returns false if a file is there already. Not with a staging folder.
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

// The content of a regular file of this user with one name, from `begin` on, at most `most` bytes;
// nothing if there is none. Throws IoError, and UsageError if it is anything else.
std::optional<std::string> own_content(const Folder& folder, const std::filesystem::path& name,
                                       uint64_t begin = 0, uint64_t most = ~uint64_t{0});

// Reads a whole small file that was written for a tool, compressed or not. Throws IoError, and
// UsageError "PATH: is too long for WHAT" for more than InputFile::kMostAtOnce bytes.
std::string read_text(const std::filesystem::path& path, std::string_view what);

// True if a file is there, can be read, and holds just `text`.
bool holds_text(const std::filesystem::path& path, std::string_view text);

// Creates or replaces `path` with a file that holds `text`. Throws as a TextFile.
void replace_text_file(const std::filesystem::path& path, const std::string& text, bool durable);
// The same in an open folder.
void replace_text_file(const Folder& folder, const std::filesystem::path& name,
                       const std::string& text, bool durable);

}  // namespace dsckpt
