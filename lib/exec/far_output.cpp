#include "exec/far_output.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "base/kernels.h"
#include "base/text.h"
#include "exec/staged_files.h"
#include "exec/workers.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMostParts = 10'000;
// What is so small is sent in one request.
constexpr uint64_t kHeldFile = 256 << 10;
constexpr size_t kLongestPointer = 64 << 10;
constexpr unsigned kMostFailures = 8;  // in a row, after which the store is not there
constexpr int kMostTimes = 3;          // that an upload is sent anew

UsageError is_there_already(const std::string& shown) {
  return UsageError(shown + ": exists already").with_hint("--force replaces it");
}

}  // namespace

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
      marker_(
          target_, [this] { return own_paths(); }, options.beat, notes_) {
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

std::vector<std::string> FarOutput::own_paths() const {
  std::vector<std::string> paths;
  for (OutputId out = 0; out < count(); ++out) paths.push_back(own_path(out));
  return paths;
}

std::string FarOutput::shown_as(const std::string& path) const {
  return path.empty() ? target_.name : target_.name + "/" + path;
}

std::string FarOutput::shown(OutputId out) const {
  return shown_as(own_path(out));
}

bool FarOutput::is_packed(OutputId out) const {
  return is_stored_packed(plan_.outputs()[out], options_.packed);
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
  if (options_.whole_folder && !options_.force &&
      !std::all_of(existing_.begin(), existing_.end(),
                   [&](const auto& entry) { return marker_.is_marker(entry.first); })) {
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
  marker_.make();
  std::vector<FarObject> markers;
  for (auto it = existing_.begin(); it != existing_.end();) {
    if (!marker_.is_marker(it->first)) {
      ++it;
      continue;
    }
    markers.push_back(std::move(it->second));
    it = existing_.erase(it);
  }
  marker_.sweep(markers);
}

uint64_t FarOutput::part_size(OutputId out, uint64_t number) const {
  if (files_[out].is_held) return plan_.outputs()[out].size;
  if (is_packed(out)) return options_.part_bytes;  // how long it becomes is seen at its end
  return std::min(options_.part_bytes, plan_.outputs()[out].size - number * options_.part_bytes);
}

void FarOutput::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  File& file = files_[out];
  while (!bytes.empty()) {
    const uint64_t number = file.is_held ? 0 : offset / options_.part_bytes;
    const uint64_t at = file.is_held ? offset : offset % options_.part_bytes;
    const uint64_t size = part_size(out, number);
    const bool is_growing = file.is_held && is_packed(out);
    const std::span<const std::byte> some =
        bytes.first(is_growing ? bytes.size() : std::min<uint64_t>(bytes.size(), size - at));
    offset += some.size();
    bytes = bytes.subspan(some.size());
    if (!file.is_held && some.size() == size) {
      send(out, number, some);
      continue;
    }
    Part whole;
    {
      const std::lock_guard lock(file.mutex);
      Part& part = file.parts[number];
      // A packed output may be short.
      const uint64_t end = is_packed(out) ? at + some.size() : size;
      if (part.bytes.empty()) part.bytes.reserve(size);
      if (part.bytes.size() < end) part.bytes.resize(end);
      std::memcpy(part.bytes.data() + at, some.data(), some.size());
      part.filled += some.size();
      if (file.is_held || part.filled < size) continue;
      whole = std::move(part);
      file.parts.erase(number);
    }
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
  marker_.beat();
}

void FarOutput::finish(OutputId out) {
  File& file = files_[out];
  if (file.is_held) {
    if (file.parts.empty()) return;
    file.size = file.parts.begin()->second.bytes.size();
    return;
  }
  // Of one that is packed the last part is as long as it has become.
  if (is_packed(out) && file.parts.size() == 1 &&
      file.parts.begin()->second.filled == file.parts.begin()->second.bytes.size()) {
    const auto [number, part] = std::move(*file.parts.begin());
    file.parts.clear();
    send(out, number, part.bytes);
  }
  const bool has_all = std::none_of(file.etags.begin(), file.etags.end(),
                                    [](const std::string& etag) { return etag.empty(); });
  const bool is_whole = is_packed(out) || file.size == plan_.outputs()[out].size;
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
    target_.store->abort_upload(own_path(out), file.upload);
    file.upload.clear();
    file.etags.clear();
    file.size = 0;
    const std::lock_guard lock(rewriting_);  // one reads the input at a time
    help.write_again(out);
  }
}

void FarOutput::remove_old(std::vector<std::string> paths) {
  std::erase_if(paths, [&](const std::string& path) { return !existing_.contains(path); });
  run_for_each(target_.store->requests(), paths.size(), [&](size_t i) {
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
        {.path = own_path(out), .etag = file.etag, .size = file.size, .modified = marker_.since()});
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
  run_for_each(target_.store->requests(), last,
               [&](size_t out) { publish(static_cast<OutputId>(out), help); });
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
    marker_.remove();
  } catch (const Error& error) {
    notes_.push_back(marker_.leave() + " cannot be removed: " + error.message() +
                     "; the output is complete");
  }
  target_.store->clean_up(false);
}

// As many at once as the store takes.
template <typename Wanted, typename Work>
void FarOutput::for_each_output(Wanted&& is_wanted, Work&& work) {
  std::vector<OutputId> wanted;
  for (OutputId out = 0; out < count(); ++out) {
    if (is_wanted(out)) wanted.push_back(out);
  }
  run_for_each(target_.store->requests(), wanted.size(), [&](size_t i) { work(wanted[i]); });
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
  const auto may_be_there = [&](OutputId out) {
    return files_[out].is_in_doubt || files_[out].is_published;
  };
  std::atomic<unsigned> failed_in_a_row{0};
  for_each_output(may_be_there, [&](OutputId out) {
    File& file = files_[out];
    const std::string path = own_path(out);
    if (failed_in_a_row >= kMostFailures) return add_problem(shown(out) + " may be the new one");
    try {
      // Or else it could still be completed.
      if (file.is_in_doubt && !file.is_held) target_.store->abort_upload(path, file.upload);
      const std::optional<bool> is_ours = is_there(out);
      failed_in_a_row = 0;
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
      ++failed_in_a_row;
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
  const auto is_open = [&](OutputId out) {
    return !files_[out].upload.empty() && !files_[out].is_published;
  };
  for_each_output(is_open, [&](OutputId out) {
    target_.store->abort_upload(own_path(out), files_[out].upload);
    files_[out].upload.clear();
  });
  if (doubtful_.empty()) return;
  std::vector<FarUpload> maybe_ours = target_.store->uploads(path_of(""));
  std::erase_if(maybe_ours, [&](const FarUpload& upload) {
    return !doubtful_.contains(upload.path) || !marker_.is_since(upload);
  });
  const size_t found = maybe_ours.size();
  marker_.leave_out_others(maybe_ours);
  for (const FarUpload& upload : maybe_ours) {
    target_.store->abort_upload(upload.path, upload.id);
  }
  if (const size_t kept = found - maybe_ours.size(); kept > 0) {
    throw IoError({}, counted(kept, "unfinished upload") + " may be of another run", 0);
  }
  doubtful_.clear();
}

void FarOutput::give_up(bool) {
  if (!marker_.is_made()) return;
  target_.store->clean_up(true);
  try {
    abort_uploads();
    marker_.remove();
  } catch (const Error& error) {
    notes_.push_back(marker_.leave() + " and unfinished uploads stay: " + error.message() +
                     "; the next run that writes there removes them");
  }
  target_.store->clean_up(false);
}

}  // namespace dsckpt
