#include "ckpt_pack/keep/keeper_mark.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/text.h"
#include "exec/staging_owner.h"

namespace dsckpt::pack {
namespace {

constexpr std::chrono::seconds kBeat{30};
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDead = 180 * kSecond;
constexpr size_t kLongestMark = 1 << 16;

}  // namespace

KeeperMark::KeeperMark(const FarPlace& place, const std::string& front, const std::string& shown)
    : place_(place), path_(front + std::to_string(random_number())) {
  write();
  try {
    refuse_others(front, shown);
  } catch (...) {
    remove();
    throw;
  }
  thread_ = std::thread([this] { beat(); });
}

KeeperMark::~KeeperMark() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
  remove();
}

void KeeperMark::refuse_others(const std::string& front, const std::string& shown) const {
  const std::vector<FarObject> marks = place_.store->list(front);
  const auto own = std::find_if(marks.begin(), marks.end(),
                                [&](const FarObject& mark) { return mark.path == path_; });
  if (own == marks.end()) throw IoError({.file = shown}, "does not list what was written to it", 0);
  for (const FarObject& mark : marks) {
    if (mark.path == path_ || !place_.store->find_etag(mark.path)) continue;
    const SignedBy owner = owner_in(place_.store->read(mark.path, kLongestMark));
    const int64_t age = std::max<int64_t>(own->modified - mark.modified, 0);
    if (owner.state == OwnerState::dead || age >= kDead) {
      place_.store->remove(mark.path);
      continue;
    }
    const std::string who = (owner.who.empty() ? "" : ", " + owner.who) + ", which said so " +
                            counted(static_cast<uint64_t>(age / kSecond), "second") + " ago";
    if (owner.state == OwnerState::alive) {
      throw UsageError(shown + ": another process keeps checkpoints there" + who)
          .with_hint("one is enough; it ends with its job, or with kill");
    }
    throw IoError({.file = shown}, "another process may keep checkpoints there" + who, 0)
        .with_hint("a process that has said nothing for three minutes counts as dead");
  }
}

void KeeperMark::write() const {
  const std::string line = owner_line() + "\n";
  place_.store->put(path_, std::as_bytes(std::span(line)), std::nullopt);
}

void KeeperMark::remove() const {
  place_.store->clean_up(true);
  try {
    place_.store->remove(path_);
  } catch (const Error&) {  // see the destructor's contract
  }
  place_.store->clean_up(false);
}

bool KeeperMark::is_there() const {
  return place_.store->find_etag(path_).has_value();
}

void KeeperMark::beat() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kBeat, [this] { return done_; })) {
    lock.unlock();
    try {
      if (is_there()) write();
    } catch (const Error&) {  // the next beat may reach the store again
    }
    lock.lock();
  }
}

}  // namespace dsckpt::pack
