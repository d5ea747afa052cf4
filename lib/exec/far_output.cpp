#include "exec/far_output.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "base/random.h"
#include "base/text.h"
#include "codec/packed_index.h"
#include "exec/commit.h"
#include "exec/journal.h"
#include "exec/staged_files.h"
#include "exec/workers.h"
#include "io/content_name.h"
#include "io/text_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMostParts = 10'000;
// Files up to this size are sent in one request.
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
  // A packed file may become larger by its index.
  largest += largest / 64;
  return std::max(kShortestFarPart, std::bit_ceil(largest / kMostParts + 1));
}

FarOutput::FarOutput(const CopyPlan& plan, FarPlace target, FarOptions options)
    : plan_(plan),
      target_(std::move(target)),
      options_(std::move(options)),
      parts_(plan, target_, {options_.part_bytes, options_.packed}, objects_of_plan(),
             [this] { marker_.beat(); }),
      objects_(plan.outputs().size()),
      marker_(
          target_, [this] { return own_paths(); }, options_.beat, notes_) {}

std::vector<FarStaging::Object> FarOutput::objects_of_plan() const {
  if (options_.begun) return options_.begun->objects;
  std::vector<FarStaging::Object> objects;
  uint64_t room = options_.held_bytes;
  for (const PlannedFile& file : plan_.outputs()) {
    // An upload has one part at least, which nobody can rely on to be allowed to be empty.
    const bool is_held = file.size == 0 || (file.size <= kHeldFile && file.size <= room);
    if (is_held) room -= file.size;
    objects.push_back({.path = path_of(stored_name(file, options_.packed)), .is_held = is_held});
  }
  return objects;
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

std::vector<std::string> FarOutput::own_paths() const {
  std::vector<std::string> paths;
  for (OutputId out = 0; out < count(); ++out) paths.push_back(own_path(out));
  return paths;
}

std::string FarOutput::shown_as(const std::string& path) const {
  return path.empty() ? target_.name : target_.name + "/" + path;
}

std::optional<std::string> FarOutput::before(const std::string& path) const {
  const auto found = existing_.find(path);
  if (found == existing_.end()) return "";
  // Without an ETag nothing can be asked for.
  return found->second.etag.empty() ? std::nullopt : std::optional(found->second.etag);
}

// Returns the other paths at which the content of an output may lie.
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
  if (goes_on()) find_published();
  check_free();
}

void FarOutput::check_free() const {
  if (!target_.path.empty() && target_.store->find_etag(target_.path)) {
    throw UsageError(shown_as(target_.path) + ": is an object, not a folder")
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
      throw UsageError(shown_as(path_of(folder.string())) + ": is an object, not a folder");
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
        parts_.is_held(out) ? 1 : 2 + (size + options_.part_bytes - 1) / options_.part_bytes;
  }
  return cost;
}

// The objects that a commit before has made.
void FarOutput::find_published() {
  for_each_output([&](OutputId out) { return existing_.contains(own_path(out)); },
                  [&](OutputId out) {
                    const std::optional<std::string> etag = target_.store->find_own(own_path(out));
                    if (!etag) return;
                    const std::lock_guard lock(mutex_);
                    const auto found = existing_.find(own_path(out));
                    objects_[out] = {
                        .is_published = true, .etag = *etag, .size = found->second.size};
                    existing_.erase(found);
                    parts_.forget(out);
                  });
}

// The outputs whose uploads somebody has ended.
void FarOutput::find_lost() {
  std::set<std::string> there;
  for (FarUpload& upload : target_.store->uploads(path_of(""))) {
    there.insert(std::move(upload.id));
  }
  for (OutputId out = 0; out < count(); ++out) {
    if (objects_[out].is_published || parts_.is_held(out)) continue;
    objects_[out].is_lost = !there.contains(parts_.upload_of(out));
    if (objects_[out].is_lost) parts_.forget(out);
  }
}

void FarOutput::prepare() {
  if (goes_on()) return take_up();
  look();
  if (!options_.folder.empty()) make_folder();
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
  if (!folder_) return;
  for_each_output([&](OutputId out) { return !parts_.is_held(out); },
                  [&](OutputId out) { parts_.upload_of(out); });
}

void FarOutput::make_folder() {
  files_in_ = Staging::kFilesPrefix;
  if (is_kept()) {
    const fs::path path = without_slash(options_.folder);
    const std::string name = resumable_folder(path, false).filename().string();
    place_ = Folder::make(path, made_folders_);
    for (const std::string& other : place_->names()) {
      if (other == name || other == kCommittedFile) continue;
      throw UsageError(path.string() + ": holds something other than a plan")
          .with_hint("--plan-in DIR makes a new folder, and needs its name");
    }
    if (const std::optional<Folder> before = place_->own(name)) {
      // A planner was killed.
      check_free_to_take(*before);
      const StagingOwner owner(*before);
      if (const int failed = remove_staging_folder(*place_, *before)) {
        throw IoError({.file = before->path().string()}, "cannot be removed", failed);
      }
    }
    place_->remove(kCommittedFile);
    folder_ = make_resumable_folder(*place_, name);
    owner_.emplace(*folder_);
    marker_.set_planned_in(folder_->path());
    files_in_ += "-" + std::to_string(random_number());
    save_job(*folder_, *options_.job);
  } else {
    folder_ = Folder::at(options_.folder);
  }
  if (const int failed = folder_->make_folder(files_in_, 0700)) {
    throw IoError({.file = (folder_->path() / files_in_).string()}, "cannot make the folder",
                  failed);
  }
}

void FarOutput::take_up() {
  const std::optional<Resumable> found = find_resumable(options_.folder, false);
  if (!found || !has_job(found->folder)) {
    throw UsageError(options_.folder.string() + ": nothing is left to be committed there")
        .with_hint("another process has committed it meanwhile, or it was abandoned");
  }
  check_free_to_take(found->folder);
  owner_.emplace(found->folder);
  check_same_job(found->folder, *options_.job);
  place_ = found->place;
  folder_ = found->folder;
  target_.store->take_run(options_.begun->run);
  marker_.take_over(options_.begun->marker, options_.begun->since);
  is_written_ = load_written(*folder_).has_value();
  if (is_written_) return;
  look();
  find_lost();
  std::erase_if(existing_, [&](const auto& entry) { return marker_.is_marker(entry.first); });
  // Others that are at work find nothing any more.
  files_in_ = Staging::kFilesPrefix + ("-" + std::to_string(random_number()));
  int failed = ENOENT;
  for (const std::string& name : folder_->names()) {
    if (name.starts_with(Staging::kFilesPrefix))
      failed = folder_->rename(name, *folder_, files_in_);
  }
  // A commit before had needed them no more.
  if (failed == ENOENT) failed = folder_->make_folder(files_in_, 0700);
  if (failed != 0) {
    throw IoError({.file = folder_->path().string()}, "cannot take over the files", failed);
  }
}

FarStaging FarOutput::staging() const {
  return {.part_bytes = options_.part_bytes,
          .run = target_.store->run(),
          .marker = marker_.path(),
          .since = marker_.since(),
          .objects = parts_.objects()};
}

StagingPlace FarOutput::place() const {
  return {.path = folder_->path(),
          .folder = folder_,
          .files_in = files_in_,
          .target = shown_as(target_.path),
          .packed = options_.packed,
          .far = staging()};
}

ReadBack FarOutput::read_back() const {
  return {.path =
              [this](OutputId out) {
                return options_.here / stored_name(plan_.outputs()[out], options_.packed);
              },
          .shown = [this](OutputId out) { return shown_as(path_of(plan_.outputs()[out].path)); }};
}

void FarOutput::hand_over() {
  owner_->unsign();
  owner_.reset();
  folder_.reset();
  made_folders_.clear();
  static_cast<void>(marker_.leave());
}

FarPublished FarOutput::try_to_publish(OutputId out) {
  const std::string& path = own_path(out);
  if (parts_.is_held(out)) return target_.store->put(path, parts_.held(out), before(path));
  const std::vector<std::string> etags = parts_.sent(out);
  return target_.store->complete(path, parts_.upload_of(out), etags, before(path));
}

void FarOutput::publish(OutputId out, const CommitHelp& help) {
  Object& object = objects_[out];
  if (object.is_published) return;
  for (int times = 0;; ++times) {
    FarPublished result{.what = FarPublished::What::again};
    if (!std::exchange(object.is_lost, false)) {
      object.is_in_doubt = true;
      result = try_to_publish(out);
      object.is_in_doubt = false;
    }
    switch (result.what) {
      case FarPublished::What::done:
        object = {.is_published = true, .etag = std::move(result.etag), .size = parts_.size(out)};
        parts_.forget(out);
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
    if (parts_.is_held(out)) continue;
    parts_.end_upload(out);
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
    const Object& object = objects_[out];
    target_.store->stand_in({.path = own_path(out),
                             .etag = object.etag,
                             .size = object.size,
                             .modified = marker_.since()});
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
  // The objects that the new ones replace.
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
        // The object that it replaced may have been this process's own, with the same text.
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

void FarOutput::publish_everything(const Pointer& pointer, const CommitHelp& help) {
  if (folder_) parts_.send_left(folder_->below(files_in_));
  const OutputId last = count() == 0 ? 0 : count() - 1;
  publish_all(last, help);
  stand_in(0, last);
  if (help.read_back) help.read_back(0, last);
  if (count() > 0) publish(last, help);
  stand_in(last, count());
  if (help.read_back) help.read_back(last, count());
  if (!pointer.file.empty()) put_pointer(pointer);
}

void FarOutput::commit(const Pointer& pointer, const CommitHelp& help) {
  try {
    if (!is_written_) publish_everything(pointer, help);
    if (is_kept() && !is_written_) {
      // Processes that still work find nothing to do.
      folder_->remove_all(files_in_);
      save_written(*folder_, folder_->number());
    }
  } catch (const Error& error) {
    // The next commit continues from there.
    if (is_kept() && error.kind() != ErrorKind::corrupt) throw;
    take_back(error);
  } catch (const std::exception& error) {  // memory, mostly
    take_back(IoError({.file = shown_as(target_.path)}, error.what(), 0));
  }
  target_.store->clean_up(true);
  try {
    if (!is_written_) abort_uploads();
    marker_.remove();
  } catch (const Error& error) {
    notes_.push_back(marker_.leave() + " cannot be removed: " + error.message() +
                     "; the output is complete");
  }
  target_.store->clean_up(false);
  if (is_kept()) replace_text_file(*place_, kCommittedFile, shown_as(target_.path) + "\n", true);
  made_folders_.clear();
  remove_folder();
}

void FarOutput::remove_folder() {
  owner_.reset();
  if (!is_kept()) return;
  if (folder_) {
    if (const int failed = remove_staging_folder(*place_, *folder_)) {
      notes_.push_back(folder_->path().string() +
                       " cannot be removed: " + std::generic_category().message(failed));
    }
    folder_.reset();
  }
  for (auto made = made_folders_.rbegin(); made != made_folders_.rend(); ++made) {
    ::rmdir(made->c_str());
  }
  made_folders_.clear();
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

// Returns whether the object there is the one that this run has made; nullopt if the store does not
// tell.
std::optional<bool> FarOutput::is_there(OutputId out) const {
  const std::string path = own_path(out);
  const std::optional<std::string> old = before(path);
  if (const auto own = target_.store->find_own(path)) return own != old;
  const std::optional<std::string> etag = target_.store->find_etag(path);
  // The store may deny an object that this run has made. Its removal does no harm.
  if (!etag) return objects_[out].is_published;
  if (etag == old) return false;
  // Not every store keeps whose an object is.
  if (objects_[out].is_published && etag == objects_[out].etag) return true;
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
    return objects_[out].is_in_doubt || objects_[out].is_published;
  };
  std::atomic<unsigned> failed_in_a_row{0};
  for_each_output(may_be_there, [&](OutputId out) {
    Object& object = objects_[out];
    const std::string& path = own_path(out);
    if (failed_in_a_row >= kMostFailures) return add_problem(shown(out) + " may be the new one");
    try {
      // Or else it could still be completed.
      if (object.is_in_doubt) parts_.end_upload(out);
      const std::optional<bool> is_ours = is_there(out);
      failed_in_a_row = 0;
      object.is_published = is_ours.value_or(false);
      if (!is_ours) add_problem(shown(out) + " may be the new one");
      if (!object.is_published) return;
      if (before(path) == "" && !gone_.contains(path)) {
        target_.store->remove(path);
        object.is_published = false;
      } else {
        add_problem(shown(out) + " is the new one");
      }
    } catch (const Error&) {
      ++failed_in_a_row;
      add_problem(shown(out) + " may be the new one");
    }
  });
  for (OutputId out = 0; out < count(); ++out) {
    if (objects_[out].is_published) gone_.erase(own_path(out));
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
  std::string text = error.message() + "; replaced objects cannot be brought back";
  text += listed(problems);
  Error(error, text).raise();
}

// Those that are not completed, also those that nobody was told of.
void FarOutput::abort_uploads() {
  const auto is_open = [&](OutputId out) { return !objects_[out].is_published; };
  for_each_output(is_open, [&](OutputId out) { parts_.end_upload(out); });
  std::set<std::string> doubtful = parts_.doubtful();
  if (is_kept()) {  // the processes before may have had doubts
    for (std::string& path : own_paths()) doubtful.insert(std::move(path));
  }
  if (doubtful.empty()) return;
  std::vector<FarUpload> maybe_ours = target_.store->uploads(path_of(""));
  std::erase_if(maybe_ours, [&](const FarUpload& upload) {
    return !doubtful.contains(upload.path) || !marker_.is_since(upload);
  });
  const size_t found = maybe_ours.size();
  marker_.leave_out_others(maybe_ours);
  for (const FarUpload& upload : maybe_ours) {
    target_.store->abort_upload(upload.path, upload.id);
  }
  if (const size_t kept = found - maybe_ours.size(); kept > 0) {
    throw IoError({}, counted(kept, "unfinished upload") + " may belong to another run", 0);
  }
}

void FarOutput::give_up(bool forever) {
  if (is_kept() && goes_on() && !forever) {
    if (folder_ && !leaves_run_before_) {
      notes_.push_back("completed work is kept in " + folder_->path().string() +
                       ": dsckpt commit continues it, dsckpt abandon removes it");
    }
    owner_.reset();
    folder_.reset();
    static_cast<void>(marker_.leave());
    return;
  }
  if (marker_.is_made()) {
    target_.store->clean_up(true);
    try {
      if (goes_on()) {
        remove_far(target_, staging());
      } else {
        abort_uploads();
        marker_.remove();
      }
    } catch (const Error& error) {
      notes_.push_back(marker_.leave() + " and unfinished uploads stay: " + error.message() +
                       "; the next run that writes there removes them");
    }
    target_.store->clean_up(false);
  }
  remove_folder();
}

void remove_far(const FarPlace& target, const FarStaging& staging) {
  FarStore& store = *target.store;
  store.take_run(staging.run);
  const std::string front = target.path.empty() ? "" : target.path + "/";
  std::set<std::string> there;
  for (const FarObject& object : store.list(front)) there.insert(object.path);
  run_for_each(store.requests(), staging.objects.size(), [&](size_t i) {
    const FarStaging::Object& object = staging.objects[i];
    if (!object.upload.empty()) store.abort_upload(object.path, object.upload);
    if (there.contains(object.path) && store.find_own(object.path)) store.remove(object.path);
  });
  // A commit that was killed may have begun others.
  std::set<std::string> paths;
  for (const FarStaging::Object& object : staging.objects) paths.insert(object.path);
  std::vector<std::string> notes;
  FarMarker marker(
      target, [] { return std::vector<std::string>(); }, std::chrono::seconds(0), notes);
  marker.take_over(staging.marker, staging.since);
  std::vector<FarUpload> uploads = store.uploads(front);
  std::erase_if(uploads, [&](const FarUpload& upload) {
    return !paths.contains(upload.path) || !marker.is_since(upload);
  });
  marker.leave_out_others(uploads);
  for (const FarUpload& upload : uploads) store.abort_upload(upload.path, upload.id);
  marker.remove();
}

}  // namespace dsckpt
