// Folder: a folder by its descriptor, and the only place where files are opened for writing.
//
// A Folder stays the folder that was opened, whatever is renamed meanwhile. Nothing is written
// through a link that another user may have made:
//
// * A path from the user is walked step by step. A link on the way is followed if this user or root
//   made it, and refused if anybody else did.
// * Below a Folder no link is followed at all.
// * New files are created, never found (O_EXCL). Files and folders of an earlier run are reused
//   only if no other user can have made or changed them. Such folders belong to this user and
//   nobody else may enter them; the files in them are regular files of this user with one name.
//
// scripts/check_includes.py checks that no other code of the library or the tools opens a file for
// writing.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace dsckpt {

class Folder {
 public:
  // The folder at `path`. Throws UsageError for another user's link on the way, IoError.
  static Folder at(const std::filesystem::path& path);
  // The same, but makes missing folders on the way. Appends their paths to `made`, outermost first.
  static Folder make(const std::filesystem::path& path, std::vector<std::filesystem::path>& made);

  // The path as the user gave it, for messages; the folder may have been renamed.
  const std::filesystem::path& path() const { return path_; }
  // A descriptor opened with O_PATH, in which another program can work (fchdir).
  int descriptor() const { return fd(); }
  // Its inode number, which identifies the folder that a record was written about. 0 on file
  // systems that renumber their files (FUSE).
  uint64_t number() const;
  // The owner that the files in it must have (check_is_ours()).
  uid_t owner() const { return owner_; }

  // Makes a folder called `name` that only this user may enter. Throws IoError, and UsageError if
  // the opened folder is not like that. Some file systems give new files to another user (NFS:
  // root_squash); then that user may enter it.
  Folder make_own(const std::string& name) const;
  // Opens an existing one; nothing if there is none. Throws UsageError, with the owner, if anybody
  // but this user may have written there. With `may_be_squashed` it also accepts a folder that
  // make_own() made at an earlier time, or in another process. Its owner must be the one that this
  // process's new files get there.
  std::optional<Folder> own(const std::string& name, bool may_be_squashed = false) const;
  // Throws UsageError if `name`, or anything below it, cannot have been made by this user. Such
  // files belong to another user, or are neither folders nor regular files with one name.
  void check_is_ours(const std::string& name) const;

  // The functions below take names, or paths below this folder, without links.

  // The folder at that path; with `made`, missing folders are made. Throws UsageError for a link on
  // the way, IoError.
  Folder below(const std::filesystem::path& path,
               std::vector<std::filesystem::path>* made = nullptr) const;

  // These return a descriptor, or -1 and errno.
  // A new file.
  int create(const std::filesystem::path& name, mode_t mode = 0666) const;
  // Opens an existing file for writing: a regular file of owner() with one name. Throws UsageError
  // if it is anything else.
  struct Use {
    bool may_be_new = false;
    bool is_read_too = false;
    bool direct = false;  // O_DIRECT
  };
  int open_ours(const std::filesystem::path& name, const Use& use) const;
  // Opens an existing file for reading, whoever owns it.
  int open_to_read(const std::filesystem::path& name, int flags = 0) const;

  // The result of lstat; nothing if there is no such file, or the call fails.
  std::optional<struct stat> look(const std::filesystem::path& name) const;
  bool has(const std::filesystem::path& name) const { return look(name).has_value(); }
  // The names in it, in no order. Throws IoError.
  std::vector<std::string> names() const;

  // These return 0, or errno.
  int make_folder(const std::filesystem::path& name, mode_t mode = 0777) const;
  // `flags`: renameat2's.
  int rename(const std::filesystem::path& name, const Folder& to,
             const std::filesystem::path& new_name, unsigned flags = 0) const;
  int link(const std::filesystem::path& name, const Folder& to,
           const std::filesystem::path& new_name) const;
  int remove(const std::filesystem::path& name) const;         // a file or a link
  int remove_folder(const std::filesystem::path& name) const;  // an empty one
  // Removes it with everything in it. Links are removed, not followed. 0 if nothing is there.
  int remove_all(const std::filesystem::path& name) const;

  // On NFS: forgets which names were not there, which it may remember for a minute. This takes a
  // subfolder, which is removed at once.
  void look_anew() const;

  // Waits until its names are on the device (fsync), if its file system can. Throws IoError.
  void sync() const;

 private:
  Folder(std::shared_ptr<const FileDescriptor> descriptor, std::filesystem::path path);
  int fd() const;
  // The owner, if it is another user; else "".
  std::string not_ours(const struct stat& found, bool may_be_squashed) const;

  std::shared_ptr<const FileDescriptor> descriptor_;
  std::filesystem::path path_;
  uid_t owner_;
};

// The target of `path`, by the rules of Folder::at(): an absolute path without links, as far as it
// exists. Throws UsageError for another user's link.
std::filesystem::path resolved_path(const std::filesystem::path& path);

// Makes a folder for temporary files, for this user alone, and returns its path without links.
// Throws IoError, and UsageError if others could rename it (TMPDIR).
std::filesystem::path make_temporary_folder(const std::string& prefix);
// A new file at a path below such a folder. Returns a descriptor, or -1 and errno.
int create_temporary(const std::filesystem::path& path, mode_t mode);

}  // namespace dsckpt
