// KeptPlace: the folder, here or in an object store, that keep brings checkpoints to.
//
// PLACE/.dsckpt-keep/place.json has a number, which RUN/.dsckpt-keep-NUMBER.json has, too. So both
// know each other again, whatever they are called on another machine. A folder that only has the
// same path, such as the one below a mount point, is not taken for the place. PLACE/NAME is a
// checkpoint that is whole there once it has a record (record.h). Nothing there is ever removed or
// replaced, except the left-overs of a stopped run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckpt_pack/keep/keeper_mark.h"
#include "ckpt_pack/keep/record.h"
#include "exec/staging_owner.h"
#include "io/far_store.h"
#include "io/folder.h"

namespace dsckpt::pack {

class KeptPlace {
 public:
  // Looks at nothing yet. `force`: another run's place, or a new place for the run, is taken
  // all the same.
  KeptPlace(std::filesystem::path path, std::filesystem::path run, bool force);

  const std::filesystem::path& path() const { return path_; }
  bool is_far() const { return far_.has_value(); }

  // Finds it, or makes it if the run has never been there, locks it, and reads what is new in it.
  // Throws IoError if it is not there, or a process elsewhere may keep checkpoints there. Throws
  // UsageError if it is another one or another process keeps checkpoints there.
  void open();
  // The same to read only: neither made nor locked, and whoever's it is.
  void open_to_read();
  // After that: the run is the one that the place is of, also if it was begun anew.
  void adopt();
  // True if the place is still there, and the same; an object store is not asked. Any thread.
  bool is_same() const;
  // Throws IoError if `folder` is not the place.
  void check_folder(const Folder& folder) const;

  // By the name of the folder there.
  const std::map<std::string, Record>& records() const { return records_; }
  // The newest of that checkpoint as it is in the run; nullptr if that is not there.
  const Record* find(const std::string& name, const std::vector<RunFile>& files) const;
  // A free name for a checkpoint there: its own, or NAME.2, ... if another one has that.
  std::string free_name(const std::string& name) const;
  // Waits until its names are on the device. Throws IoError if it is not the place any more, or if
  // the folder differs from the record.
  void check_is_safe(const std::string& folder) const;
  // The files that open() reads of it, after a run.
  void add_record(const std::string& folder);

  // The checkpoint that is being written there; it finds what a killed run has left.
  void begin(const std::string& folder);
  void end(const std::string& folder);
  const std::set<std::string>& begun() const { return begun_; }
  // Removes what runs into that folder have left. Returns a note if it cannot, or "".
  std::string abandon(const std::string& folder);

 private:
  struct Mark {
    std::string id;
    std::string place;
    bool made = false;    // the place has its file
    uint64_t folder = 0;  // until then: Folder::number() of the one that is going to be the place
  };
  std::string shown() const;
  std::vector<Mark> marks() const;
  void save(const Mark& mark) const;
  std::optional<std::string> id_there() const;
  void make_folder();
  void make(const std::string& id);
  void lock();
  void lock_far();
  void read_records();
  std::optional<std::string> read(const std::string& name) const;
  void write(const std::string& name, const std::string& text);
  void write_begun();
  std::string far_path(const std::string& name) const;
  std::map<std::string, uint64_t> stored_in(const std::string& folder) const;

  const std::filesystem::path path_;
  const std::filesystem::path run_;
  const bool force_;
  const std::optional<FarPlace> far_;
  std::string id_ = {};
  std::optional<Folder> folder_ = {};    // since open(), of a place that is not far
  std::optional<KeeperMark> mark_ = {};  // of a place that is far
  std::optional<StagingOwner> lock_ = {};
  std::pair<uint64_t, uint64_t> locked_ = {};  // device and inode of the folder that has the lock
  std::map<std::string, Record> records_ = {};
  bool has_read_ = false;
  std::set<std::string> begun_ = {};
};

}  // namespace dsckpt::pack
