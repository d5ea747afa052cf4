#include "exec/staging_sinks.h"

#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exec/far_marker.h"
#include "exec/far_parts.h"
#include "io/far_files.h"

namespace dsckpt {
namespace {

constexpr std::chrono::hours kBetweenBeats{1};

class FileSinks : public StagingSinks {
 public:
  explicit FileSinks(const StagingPlace& place) : place_(place), folder_(place.open()) {}

  std::unique_ptr<StagingSink> of(const PlanPart& part) override {
    for (const PlannedFile& file : part.plan.outputs()) {
      // No link leads out of the folder.
      const std::filesystem::path folder = (place_.files_in / file.path).parent_path();
      if (checked_.insert(folder).second) static_cast<void>(folder_.below(folder));
    }
    return std::make_unique<StagedFiles>(part.plan, place_);
  }

 private:
  const StagingPlace place_;
  const Folder folder_;
  std::set<std::filesystem::path> checked_ = {};
};

class FarSink : public StagingSink {
 public:
  FarSink(std::unique_ptr<FarParts> parts, Folder folder)
      : parts_(std::move(parts)), folder_(std::move(folder)) {}

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    parts_->write_at(out, offset, bytes);
  }
  bool wants_digests_early() const override { return parts_->wants_digests_early(); }
  void finish(OutputId out) override { parts_->finish(out); }
  SentWork end() override { return parts_->leave(folder_); }

 private:
  const std::unique_ptr<FarParts> parts_;
  const Folder folder_;
};

class FarSinks : public StagingSinks {
 public:
  explicit FarSinks(const StagingPlace& place)
      : place_(place),
        folder_(place.open()),
        target_(far_place_called(place.target.string())),
        marker_(
            target_, [] { return std::vector<std::string>(); }, kBetweenBeats, notes_) {
    target_.store->take_run(place_.far.run);
    marker_.take_over(place_.far.marker, place_.far.since);
  }

  std::unique_ptr<StagingSink> of(const PlanPart& part) override {
    std::vector<FarStaging::Object> objects;
    for (const OutputId out : part.outputs) objects.push_back(place_.far.objects.at(out));
    return std::make_unique<FarSink>(
        std::make_unique<FarParts>(part.plan, target_,
                                   FarParts::Cut{place_.far.part_bytes, place_.packed},
                                   std::move(objects), [this] { marker_.beat(); }),
        folder_.below(place_.files_in));
  }

 private:
  const StagingPlace place_;
  const Folder folder_;
  const FarPlace target_;
  std::vector<std::string> notes_ = {};  // of markers that are swept: none
  FarMarker marker_;
};

}  // namespace

std::unique_ptr<StagingSinks> sinks_at(const StagingPlace& place) {
  if (place.far.part_bytes == 0) return std::make_unique<FileSinks>(place);
  return std::make_unique<FarSinks>(place);
}

}  // namespace dsckpt
