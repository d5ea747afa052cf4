#include "exec/far_marker.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/journal.h"
#include "exec/workers.h"

namespace dsckpt {
namespace {

constexpr size_t kLongestMarker = size_t{256} << 20;
constexpr int64_t kSecond = 1'000'000'000;
// A run that has not said for so long that it lives does not.
constexpr int64_t kDead = 24 * 3600 * kSecond;

// Uploads say when they were begun in seconds.
int64_t whole_seconds(int64_t time) {
  return time / kSecond * kSecond;
}

}  // namespace

struct FarMarker::Said {
  FarObject object;
  SignedBy owner = {};
  std::set<std::string> paths = {};
  int64_t since = 0;
  std::string planned_in = {};

  bool is_planned_here() const {
    std::error_code failed;
    return !planned_in.empty() && std::filesystem::exists(planned_in + "/" + kPlanFile, failed);
  }

  bool may_have_begun(const FarUpload& upload) const {
    return paths.contains(upload.path) && upload.begun >= since;
  }
};

FarMarker::FarMarker(const FarPlace& target, Paths paths, std::chrono::seconds beat,
                     std::vector<std::string>& notes)
    : target_(target),
      paths_(std::move(paths)),
      beat_(beat),
      notes_(notes),
      front_((target.path.empty() ? "" : target.path + "/") + std::string(kStagingPrefix)) {}

void FarMarker::make() {
  path_ = front_ + std::to_string(random_number());
  try {
    write();
  } catch (const Error&) {
    const std::string maybe_there = std::exchange(path_, "");
    target_.store->clean_up(true);
    try {
      target_.store->remove(maybe_there);
    } catch (const Error&) {  // the first one says why
      notes_.push_back(shown_as(maybe_there) +
                       " may be there; the next run that writes there removes it");
    }
    target_.store->clean_up(false);
    throw;
  }
}

void FarMarker::write() {
  nlohmann::json owner = parse_json(owner_line());
  if (since_ != 0) owner["since"] = since_;
  if (!planned_in_.empty()) owner["planned_in"] = planned_in_.string();
  std::string text = dump(owner) + "\n";
  for (const std::string& path : paths_()) text += dump(path) + "\n";
  target_.store->put(path_, std::as_bytes(std::span(text)), std::nullopt);
  if (since_ == 0) {
    for (const FarObject& object : target_.store->list(path_)) {
      if (object.path == path_) since_ = object.modified;
    }
  }
  next_beat_ = std::chrono::steady_clock::now() + beat_;
}

bool FarMarker::is_since(const FarUpload& upload) const {
  return upload.begun >= whole_seconds(since_);
}

void FarMarker::take_over(const std::string& path, int64_t since) {
  path_ = path;
  since_ = since;
  is_another_s_ = true;
  next_beat_ = std::chrono::steady_clock::now() + beat_;
}

// Another process may have removed it.
void FarMarker::touch() {
  next_beat_ = std::chrono::steady_clock::now() + beat_;
  const std::optional<std::string> etag = target_.store->find_etag(path_);
  if (!etag) return;
  const std::string text = target_.store->read(path_, kLongestMarker);
  target_.store->put(path_, std::as_bytes(std::span(text)), etag);
}

void FarMarker::beat() {
  const std::unique_lock lock(beating_, std::try_to_lock);
  if (!lock || std::chrono::steady_clock::now() < next_beat_) return;
  try {
    is_another_s_ ? touch() : write();
  } catch (const IoError&) {
    next_beat_ = std::chrono::steady_clock::now() + beat_;
  }
}

// nullopt: it is gone meanwhile.
std::optional<FarMarker::Said> FarMarker::read(const FarObject& object) const {
  std::string text;
  try {
    text = target_.store->read(object.path, kLongestMarker);
  } catch (const IoError&) {
    if (!target_.store->find_etag(object.path)) return std::nullopt;
    throw;
  }
  size_t at = std::min(text.find('\n'), text.size());
  const std::string first = text.substr(0, at);
  Said said{.object = object, .owner = owner_in(first), .since = object.modified};
  const auto owner = parse_json(first);
  if (owner.is_object() && owner.contains("since") && owner["since"].is_number_integer()) {
    said.since = owner["since"];
  }
  said.since = whole_seconds(said.since);
  if (owner.is_object() && owner.contains("planned_in") && owner["planned_in"].is_string()) {
    said.planned_in = owner["planned_in"];
  }
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at + 1), text.size());
    const auto path = parse_json(std::string_view(text).substr(at + 1, end - at - 1));
    if (path.is_string()) said.paths.insert(path.get<std::string>());
    at = end;
  }
  return said;
}

template <typename Work>
void FarMarker::try_to_sweep(const std::string& marker, Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted) throw;
    notes_.push_back(
        shown_as(marker) +
        ", which a run that was killed had left, cannot be removed: " + error.message());
  }
}

void FarMarker::sweep(std::span<const FarObject> found) {
  std::vector<Said> dead;
  for (const FarObject& object : found) {
    try_to_sweep(object.path, [&] {
      std::optional<Said> said = read(object);
      if (!said || said->owner.state == OwnerState::alive) return;
      if (said->owner.state == OwnerState::dead && said->is_planned_here()) {
        notes_.push_back(shown_as(object.path) + " belongs to an output that is planned in " +
                         said->planned_in);
        return;
      }
      if (said->owner.state == OwnerState::dead || since_ - object.modified >= kDead) {
        dead.push_back(std::move(*said));
        return;
      }
      notes_.push_back(shown_as(object.path) + " belongs to an unfinished output" +
                       (said->owner.who.empty() ? "" : " of " + said->owner.who) +
                       "; a run that begins a day later removes its left-overs");
    });
  }
  if (dead.empty()) return;
  try_to_sweep(dead.front().object.path, [&] { sweep_dead(dead); });
}

// Returns those of all markers but this run's and those of `known`. A run says so before it begins
// an upload.
std::vector<FarMarker::Said> FarMarker::others(const std::vector<Said>& known) const {
  std::vector<Said> others;
  for (const FarObject& object : target_.store->list(front_)) {
    const bool is_known =
        object.path == path_ || std::any_of(known.begin(), known.end(), [&](const Said& said) {
          return said.object.path == object.path;
        });
    if (is_known) continue;
    if (auto said = read(object)) others.push_back(std::move(*said));
  }
  return others;
}

void FarMarker::leave_out_others(std::vector<FarUpload>& uploads) const {
  if (uploads.empty()) return;
  const std::vector<Said> others = this->others({});
  std::erase_if(uploads, [&](const FarUpload& upload) {
    return std::any_of(others.begin(), others.end(),
                       [&](const Said& other) { return other.may_have_begun(upload); });
  });
}

void FarMarker::sweep_dead(const std::vector<Said>& dead) {
  const std::vector<FarUpload> uploads =
      target_.store->uploads(front_.substr(0, front_.size() - kStagingPrefix.size()));
  const std::vector<Said> others = this->others(dead);
  for (const Said& said : dead) {
    try_to_sweep(said.object.path, [&] {
      std::vector<FarUpload> its;
      size_t kept = 0;
      for (const FarUpload& upload : uploads) {
        if (!said.may_have_begun(upload)) continue;
        if (std::any_of(others.begin(), others.end(),
                        [&](const Said& other) { return other.may_have_begun(upload); })) {
          ++kept;
        } else {
          its.push_back(upload);
        }
      }
      run_for_each(target_.store->requests(), its.size(),
                   [&](size_t i) { target_.store->abort_upload(its[i].path, its[i].id); });
      const std::string what = counted(its.size(), "unfinished upload");
      const std::string whose = ", which a run that was killed" +
                                (said.owner.who.empty() ? "" : " (" + said.owner.who + ")") +
                                " had left";
      if (kept == 0) {
        target_.store->remove(said.object.path);
        notes_.push_back("removed " + shown_as(said.object.path) + " and " + what + whose);
      } else {
        notes_.push_back("removed " + what + " of " + shown_as(said.object.path) + whose + "; " +
                         counted(kept, "other") + " may belong to a run that is under way");
      }
    });
  }
}

void FarMarker::remove() {
  target_.store->remove(path_);
  path_.clear();
}

std::string FarMarker::leave() {
  return shown_as(std::exchange(path_, ""));
}

}  // namespace dsckpt
