#include "exec/staged_files.h"

#include <cerrno>
#include <utility>

#include "base/random.h"
#include "codec/packed_index.h"
#include "dsckpt/error.h"
#include "exec/frame_cuts.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Files up to this size are one write, which reserves its blocks itself. There are too many of them
// to ask the disk about each.
constexpr uint64_t kSmallFile = 256 << 10;

}  // namespace

bool is_stored_packed(const PlannedFile& file, bool packed) {
  return packed && is_packable(file.path);
}

std::string stored_name(const PlannedFile& file, bool packed) {
  return is_stored_packed(file, packed) ? file.path + std::string(kPackedSuffix) : file.path;
}

bool StagingPlace::is_direct(const PlannedFile& file) const {
  return direct && !is_stored_packed(file, packed) && file.size > kSmallFile;
}

Folder StagingPlace::open() const {
  if (folder) return *folder;
  const std::optional<Folder> found =
      Folder::at(path.parent_path()).own(path.filename().string(), true);
  if (!found) throw IoError({.file = path.string()}, "cannot open the folder", ENOENT);
  return *found;
}

StagedFiles::StagedFiles(const CopyPlan& plan, StagingPlace place)
    : plan_(plan), place_(std::move(place)), folder_(place_.open()) {
  for (size_t i = 0; i < plan.outputs().size(); ++i) files_.emplace_back();
}

fs::path StagedFiles::staged(OutputId out) const {
  return place_.files_in / stored_name(plan_.outputs()[out], place_.packed);
}

std::string StagedFiles::shown(OutputId out) const {
  return (place_.target / stored_name(plan_.outputs()[out], place_.packed)).string();
}

std::shared_ptr<OutputFile> StagedFiles::file(OutputId out) {
  File& entry = files_[out];
  const std::lock_guard lock(entry.mutex);
  if (!entry.open) create(out, entry);
  return entry.open;
}

void StagedFiles::create(OutputId out, File& file) const {
  const PlannedFile& planned = plan_.outputs()[out];
  const bool is_packed = is_stored_packed(planned, place_.packed);
  OutputOptions options;
  if (planned.size > kSmallFile && !is_packed) options.size = planned.size;
  options.direct = place_.is_direct(planned);
  options.write_bytes = place_.write_bytes;
  options.may_be_there = place_.are_there && !is_packed;
  if (place_.are_there && is_packed) {
    file.attempt = place_.attempts_in / std::to_string(random_number());
  }
  file.open = std::make_shared<OutputFile>(
      folder_, file.attempt.empty() ? staged(out) : file.attempt, shown(out), options);
}

void StagedFiles::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  file(out)->write_at(offset, bytes);
}

void StagedFiles::finish(OutputId out) {
  const std::shared_ptr<OutputFile> done = file(out);
  if (place_.durable) done->sync();
  done->close();
  File& entry = files_[out];
  entry.open.reset();
  if (entry.attempt.empty()) return;
  if (const int failed = folder_.rename(entry.attempt, folder_, staged(out))) {
    throw IoError({.file = shown(out)}, "cannot be given its name", failed);
  }
  entry.attempt.clear();
}

}  // namespace dsckpt
