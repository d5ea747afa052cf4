#include "exec/staged_files.h"

#include <utility>

#include "exec/frame_cuts.h"
#include "io/content_name.h"

namespace dsckpt {
namespace {

// Files up to this size are one write: it reserves its blocks itself, and there are too many of
// them for the disk to be asked about each.
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

StagedFiles::StagedFiles(const CopyPlan& plan, StagingPlace place)
    : plan_(plan), place_(std::move(place)), patches_(patches_of(plan, [this](OutputId out) {
        return place_.is_direct(plan_.outputs()[out]);
      })) {
  for (size_t i = 0; i < plan.outputs().size(); ++i) files_.emplace_back();
}

std::shared_ptr<OutputFile> StagedFiles::file(OutputId out) {
  File& entry = files_[out];
  const std::lock_guard lock(entry.mutex);
  if (!entry.open) entry.open = create(out);
  return entry.open;
}

std::shared_ptr<OutputFile> StagedFiles::create(OutputId out) const {
  const PlannedFile& file = plan_.outputs()[out];
  const std::string name = stored_name(file, place_.packed);
  const bool is_packed = is_stored_packed(file, place_.packed);
  OutputOptions options;
  if (file.size > kSmallFile && !is_packed) options.size = file.size;
  options.direct = place_.is_direct(file);
  options.write_bytes = place_.write_bytes;
  if (place_.are_there) {
    using Existing = OutputOptions::Existing;
    options.existing = is_packed ? Existing::emptied : Existing::kept;
  }
  if (const auto places = patches_.find(out); places != patches_.end()) {
    options.rewritten = places->second;
  }
  return std::make_shared<OutputFile>(place_.files_in / name, (place_.target / name).string(),
                                      std::move(options));
}

void StagedFiles::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  file(out)->write_at(offset, bytes);
}

void StagedFiles::finish(OutputId out) {
  const std::shared_ptr<OutputFile> done = file(out);
  if (place_.durable) done->sync();
  done->close();
  files_[out].open.reset();
}

}  // namespace dsckpt
