// FarMarker: an object in a folder of a store that says which process writes there, as long as the
// run lasts. The marker of a plan says where that is (step_files.h). Left-overs of killed runs are
// found by their markers.
//
// FOLDER/.dsckpt-staging-NUMBER has lines of JSON. The first is the owner (staging_owner.h), with
// the time when the marker was first made, by the store's clock. Then come the paths that the run
// writes. It is rewritten now and then, so it is never older than a day while its run lives.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/staging_owner.h"
#include "io/far_store.h"

namespace dsckpt {

class FarMarker {
 public:
  // Returns the paths in the store of everything that the run writes.
  using Paths = std::function<std::vector<std::string>()>;

  // Makes nothing yet. The marker is rewritten after each `beat`. Notes for the user are added to
  // `notes`. Target and notes must outlive it.
  FarMarker(const FarPlace& target, Paths paths, std::chrono::seconds beat,
            std::vector<std::string>& notes);

  // True for the path of any marker in that folder, this run's or another's.
  bool is_marker(const std::string& path) const { return path.starts_with(front_); }

  // Throws as FarStore. Then there is no marker, or a note says that there may be one.
  void make();
  bool is_made() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  // Before make(): the folder of the plan that the marker is of. As long as that is there, its
  // processes may come and go.
  void set_planned_in(std::filesystem::path folder) { planned_in_ = std::move(folder); }
  // Instead of make(): keeps the marker of another process alive, which stays as that has written
  // it.
  void take_over(const std::string& path, int64_t since);
  // The time of creation, in nanoseconds since the epoch, by the store's clock.
  int64_t since() const { return since_; }
  bool is_since(const FarUpload& upload) const;

  // Rewrites the marker if it is time. Any thread. Errors are ignored, so that the run goes on.
  void beat();

  // Removes left-overs of the runs whose markers are in `found`, if these runs are surely dead. It
  // removes their marker, and the uploads that only they can have begun, and adds a note.
  // Left-overs that cannot be removed do not stop this run: throws only InterruptedError.
  void sweep(std::span<const FarObject> found);
  // Removes from `uploads` those that another run with a marker may have begun. Throws as FarStore.
  void leave_out_others(std::vector<FarUpload>& uploads) const;

  // Throws as FarStore.
  void remove();
  // Leaves the marker in the store. Returns its name for messages.
  std::string leave();

 private:
  // The contents of a run's marker.
  struct Said;
  std::optional<Said> read(const FarObject& object) const;
  std::vector<Said> others(const std::vector<Said>& known) const;
  void write();
  void touch();
  void sweep_dead(const std::vector<Said>& dead);
  template <typename Work>
  void try_to_sweep(const std::string& marker, Work&& work);
  std::string shown_as(const std::string& path) const { return target_.name + "/" + path; }

  const FarPlace& target_;
  const Paths paths_;
  const std::chrono::seconds beat_;
  std::vector<std::string>& notes_;
  const std::string front_;  // of the paths of all markers
  std::filesystem::path planned_in_ = {};
  std::string path_ = {};  // "": there is none
  bool is_another_s_ = false;
  int64_t since_ = 0;
  std::mutex beating_;  // guards what follows
  std::chrono::steady_clock::time_point next_beat_ = {};
};

}  // namespace dsckpt
