// Folder: a folder by its descriptor, and the only place where files are opened for writing.
//
// What is done in a Folder is done in the folder that was opened, whatever is renamed meanwhile.
// Nothing is written through a link that somebody else may have made:
//
// * A path that the user has given is walked step by step. A link on the way is followed if this
//   user or root has made it, and refused if anybody else has.
// * Below a Folder no link is followed at all.
// * New files are made, and never found (O_EXCL). Files and folders that a run before has left are
//   taken up only where no other user can have made or changed them: folders of this user that
//   nobody else may enter, and in them regular files of this user with one name.
//
// scripts/check_includes.py sees to it that nothing else of the library or the tools opens a file
// for writing.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dsckpt {

class Folder {
 public:
  // The folder at `path`. Throws UsageError for another user's link on the way, IoError.
  static Folder at(const std::filesystem::path& path);
  // The same. Makes what is missing on the way; the paths of these are appended to `made`,
  // outermost first.
  static Folder make(const std::filesystem::path& path, std::vector<std::filesystem::path>& made);

  // As the user has given it, for messages; somebody may have renamed it.
  const std::filesystem::path& path() const { return path_; }
  // Opened with O_PATH: what another program works in (fchdir).
  int descriptor() const { return fd(); }
  // Its inode, by which what was written about it is known to be about it; 0 where file systems
  // number their files anew (FUSE).
  uint64_t number() const;
  // Whose the files in it must be (check_is_ours()).
  uid_t owner() const { return owner_; }

  // A new folder in it that only this user may enter; the name of it is `name`. Throws UsageError
  // if it isn't so when it is opened, IoError. Where a file system gives what this process makes to
  // another user (NFS: root_squash), that user may enter it.
  Folder make_own(const std::string& name) const;
  // One that is there. Nothing if there is none; throws UsageError if anybody but this user may
  // have written there, with whose it is. `may_be_squashed`: what make_own() has made at another
  // time, or in another process, is taken where files that this process makes there have the
  // folder's owner.
  std::optional<Folder> own(const std::string& name, bool may_be_squashed = false) const;
  // Throws UsageError if `name` in it, or anything below that, is what this user may not have made:
  // neither a folder nor a regular file with one name, or another user's.
  void check_is_ours(const std::string& name) const;

  // What follows takes names, or paths of folders that are below this one, without links.

  // The folder there; with `made` whatever is missing is made. Throws UsageError for a link on the
  // way, IoError.
  Folder below(const std::filesystem::path& path,
               std::vector<std::filesystem::path>* made = nullptr) const;

  // These return a descriptor, or -1 and errno.
  // A new file.
  int create(const std::filesystem::path& name, mode_t mode = 0666) const;
  // To be written where it is there: a regular file of owner() with one name. Throws UsageError if
  // it is anything else.
  struct Use {
    bool may_be_new = false;
    bool is_read_too = false;
    bool direct = false;  // O_DIRECT
  };
  int open_ours(const std::filesystem::path& name, const Use& use) const;
  // The same, to be read; whoever's it is.
  int open_to_read(const std::filesystem::path& name, int flags = 0) const;

  // What lstat says; nothing if there is no such file, or it cannot be asked.
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
  // With all that is in it; a link is removed, and what it leads to stays. 0 if nothing is there.
  int remove_all(const std::filesystem::path& name) const;

  // Waits until its names are on the device (fsync), if its file system can. Throws IoError.
  void sync() const;

 private:
  class Descriptor;
  Folder(std::shared_ptr<const Descriptor> descriptor, std::filesystem::path path);
  int fd() const;
  // Another user's, "" if it is not.
  std::string not_ours(const struct stat& found, bool may_be_squashed) const;

  std::shared_ptr<const Descriptor> descriptor_;
  std::filesystem::path path_;
  uid_t owner_;
};

// Where `path` leads, by the rules of Folder::at(): an absolute path without links, as far as there
// is anything. Throws UsageError for another user's link.
std::filesystem::path resolved_path(const std::filesystem::path& path);

// A new folder among those for temporary files, for this user alone; its path without links. Throws
// UsageError where others could rename it (TMPDIR), IoError.
std::filesystem::path make_temporary_folder(const std::string& prefix);
// A new file at a path below such a folder. Returns a descriptor, or -1 and errno.
int create_temporary(const std::filesystem::path& path, mode_t mode);

}  // namespace dsckpt
