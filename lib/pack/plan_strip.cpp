#include <tbb/parallel_for.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/offloaded.h"
#include "checkpoint/shard.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "dsckpt/pack.h"
#include "format/archive_copy.h"
#include "format/trimmed_storages.h"
#include "io/content_name.h"
#include "job/job_impl.h"
#include "job/links.h"
#include "job/neighbours.h"
#include "job/next_step.h"
#include "pack/plan_kept.h"
#include "pack/training_values.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Value;
namespace {

using Kinds = ShardName::Kind;

// A file of torch.save, and the changes to it.
struct Archive {
  const TorchArchive* archive;
  std::string path;  // in the output
  std::vector<Value> dropped = {};
  bool marked = false;                                            // as stripped
  std::vector<std::pair<std::string, std::string>> aliases = {};  // added to shared_params
};

// The result of stripping an archive. It is empty if the file is copied unchanged.
struct Made {
  std::optional<TorchArchiveWriter::Written> written = {};
  std::string note = {};
};

// A file of the checkpoint, by its path in the output folder.
struct StrippedFile {
  std::string path;
  uint64_t before = 0;  // of the content, even if it is stored packed
  uint64_t after = 0;   // 0 if it is left out
};

// {"keep", "tag", "files": [{"path", "before", "after"}], "bytes_before", "bytes_after",
// "bytes_read", "bytes_written"}
class StripReport : public JobReport {
 public:
  Keep keep = Keep::weights;
  std::string tag;
  std::vector<StrippedFile> files;  // by path

  uint64_t bytes_before() const { return sum_of(&StrippedFile::before); }
  uint64_t bytes_after() const { return sum_of(&StrippedFile::after); }

  nlohmann::json json(const Job::Impl& job) const override {
    nlohmann::json described = nlohmann::json::array();
    for (const StrippedFile& file : files) {
      described.push_back({{"path", file.path}, {"before", file.before}, {"after", file.after}});
    }
    return {{"keep", to_string(keep)},
            {"tag", tag},
            {"files", std::move(described)},
            {"bytes_before", bytes_before()},
            {"bytes_after", bytes_after()},
            {"bytes_read", job.plan.bytes_read()},
            {"bytes_written", job.plan.bytes_written()}};
  }

  Listing listing(const Job::Impl&) const override {
    Listing listing{.columns = {{.heading = "file", .shrinks = true},
                                {.heading = "before", .is_number = true},
                                {.heading = "after", .is_number = true}}};
    for (const StrippedFile& file : files) {
      listing.rows.push_back(
          {printable(file.path), human_bytes(file.before), human_bytes(file.after)});
    }
    listing.below.push_back(counted(files.size(), "file") + ", " + human_bytes(bytes_before()) +
                            " become " + human_bytes(bytes_after()));
    return listing;
  }

  std::string next(const Job::Impl& job, const fs::path& output) const override {
    if (keep == Keep::resume) return going_on(program_of(*job.checkpoint), output);
    return "zero-to-fp32 " + shell_word(output.string()) + " WEIGHTS --safe-serialization";
  }

 private:
  uint64_t sum_of(uint64_t StrippedFile::*bytes) const {
    return std::accumulate(
        files.begin(), files.end(), uint64_t{0},
        [&](uint64_t sum, const StrippedFile& file) { return sum + file.*bytes; });
  }
};

class Stripper {
 public:
  Stripper(const Source& source, Keep keep, const KeptBeside& beside)
      : inputs_(*source->inputs),
        source_(*source->checkpoint),
        input_(source->path),
        follow_links_(source->options.follow_links),
        keep_(keep),
        beside_(beside),
        tag_(output_tag(source_)),
        job_(job_of(source)) {
    const TagFolder& folder = source_.folder();
    shards_ = open_shards(inputs_, folder.shards, folder.display_root());
  }

  Job plan() {
    find_archives();
    lay_out_archives();
    lay_out_swap_files();
    lay_out_others();
    put_counted_text(is_universal() ? "latest_universal" : "latest", tag_);
    lay_out_beside(inputs_, beside_, plan_);
    set_plan(job_, plan_);
    auto report = std::make_shared<StripReport>();
    report->keep = keep_;
    report->tag = tag_;
    report->files = sizes();
    set_place(*report);
    job_.what = human_bytes(report->bytes_before()) + " stripped to " +
                (keeps_weights() ? "the weights" : "the parts that DeepSpeed loads");
    job_.report = std::move(report);
    return Job(std::move(job_));
  }

 private:
  bool keeps_weights() const { return keep_ == Keep::weights; }
  bool is_universal() const { return source_.facts().is_universal(); }

  void find_archives() {
    for (const Shard& shard : shards_) {
      archives_.push_back({&shard.archive, in_tag(shard.path.filename())});
    }
    if (keeps_weights()) drop_training_values();
    if (is_universal()) add_universal_files();
  }

  void drop_training_values() {
    const TrainingValues training(inputs_, shards_,
                                  source_.facts().zero_stage == 0 && !is_universal());
    for (size_t i = 0; i < shards_.size(); ++i) {
      const Kinds kind = shards_[i].name.kind;
      archives_[i].dropped = training.in(shards_[i]);
      archives_[i].aliases = training.untold_aliases(shards_[i]);
      archives_[i].marked = kind != Kinds::layer && kind != Kinds::expert;
    }
  }

  void add_universal_files() {
    for (const CheckpointFile& file : source_.files().optim) {
      Archive archive{file.archive, in_tag(relative(file.path))};
      if (keeps_weights()) {
        archive.dropped = TrainingValues::in_universal_wrapper(file.archive->root());
        archive.marked = true;
      }
      archives_.push_back(std::move(archive));
    }
    for (const CheckpointFile& file : source_.files().params) {
      Archive archive{file.archive, in_tag(relative(file.path))};
      const std::string state = file.path.stem().string();
      if (keeps_weights() && state != "fp32" && state != "step") {
        archive.dropped = TrainingValues::in_states(file.archive->root());
      }
      archives_.push_back(std::move(archive));
    }
  }

  fs::path relative(const fs::path& path) const {
    return path.lexically_relative(source_.tag_folder());
  }
  std::string in_tag(const fs::path& path) const {
    return (fs::path(tag_) / path).generic_string();
  }

  void lay_out_archives() {
    std::vector<Made> made(archives_.size());
    std::vector<std::exception_ptr> failures(archives_.size());
    tbb::parallel_for(size_t{0}, archives_.size(), [&](size_t i) {
      try {
        in_context({.file = inputs_[archives_[i].archive->file()].display()},
                   [&] { made[i] = make(archives_[i]); });
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
    for (size_t i = 0; i < archives_.size(); ++i) {
      if (failures[i]) std::rethrow_exception(failures[i]);
      const Archive& archive = archives_[i];
      const InputFile& file = inputs_[archive.archive->file()];
      if (!made[i].note.empty()) job_.notes.push_back(std::move(made[i].note));
      before_[archive.path] += file.size();
      if (made[i].written) {
        TorchArchiveWriter::lay_out(std::move(*made[i].written), plan_, archive.path);
      } else {
        lay_out_neighbours(inputs_, {{file.path(), archive.path}}, plan_);
      }
    }
  }

  // A file that cannot be stripped is copied unchanged. DeepSpeed loads it, so nothing is lost.
  Made make(const Archive& archive) const {
    if (keeps_weights()) return {.written = stripped(archive)};
    try {
      return {.written = stripped(archive)};
    } catch (const UnsupportedError& error) {
      return {.note =
                  std::string(
                      error.within({.file = inputs_[archive.archive->file()].display()}).what()) +
                  ": the file is copied unchanged"};
    }
  }

  static std::optional<TorchArchiveWriter::Written> stripped(const Archive& archive) {
    const TorchArchive& from = *archive.archive;
    const TrimmedStorages trimmed = trim_storages(from, from.root(), archive.dropped);
    const bool is_same = trimmed.before == trimmed.after && trimmed.changes.dropped.empty();
    if (is_same && !archive.marked) return std::nullopt;
    ArchiveCopy copy(from);
    const Value root = copy.writer().import(from, from.root(), trimmed.changes);
    if (archive.marked) {
      copy.set(root, keys::kStripped, copy.document().string(to_string(Keep::weights)));
    }
    if (!archive.aliases.empty()) {
      Value shared = root.find_or_none(keys::kSharedParams);
      if (!shared.is_mapping()) shared = copy.document().dict();
      for (const auto& [alias, owner] : archive.aliases) {
        copy.set(shared, alias, copy.document().string(owner));
      }
      copy.set(root, keys::kSharedParams, shared);
    }
    return copy.write(root);
  }

  // Copies the swap files of an optimizer on NVMe that the checkpoint uses.
  void lay_out_swap_files() {
    std::set<fs::path> kept;
    std::vector<Neighbour> files;
    for (const SwapFile& file : source_.files().swap) {
      kept.insert(file.path);
      const fs::path folder = file.path.parent_path();
      files.push_back({file.path, in_tag(folder.parent_path().filename() / folder.filename() /
                                         file.path.filename())});
      before_[files.back().destination] += inputs_[file.id].size();
    }
    lay_out_neighbours(inputs_, files, plan_);
    std::vector<fs::path> folders = source_.folder().other_roots;
    folders.push_back(source_.tag_folder());
    for (const fs::path& folder : folders) {
      for (const fs::path& stored : unreferenced_swap_files(offload_folder(folder), kept)) {
        const fs::path path = content_path(stored);
        before_[in_tag(path.lexically_relative(folder))] += InputFile(path).size();
      }
    }
  }

  void lay_out_others() {
    Neighbours beside = find_neighbours({.named = input_,
                                         .tag_folder = source_.tag_folder(),
                                         .tag = tag_,
                                         .other_roots = source_.folder().other_roots,
                                         .follow_links = follow_links_,
                                         .folders = source_.folder().folders});
    if (is_universal()) add_others_below_zero(beside);
    lay_out_neighbours(inputs_, beside.files, plan_);
    for (const Neighbour& file : beside.files) {
      before_[file.destination] += inputs_[inputs_.add(file.source)].size();
    }
    job_.notes.insert(job_.notes.end(), beside.notes.begin(), beside.notes.end());
  }

  // Adds files of a universal checkpoint's parameters that torch.save did not write.
  void add_others_below_zero(Neighbours& beside) const {
    const fs::path zero = source_.tag_folder() / "zero";
    std::error_code failed;
    fs::recursive_directory_iterator it(zero, failed);
    for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
      const fs::path path = content_path(it->path());
      const std::string name = in_tag(relative(path));
      if (!it->is_regular_file() || before_.contains(name)) continue;
      if (!follow_links_ && leads_out(it->path(), {&source_.tag_folder(), 1})) {
        beside.notes.push_back(left_out_link(name));
      } else {
        beside.files.push_back({path, name});
      }
    }
    if (failed) throw IoError({.file = zero.string()}, "cannot list", failed.value());
  }

  void put_counted_text(std::string path, std::string_view text) {
    before_[path] += text.size();
    put_text(plan_, std::move(path), text);
  }

  std::vector<StrippedFile> sizes() const {
    std::map<std::string, uint64_t> after;
    for (const PlannedFile& file : job_.plan.outputs()) after.emplace(file.path, file.size);
    std::vector<StrippedFile> files;
    for (const auto& [path, bytes] : before_) {
      const auto found = after.find(path);
      files.push_back({path, bytes, found == after.end() ? 0 : found->second});
    }
    return files;
  }

  void set_place(const StripReport& report) {
    std::set<std::string> planned;
    for (const StrippedFile& file : report.files) planned.insert(file.path);
    job_.place.whole = true;
    job_.place.is_ours = [planned = std::move(planned)](const fs::path& path) {
      return planned.contains(path.generic_string());
    };
    job_.place.replaced = "files that ckpt-pack strip wrote there before";
  }

  InputFiles& inputs_;
  const Checkpoint& source_;
  const fs::path input_;
  const bool follow_links_;
  const Keep keep_;
  const KeptBeside& beside_;
  const std::string tag_;
  Job::Impl job_;
  std::vector<Shard> shards_;
  std::vector<Archive> archives_;
  std::map<std::string, uint64_t> before_;  // bytes of each file, by path in the output
  PlanBuilder plan_;
};

}  // namespace

const char* to_string(Keep keep) {
  return keep == Keep::weights ? "weights" : "resume";
}

Job plan_strip(const Source& source, Keep keep) {
  return plan_kept_strip(source, keep, {});
}

Job plan_kept_strip(const Source& source, Keep keep, const KeptBeside& beside) {
  const Checkpoint& checkpoint = *source->checkpoint;
  if (!checkpoint.files().data.empty()) {
    throw UnsupportedError(
        {.file = checkpoint.tag_folder().string()},
        "is from torch.distributed.checkpoint, whose checkpoints are not stripped")
        .with_hint("zero-to-fp32 writes its weights");
  }
  return Stripper(source, keep, beside).plan();
}

}  // namespace dsckpt
