// FarMarker: an object in a folder of a store that says which process writes what there, as long as
// the run lasts. What runs have left that were killed is found by theirs.
//
// FOLDER/.dsckpt-staging-NUMBER is lines of JSON: whose it is (staging_owner.h), with the time when
// it was made first, by the store's clock; then the paths of what the run writes. Written again now
// and then, it is not older than a day while its run lives.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "exec/staging_owner.h"
#include "io/far_store.h"

namespace dsckpt {

class FarMarker {
 public:
  // The paths in the store of all that the run writes.
  using Paths = std::function<std::vector<std::string>()>;

  // Nothing is made yet. It is written again after `beat`. What a user should know is added to
  // `notes`. Target and notes must outlive it.
  FarMarker(const FarPlace& target, Paths paths, std::chrono::seconds beat,
            std::vector<std::string>& notes);

  // Whether it is the path of a marker of that folder, this one's or another one's.
  bool is_marker(const std::string& path) const { return path.starts_with(front_); }

  // Throws what FarStore throws; then it is not there, or a note says that it may be.
  void make();
  bool is_made() const { return !path_.empty(); }
  // When, in nanoseconds since the epoch, by the store's clock.
  int64_t since() const { return since_; }
  bool is_since(const FarUpload& upload) const;

  // Says again that the run lives, if it is time. Any thread. That is no reason for it to fail.
  void beat();

  // Removes what runs have left whose markers `found` are, if they are surely dead: the uploads
  // that they alone may have begun, and the marker. A note says what. What cannot be removed is no
  // reason for this run to fail either: throws InterruptedError alone.
  void sweep(std::span<const FarObject> found);
  // Leaves out of `uploads` what another run that has a marker may have begun. Throws what FarStore
  // throws.
  void leave_out_others(std::vector<FarUpload>& uploads) const;

  // Throws what FarStore throws.
  void remove();
  // It stays there. Returns how messages call it.
  std::string leave();

 private:
  // What a run has said.
  struct Said;
  std::optional<Said> read(const FarObject& object) const;
  std::vector<Said> others(const std::vector<Said>& known) const;
  void write();
  void sweep_dead(const std::vector<Said>& dead);
  template <typename Work>
  void try_to_sweep(const std::string& marker, Work&& work);
  std::string shown_as(const std::string& path) const { return target_.name + "/" + path; }

  const FarPlace& target_;
  const Paths paths_;
  const std::chrono::seconds beat_;
  std::vector<std::string>& notes_;
  const std::string front_;  // of the paths of all markers
  std::string path_ = {};    // "": there is none
  int64_t since_ = 0;
  std::mutex beating_;  // of what follows
  std::chrono::steady_clock::time_point next_beat_ = {};
};

}  // namespace dsckpt
