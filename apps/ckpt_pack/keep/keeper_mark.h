// KeeperMark: an object in a store that says which process keeps checkpoints there.
//
// A store has no locks. PLACE/.dsckpt-keep/keeper-NUMBER has the line of its owner
// (exec/staging_owner.h), and is rewritten every half minute. Its age by the store's clock says
// whether the process may still live.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "dsckpt/error.h"
#include "io/far_store.h"

namespace dsckpt::pack {

class KeeperMark {
 public:
  // Makes the mark, unless another keeper has one. Removes marks of keepers that are dead: killed
  // ones of this host, and those that have not been rewritten for three minutes. Throws UsageError
  // for another keeper of this host that lives, IoError for one that may live elsewhere, and as
  // FarStore. `front` is the path of all marks, without their numbers; `shown` is the place.
  KeeperMark(const FarPlace& place, const std::string& front, const std::string& shown);
  // Removes it; one that cannot be removed is soon too old.
  ~KeeperMark();
  KeeperMark(const KeeperMark&) = delete;
  KeeperMark& operator=(const KeeperMark&) = delete;

  // False if another keeper has taken it for dead, and removed it. Throws as FarStore.
  bool is_there() const;

 private:
  void refuse_others(const std::string& front, const std::string& shown) const;
  void write() const;
  void remove() const;
  void beat();

  const FarPlace& place_;
  const std::string path_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace dsckpt::pack
