#include "exec/far_output.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string_view>

#include "base/kernels.h"
#include "base/text.h"
#include "exec/staged_files.h"
#include "exec/staging_owner.h"
#include "exec/workers.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMostParts = 10'000;
// What is so small is sent in one request.
constexpr uint64_t kHeldFile = 256 << 10;
constexpr size_t kLongestMarker = size_t{256} << 20;
constexpr size_t kLongestPointer = 64 << 10;
constexpr int kMostTimes = 3;  // that an upload is sent anew
constexpr int64_t kSecond = 1'000'000'000;
// A run that has not said for so long that it lives (FarOptions::beat) does not.
constexpr int64_t kDead = 24 * 3600 * kSecond;

UsageError is_there_already(const std::string& shown) {
  return UsageError(shown + ": exists already").with_hint("--force replaces it");
}

// Calls `work` with each number below `count` that `is_wanted`, as many at once as the store takes.
// Throws what one of them throws, after which no other begins.
template <typename Wanted, typename Work>
void for_each_at_once(unsigned requests, OutputId count, Wanted&& is_wanted, Work&& work) {
  std::vector<OutputId> wanted;
  for (OutputId i = 0; i < count; ++i) {
    if (is_wanted(i)) wanted.push_back(i);
  }
  if (wanted.empty()) return;
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  run_workers(static_cast<unsigned>(std::min<size_t>(requests, wanted.size())), [&] {
    try {
      for (size_t i; (i = next++) < wanted.size() && !failed;) work(wanted[i]);
    } catch (...) {
      failed = true;
      throw;
    }
  });
}

}  // namespace

// What a run has said: whose it is, what it writes, and since when.
struct FarOutput::Marker {
  FarObject object;
  SignedBy owner = {};
  std::set<std::string> paths = {};
  int64_t since = 0;

  bool may_have_begun(const FarUpload& upload) const {
    return paths.contains(upload.path) && upload.begun >= since;
  }
};

uint64_t far_part_bytes(const CopyPlan& plan) {
  uint64_t largest = 0;
  for (const PlannedFile& file : plan.outputs()) largest = std::max(largest, file.size);
  // What is packed may become larger by its index.
  largest += largest / 64;
  return std::max(kShortestFarPart, std::bit_ceil(largest / kMostParts + 1));
}

FarOutput::FarOutput(const CopyPlan& plan, FarPlace target, FarOptions options)
    : plan_(plan),
      target_(std::move(target)),
      options_(options),
      patches_(patches_of(plan, [this](OutputId out) { return is_patched(out); })) {
  uint64_t room = options_.held_bytes;
  for (const PlannedFile& file : plan.outputs()) {
    File& entry = files_.emplace_back();
    // An upload has one part at least, which nobody can rely on to be allowed to be empty.
    entry.is_held = file.size == 0 || (file.size <= kHeldFile && file.size <= room);
    if (entry.is_held) room -= file.size;
  }
}

FarOutput::~FarOutput() {
  try {
    give_up();
  } catch (...) {  // an exception is on its way already
  }
}

std::string FarOutput::path_of(const std::string& file) const {
  return target_.path.empty() ? file : target_.path + "/" + file;
}

std::string FarOutput::own_path(OutputId out) const {
  return path_of(stored_name(plan_.outputs()[out], options_.packed));
}

std::string FarOutput::shown_as(const std::string& path) const {
  return path.empty() ? target_.name : target_.name + "/" + path;
}

std::string FarOutput::shown(OutputId out) const {
  return shown_as(own_path(out));
}

bool FarOutput::is_patched(OutputId out) const {
  return !is_stored_packed(plan_.outputs()[out], options_.packed);
}

std::optional<std::string> FarOutput::before(const std::string& path) const {
  const auto found = existing_.find(path);
  if (found == existing_.end()) return "";
  // Without an ETag nothing can be asked for.
  return found->second.etag.empty() ? std::nullopt : std::optional(found->second.etag);
}

// Where else the content of an output may lie.
std::vector<std::string> FarOutput::other_forms(OutputId out) const {
  const std::string plain = path_of(plan_.outputs()[out].path);
  const std::string own = own_path(out);
  std::vector<std::string> forms{plain, plain + std::string(kPackedSuffix),
                                 plain + std::string(kZstdSuffix)};
  std::erase(forms, own);
  return forms;
}

void FarOutput::look() {
  existing_.clear();
  for (FarObject& object : target_.store->list(path_of(""))) {
    std::string path = object.path;
    existing_.emplace(std::move(path), std::move(object));
  }
  check_free();
}

void FarOutput::check_free() const {
  if (!target_.path.empty() && target_.store->find_etag(target_.path)) {
    throw UsageError(shown_as(target_.path) + ": is an object, and no folder")
        .with_hint("give another name");
  }
  const auto is_marker = [&](const auto& entry) {
    return entry.first.starts_with(path_of(std::string(kStagingPrefix)));
  };
  if (options_.whole_folder && !options_.force &&
      !std::all_of(existing_.begin(), existing_.end(), is_marker)) {
    throw is_there_already(shown_as(target_.path));
  }
  for (OutputId out = 0; out < count(); ++out) {
    const fs::path file(stored_name(plan_.outputs()[out], options_.packed));
    for (fs::path folder = file.parent_path(); !folder.empty(); folder = folder.parent_path()) {
      if (!existing_.contains(path_of(folder.string()))) continue;
      throw UsageError(shown_as(path_of(folder.string())) + ": is an object, and no folder");
    }
    const std::string path = path_of(file.string());
    const auto inside = existing_.lower_bound(path + "/");
    if (inside != existing_.end() && inside->first.starts_with(path + "/")) {
      throw UsageError(shown_as(path) + ": a folder has the name of an output file");
    }
    if (options_.force) continue;
    std::vector<std::string> forms = other_forms(out);
    forms.push_back(path);
    for (const std::string& form : forms) {
      if (existing_.contains(form)) throw is_there_already(shown_as(form));
    }
  }
}

std::string FarOutput::check() {
  look();
  return "";
}

FarOutput::Cost FarOutput::cost() const {
  Cost cost{.requests = 4, .bytes = plan_.bytes_written()};  // lists, and the marker
  for (OutputId out = 0; out < count(); ++out) {
    const uint64_t size = plan_.outputs()[out].size;
    cost.requests +=
        files_[out].is_held ? 1 : 2 + (size + options_.part_bytes - 1) / options_.part_bytes;
  }
  return cost;
}

void FarOutput::prepare() {
  look();
  try {
    write_marker();
  } catch (const Error&) {
    const std::string maybe_there = std::exchange(marker_, "");
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
  sweep_left_overs();
}

void FarOutput::write_marker() {
  nlohmann::json owner = nlohmann::json::parse(owner_line());
  if (since_ != 0) owner["since"] = since_;
  std::string text = dump(owner) + "\n";
  for (const PlannedFile& file : plan_.outputs()) {
    text += dump(path_of(stored_name(file, options_.packed))) + "\n";
  }
  if (marker_.empty()) {
    std::random_device random;
    marker_ =
        path_of(std::string(kStagingPrefix)) + std::to_string(random()) + std::to_string(random());
  }
  target_.store->put(marker_, std::as_bytes(std::span(text)), std::nullopt);
  if (since_ == 0) {
    for (const FarObject& object : target_.store->list(marker_)) {
      if (object.path == marker_) since_ = object.modified;
    }
  }
  next_beat_ = std::chrono::steady_clock::now() + options_.beat;
}

// That the run lives is no reason for it to fail.
void FarOutput::beat() {
  const std::unique_lock lock(beating_, std::try_to_lock);
  if (!lock || std::chrono::steady_clock::now() < next_beat_) return;
  try {
    write_marker();
  } catch (const IoError&) {
    next_beat_ = std::chrono::steady_clock::now() + options_.beat;
  }
}

// nullopt: it is gone meanwhile.
std::optional<FarOutput::Marker> FarOutput::read_marker(const FarObject& object) const {
  std::string text;
  try {
    text = target_.store->read(object.path, kLongestMarker);
  } catch (const IoError&) {
    if (!target_.store->find_etag(object.path)) return std::nullopt;
    throw;
  }
  size_t at = std::min(text.find('\n'), text.size());
  const std::string first = text.substr(0, at);
  Marker marker{.object = object, .owner = owner_in(first), .since = object.modified};
  const auto owner = nlohmann::json::parse(first, nullptr, false);
  if (owner.is_object() && owner.contains("since") && owner["since"].is_number_integer()) {
    marker.since = owner["since"];
  }
  // Uploads say when they were begun in seconds.
  marker.since = marker.since / kSecond * kSecond;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at + 1), text.size());
    const auto path = nlohmann::json::parse(text.substr(at + 1, end - at - 1), nullptr, false);
    if (path.is_string()) marker.paths.insert(path.get<std::string>());
    at = end;
  }
  return marker;
}

// What others have left is no reason for this run to fail.
template <typename Work>
void FarOutput::try_to_sweep(const std::string& marker, Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted) throw;
    notes_.push_back(
        shown_as(marker) +
        ", which a run that was killed had left, cannot be removed: " + error.message());
  }
}

void FarOutput::sweep_left_overs() {
  const std::string front = path_of(std::string(kStagingPrefix));
  std::vector<Marker> dead;
  for (auto it = existing_.lower_bound(front);
       it != existing_.end() && it->first.starts_with(front); it = existing_.erase(it)) {
    try_to_sweep(it->first, [&] {
      std::optional<Marker> marker = read_marker(it->second);
      if (!marker || marker->owner.state == OwnerState::alive) return;
      if (marker->owner.state == OwnerState::dead || since_ - it->second.modified >= kDead) {
        dead.push_back(std::move(*marker));
        return;
      }
      notes_.push_back(shown_as(it->first) + " is of an unfinished output" +
                       (marker->owner.who.empty() ? "" : " of " + marker->owner.who) +
                       "; a run that begins a day later removes what it has left");
    });
  }
  if (dead.empty()) return;
  try_to_sweep(dead.front().object.path, [&] { sweep(dead); });
}

void FarOutput::sweep(const std::vector<Marker>& dead) {
  const std::vector<FarUpload> uploads = target_.store->uploads(path_of(""));
  // Whoever has begun one of these has said so before.
  std::vector<Marker> others;
  for (const FarObject& object : target_.store->list(path_of(std::string(kStagingPrefix)))) {
    const bool is_known =
        object.path == marker_ || std::any_of(dead.begin(), dead.end(), [&](const Marker& marker) {
          return marker.object.path == object.path;
        });
    if (is_known) continue;
    if (auto marker = read_marker(object)) others.push_back(std::move(*marker));
  }
  for (const Marker& marker : dead) {
    try_to_sweep(marker.object.path, [&] {
      std::vector<FarUpload> its;
      size_t kept = 0;
      for (const FarUpload& upload : uploads) {
        if (!marker.may_have_begun(upload)) continue;
        if (std::any_of(others.begin(), others.end(),
                        [&](const Marker& other) { return other.may_have_begun(upload); })) {
          ++kept;
        } else {
          its.push_back(upload);
        }
      }
      for_each_at_once(
          target_.store->requests(), static_cast<OutputId>(its.size()),
          [](OutputId) { return true; },
          [&](OutputId i) { target_.store->abort_upload(its[i].path, its[i].id); });
      const std::string what = counted(its.size(), "unfinished upload");
      const std::string whose = ", which a run that was killed" +
                                (marker.owner.who.empty() ? "" : " (" + marker.owner.who + ")") +
                                " had left";
      if (kept == 0) {
        target_.store->remove(marker.object.path);
        notes_.push_back("removed " + shown_as(marker.object.path) + " and " + what + whose);
      } else {
        notes_.push_back("removed " + what + " of " + shown_as(marker.object.path) + whose + "; " +
                         counted(kept, "other") + " may be of a run that is under way");
      }
    });
  }
}

uint64_t FarOutput::part_size(OutputId out, uint64_t number) const {
  if (files_[out].is_held) return plan_.outputs()[out].size;
  if (!is_patched(out)) return options_.part_bytes;  // how long it becomes is seen at its end
  return std::min(options_.part_bytes, plan_.outputs()[out].size - number * options_.part_bytes);
}

uint64_t FarOutput::patch_bytes_in(OutputId out, uint64_t number) const {
  const auto found = patches_.find(out);
  if (found == patches_.end()) return 0;
  const uint64_t begin = files_[out].is_held ? 0 : number * options_.part_bytes;
  const uint64_t end = begin + part_size(out, number);
  const std::vector<uint64_t>& places = found->second;
  // They lie apart, so only the first and the last one may be cut. There may be 100,000.
  const auto first = std::partition_point(places.begin(), places.end(),
                                          [&](uint64_t at) { return at + kPatchBytes <= begin; });
  const auto last =
      std::partition_point(first, places.end(), [&](uint64_t at) { return at < end; });
  if (first == last) return 0;
  const uint64_t before = begin - std::min(begin, *first);
  const uint64_t behind = std::max(*std::prev(last) + kPatchBytes, end) - end;
  return static_cast<uint64_t>(last - first) * kPatchBytes - before - behind;
}

void FarOutput::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  add(out, offset, bytes, false);
}

void FarOutput::patch(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  add(out, offset, bytes, true);
}

void FarOutput::add(OutputId out, uint64_t offset, std::span<const std::byte> bytes,
                    bool is_patch) {
  File& file = files_[out];
  while (!bytes.empty()) {
    const uint64_t number = file.is_held ? 0 : offset / options_.part_bytes;
    const uint64_t at = file.is_held ? offset : offset % options_.part_bytes;
    const uint64_t size = part_size(out, number);
    const bool is_growing = file.is_held && !is_patched(out);
    const std::span<const std::byte> some =
        bytes.first(is_growing ? bytes.size() : std::min<uint64_t>(bytes.size(), size - at));
    offset += some.size();
    bytes = bytes.subspan(some.size());
    const uint64_t patches = patch_bytes_in(out, number);
    if (!file.is_held && some.size() == size && patches == 0) {
      send(out, number, some);
      continue;
    }
    Part whole;
    {
      const std::lock_guard lock(file.mutex);
      Part& part = file.parts[number];
      if (is_patch) {
        for (uint64_t i = 0; i < some.size(); ++i) part.patched.emplace_back(at + i, some[i]);
      } else {
        // What becomes of one that is packed may be short.
        const uint64_t end = is_patched(out) ? size : at + some.size();
        if (part.bytes.size() < end) part.bytes.resize(end);
        std::memcpy(part.bytes.data() + at, some.data(), some.size());
        part.filled += some.size();
      }
      if (file.is_held || part.filled < size || part.patched.size() < patches) continue;
      whole = std::move(part);
      file.parts.erase(number);
    }
    for (const auto& [place, byte] : whole.patched) whole.bytes[place] = byte;
    send(out, number, whole.bytes);
  }
}

std::string FarOutput::upload_of(OutputId out) {
  File& file = files_[out];
  const std::string path = own_path(out);
  const std::lock_guard lock(file.mutex);
  if (!file.upload.empty()) return file.upload;
  const auto doubt = [&] {
    const std::lock_guard doubting(mutex_);
    doubtful_.insert(path);
  };
  try {
    FarStore::Begun begun = target_.store->begin_upload(path);
    file.upload = std::move(begun.id);
    if (begun.maybe_twice) doubt();
  } catch (...) {
    doubt();
    throw;
  }
  return file.upload;
}

void FarOutput::send(OutputId out, uint64_t number, std::span<const std::byte> bytes) {
  File& file = files_[out];
  const std::string upload = upload_of(out);
  const uint32_t crc = crc32(0, bytes);
  {
    const std::lock_guard lock(file.mutex);
    const auto [known, is_new] = file.crcs.emplace(number, crc);
    if (!is_new && known->second != crc) {
      throw IoError({.file = shown(out), .offset = number * options_.part_bytes},
                    "was written again, and the input gives other bytes than before", 0);
    }
  }
  std::string etag =
      target_.store->send_part(own_path(out), upload, static_cast<unsigned>(number + 1), bytes);
  {
    const std::lock_guard lock(file.mutex);
    if (file.etags.size() <= number) file.etags.resize(number + 1);
    file.etags[number] = std::move(etag);
    file.size += bytes.size();
  }
  beat();
}

void FarOutput::finish(OutputId out) {
  File& file = files_[out];
  if (file.is_held) {
    if (file.parts.empty()) return;
    Part& part = file.parts.begin()->second;
    for (const auto& [place, byte] : part.patched) part.bytes[place] = byte;
    part.patched = {};
    file.size = part.bytes.size();
    return;
  }
  // Of one that is packed the last part is as long as it has become.
  if (!is_patched(out) && file.parts.size() == 1 &&
      file.parts.begin()->second.filled == file.parts.begin()->second.bytes.size()) {
    const auto [number, part] = std::move(*file.parts.begin());
    file.parts.clear();
    send(out, number, part.bytes);
  }
  const bool has_all = std::none_of(file.etags.begin(), file.etags.end(),
                                    [](const std::string& etag) { return etag.empty(); });
  const bool is_whole = !is_patched(out) || file.size == plan_.outputs()[out].size;
  if (!file.parts.empty() || !has_all || !is_whole) throw std::logic_error("an output with holes");
}

FarPublished FarOutput::try_to_publish(OutputId out) {
  File& file = files_[out];
  const std::string path = own_path(out);
  if (!file.is_held) {
    return target_.store->complete(path, file.upload, file.etags, before(path));
  }
  std::span<const std::byte> bytes;
  if (!file.parts.empty()) bytes = file.parts.begin()->second.bytes;
  return target_.store->put(path, bytes, before(path));
}

void FarOutput::publish(OutputId out, const CommitHelp& help) {
  File& file = files_[out];
  for (int times = 0;; ++times) {
    file.is_in_doubt = true;
    FarPublished result = try_to_publish(out);
    file.is_in_doubt = false;
    switch (result.what) {
      case FarPublished::What::done:
        file.etag = std::move(result.etag);
        file.is_published = true;
        file.parts.clear();
        return;
      case FarPublished::What::refused:
        if (before(own_path(out)) == "") {
          throw is_there_already(shown(out));
        }
        throw IoError({.file = shown(out)}, "somebody else has written it meanwhile", 0)
            .with_hint("run again once nobody writes there");
      case FarPublished::What::again:
        break;
    }
    if (times == kMostTimes) {
      throw IoError({.file = shown(out)}, "somebody else writes it at the same time", 0)
          .with_hint("run again once nobody writes there");
    }
    if (file.is_held) continue;
    target_.store->abort_upload(own_path(out), std::exchange(file.upload, ""));
    file.etags.clear();
    file.size = 0;
    const std::lock_guard lock(rewriting_);  // one reads the input at a time
    help.write_again(out);
  }
}

void FarOutput::remove_old(std::vector<std::string> paths) {
  std::erase_if(paths, [&](const std::string& path) { return !existing_.contains(path); });
  for_each_at_once(
      target_.store->requests(), static_cast<OutputId>(paths.size()), [](size_t) { return true; },
      [&](size_t i) {
        {
          const std::lock_guard lock(mutex_);
          gone_.insert(paths[i]);
        }
        target_.store->remove(paths[i]);
        const std::lock_guard lock(mutex_);
        existing_.erase(paths[i]);
      });
}

void FarOutput::stand_in(OutputId first, OutputId last) {
  for (OutputId out = first; out < last; ++out) {
    const File& file = files_[out];
    target_.store->stand_in(
        {.path = own_path(out), .etag = file.etag, .size = file.size, .modified = since_});
  }
}

void FarOutput::publish_all(OutputId last, const CommitHelp& help) {
  std::set<std::string> ours;
  for (OutputId out = 0; out < count(); ++out) ours.insert(own_path(out));
  const auto add_other_forms = [&](OutputId out, std::vector<std::string>& paths) {
    for (std::string& form : other_forms(out)) {
      if (!ours.contains(form)) paths.push_back(std::move(form));
    }
  };
  if (options_.force && count() > 1) {
    std::vector<std::string> first{own_path(last)};
    add_other_forms(last, first);
    remove_old(std::move(first));
  }
  for_each_at_once(
      target_.store->requests(), last, [](OutputId) { return true; },
      [&](OutputId out) { publish(out, help); });
  // What the new ones take the place of.
  std::vector<std::string> old;
  if (options_.whole_folder) {
    for (const auto& [path, object] : existing_) {
      if (!ours.contains(path)) old.push_back(path);
    }
  } else if (options_.force) {
    for (OutputId out = 0; out < count(); ++out) add_other_forms(out, old);
  }
  remove_old(std::move(old));
}

void FarOutput::put_pointer(const Pointer& pointer) {
  const std::string name = pointer.file.filename().string();
  const size_t slash = target_.path.rfind('/');
  const std::string path =
      slash == target_.path.npos ? name : target_.path.substr(0, slash + 1) + name;
  for (int times = 0; times <= kMostTimes; ++times) {
    const std::optional<std::string> etag = target_.store->find_etag(path);
    try {
      const FarPublished result =
          target_.store->put(path, std::as_bytes(std::span(pointer.text)), etag.value_or(""));
      if (result.what == FarPublished::What::done) return;
      if (result.what == FarPublished::What::refused) break;
    } catch (const Error& error) {
      // It may be there all the same: then the output is complete.
      bool is_there = false;
      target_.store->clean_up(true);
      try {
        // What it took the place of may have been this process's own, and may have said the same.
        is_there = target_.store->find_own(path) &&
                   target_.store->read(path, kLongestPointer) == pointer.text;
      } catch (const Error&) {
        target_.store->clean_up(false);
        Error(error, error.message() + "; " + shown_as(path) + " may be the new one").raise();
      }
      target_.store->clean_up(false);
      if (!is_there) throw;
      return;
    }
  }
  throw IoError({.file = shown_as(path)}, "somebody else writes it at the same time", 0)
      .with_hint("run again once nobody writes there");
}

void FarOutput::commit(const Pointer& pointer, const CommitHelp& help) {
  try {
    const OutputId last = count() == 0 ? 0 : count() - 1;
    publish_all(last, help);
    stand_in(0, last);
    if (help.read_back) help.read_back(0, last);
    if (count() > 0) publish(last, help);
    stand_in(last, count());
    if (help.read_back) help.read_back(last, count());
    if (!pointer.file.empty()) put_pointer(pointer);
  } catch (const Error& error) {
    take_back(error);
  } catch (const std::exception& error) {  // memory, mostly
    take_back(IoError({.file = shown_as(target_.path)}, error.what(), 0));
  }
  target_.store->clean_up(true);
  try {
    abort_uploads();
    remove_marker();
  } catch (const Error& error) {
    notes_.push_back(shown_as(marker_) + " cannot be removed: " + error.message() +
                     "; the output is complete");
    marker_.clear();
  }
  target_.store->clean_up(false);
}

// Whether what this run has made is what is there; nullopt: the store does not tell.
std::optional<bool> FarOutput::is_there(OutputId out) const {
  const std::string path = own_path(out);
  const std::optional<std::string> old = before(path);
  if (const auto own = target_.store->find_own(path)) return own != old;
  const std::optional<std::string> etag = target_.store->find_etag(path);
  // What it has made the store may deny; to remove that does no harm.
  if (!etag) return files_[out].is_published;
  if (etag == old) return false;
  // Not every store keeps whose an object is.
  if (files_[out].is_published && etag == files_[out].etag) return true;
  return std::nullopt;
}

void FarOutput::take_back(const Error& error) {
  target_.store->clean_up(true);
  std::vector<std::string> problems;
  std::mutex of_problems;
  const auto add_problem = [&](std::string problem) {
    const std::lock_guard lock(of_problems);
    problems.push_back(std::move(problem));
  };
  for_each_at_once(
      target_.store->requests(), count(),
      [&](OutputId out) { return files_[out].is_in_doubt || files_[out].is_published; },
      [&](OutputId out) {
        File& file = files_[out];
        const std::string path = own_path(out);
        try {
          // Or else it could still be completed.
          if (file.is_in_doubt && !file.is_held) target_.store->abort_upload(path, file.upload);
          const std::optional<bool> is_ours = is_there(out);
          file.is_published = is_ours.value_or(false);
          if (!is_ours) add_problem(shown(out) + " may be the new one");
          if (!file.is_published) return;
          if (before(path) == "" && !gone_.contains(path)) {
            target_.store->remove(path);
            file.is_published = false;
          } else {
            add_problem(shown(out) + " is the new one");
          }
        } catch (const Error&) {
          add_problem(shown(out) + " may be the new one");
        }
      });
  for (OutputId out = 0; out < count(); ++out) {
    if (files_[out].is_published) gone_.erase(own_path(out));
  }
  for (const std::string& path : gone_) {
    if (!existing_.contains(path)) {
      problems.push_back(shown_as(path) + " is gone");
      continue;
    }
    try {
      if (!target_.store->find_etag(path)) problems.push_back(shown_as(path) + " is gone");
    } catch (const Error&) {
      problems.push_back(shown_as(path) + " may be gone");
    }
  }
  target_.store->clean_up(false);
  std::sort(problems.begin(), problems.end());
  if (problems.empty()) error.raise();
  std::string text = error.message() + "; what was replaced cannot be brought back";
  text += listed(problems);
  Error(error, text).raise();
}

// Those that are not completed, also those that nobody was told of.
void FarOutput::abort_uploads() {
  for_each_at_once(
      target_.store->requests(), count(),
      [&](OutputId out) { return !files_[out].upload.empty() && !files_[out].is_published; },
      [&](OutputId out) {
        target_.store->abort_upload(own_path(out), files_[out].upload);
        files_[out].upload.clear();
      });
  if (doubtful_.empty()) return;
  for (const FarUpload& upload : target_.store->uploads(path_of(""))) {
    if (!doubtful_.contains(upload.path) || upload.begun < since_ / kSecond * kSecond) continue;
    target_.store->abort_upload(upload.path, upload.id);
  }
  doubtful_.clear();
}

void FarOutput::remove_marker() {
  if (marker_.empty()) return;
  target_.store->remove(marker_);
  marker_.clear();
}

void FarOutput::give_up(bool) {
  if (marker_.empty()) return;
  target_.store->clean_up(true);
  try {
    abort_uploads();
    remove_marker();
  } catch (const Error& error) {
    notes_.push_back(shown_as(marker_) + " and unfinished uploads stay: " + error.message() +
                     "; the next run that writes there removes them");
    marker_.clear();
  }
  target_.store->clean_up(false);
}

}  // namespace dsckpt
