#include "pack/plan_strip.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/offloaded.h"
#include "checkpoint/shard.h"
#include "checkpoint/tag_folder.h"
#include "deepspeed/keys.h"
#include "format/archive_copy.h"
#include "format/trimmed_storages.h"
#include "io/content_name.h"
#include "job/neighbours.h"
#include "pack/training_values.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Value;
namespace {

using Kinds = ShardName::Kind;

// A file of torch.save of the checkpoint, and what is to become of it.
struct Archive {
  const TorchArchive* archive;
  std::string path;  // in the output
  std::vector<Value> dropped = {};
  bool marked = false;                                            // says that it was stripped
  std::vector<std::pair<std::string, std::string>> aliases = {};  // to be added to shared_params
};

// What was made of it: nothing if it is copied as it is.
struct Made {
  std::optional<TorchArchiveWriter::Written> written = {};
  std::string note = {};
};

class Stripper {
 public:
  Stripper(InputFiles& inputs, const Checkpoint& source, const fs::path& input, Keep keep)
      : inputs_(inputs), source_(source), input_(input) {
    result_.keep = keep;
    result_.tag = output_tag(source);
    result_.notes = source.notes();
    const TagFolder folder = find_tag_folder(source.tag_folder(), "", source.other_roots());
    shards_ = open_shards(inputs, folder.shards, folder.display_root());
  }

  StripPlan plan() {
    find_archives();
    lay_out_archives();
    lay_out_swap_files();
    lay_out_others();
    put_text(is_universal() ? "latest_universal" : "latest", result_.tag);
    result_.plan = plan_.finish();
    result_.plan.validate(planned_inputs(inputs_));
    add_sizes();
    return std::move(result_);
  }

 private:
  bool keeps_weights() const { return result_.keep == Keep::weights; }
  bool is_universal() const { return source_.facts().universal; }

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
    for (const CheckpointFile& file : source_.optim_files()) {
      Archive archive{file.archive, in_tag(relative(file.path))};
      if (keeps_weights()) {
        archive.dropped = TrainingValues::in_universal_wrapper(file.archive->root());
        archive.marked = true;
      }
      archives_.push_back(std::move(archive));
    }
    for (const CheckpointFile& file : source_.param_files()) {
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
    return (fs::path(result_.tag) / path).generic_string();
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
    std::vector<CheckpointFile> files;
    for (size_t i = 0; i < archives_.size(); ++i) {
      if (failures[i]) std::rethrow_exception(failures[i]);
      const Archive& archive = archives_[i];
      const InputFile& file = inputs_[archive.archive->file()];
      if (!made[i].note.empty()) result_.notes.push_back(std::move(made[i].note));
      before_[archive.path] += file.size();
      files.push_back({file.path(), archive.archive});
      if (made[i].written) {
        TorchArchiveWriter::lay_out(std::move(*made[i].written), plan_, archive.path);
      } else {
        lay_out_neighbours(inputs_, {{file.path(), archive.path}}, plan_);
      }
    }
    result_.records = records_of(files, true);
  }

  // Nothing is lost by a file that DeepSpeed loads as it is.
  Made make(const Archive& archive) const {
    if (keeps_weights()) return {.written = stripped(archive)};
    try {
      return {.written = stripped(archive)};
    } catch (const UnsupportedError& error) {
      return {.note =
                  std::string(
                      error.within({.file = inputs_[archive.archive->file()].display()}).what()) +
                  ": the file is copied as it is"};
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

  // Of an optimizer on NVMe: those that are opened stay.
  void lay_out_swap_files() {
    std::set<fs::path> kept;
    std::vector<Neighbour> files;
    for (const SwapFile& file : source_.swap_files()) {
      kept.insert(file.path);
      const fs::path folder = file.path.parent_path();
      files.push_back({file.path, in_tag(folder.parent_path().filename() / folder.filename() /
                                         file.path.filename())});
      before_[files.back().destination] += inputs_[file.id].size();
    }
    lay_out_neighbours(inputs_, files, plan_);
    std::vector<fs::path> folders = source_.other_roots();
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
                                         .tag = result_.tag,
                                         .other_roots = source_.other_roots()});
    if (is_universal()) add_others_below_zero(beside.files);
    lay_out_neighbours(inputs_, beside.files, plan_);
    for (const Neighbour& file : beside.files) {
      before_[file.destination] += inputs_[inputs_.add(file.source)].size();
    }
    result_.notes.insert(result_.notes.end(), beside.notes.begin(), beside.notes.end());
  }

  // Files of a universal checkpoint's parameters that are none of torch.save's.
  void add_others_below_zero(std::vector<Neighbour>& files) const {
    const fs::path zero = source_.tag_folder() / "zero";
    std::error_code failed;
    fs::recursive_directory_iterator it(zero, failed);
    for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
      const fs::path path = content_path(it->path());
      if (it->is_regular_file() && !before_.contains(in_tag(relative(path)))) {
        files.push_back({path, in_tag(relative(path))});
      }
    }
    if (failed) throw IoError({.file = zero.string()}, "cannot list", failed.value());
  }

  void put_text(std::string path, std::string_view text) {
    before_[path] += text.size();
    const OutputId out = plan_.add_output(std::move(path), text.size());
    plan_.put_literal(out, 0, text);
  }

  void add_sizes() {
    std::map<std::string, uint64_t> after;
    for (const PlannedFile& file : result_.plan.outputs()) after.emplace(file.path, file.size);
    for (const auto& [path, bytes] : before_) {
      const auto found = after.find(path);
      result_.files.push_back({path, bytes, found == after.end() ? 0 : found->second});
    }
  }

  InputFiles& inputs_;
  const Checkpoint& source_;
  const fs::path& input_;
  std::vector<Shard> shards_;
  std::vector<Archive> archives_;
  std::map<std::string, uint64_t> before_;  // bytes of each file, by path in the output
  PlanBuilder plan_;
  StripPlan result_;
};

}  // namespace

const char* to_string(Keep keep) {
  return keep == Keep::weights ? "weights" : "resume";
}

uint64_t StripPlan::bytes_before() const {
  return std::accumulate(files.begin(), files.end(), uint64_t{0},
                         [](uint64_t sum, const StrippedFile& file) { return sum + file.before; });
}

uint64_t StripPlan::bytes_after() const {
  return std::accumulate(files.begin(), files.end(), uint64_t{0},
                         [](uint64_t sum, const StrippedFile& file) { return sum + file.after; });
}

StripPlan plan_strip(InputFiles& inputs, const Checkpoint& source, const fs::path& input,
                     Keep keep) {
  return Stripper(inputs, source, input, keep).plan();
}

void check_strip_place(const Checkpoint& source, const StripPlan& plan, const fs::path& output,
                       bool force) {
  std::set<std::string> planned;
  for (const StrippedFile& file : plan.files) planned.insert(file.path);
  check_folder_place(source, output, force, "ckpt-pack strip",
                     [&](const fs::path& path) { return planned.contains(path.generic_string()); });
}

ExecStats run_strip(const StripPlan& plan, const InputFiles& inputs, const fs::path& output,
                    Progress& progress, const RunOptions& options) {
  RunOptions whole = options;
  whole.stage.whole_folder = true;
  return run_plan(plan.plan, inputs, plan.records, fs::weakly_canonical(fs::absolute(output)),
                  progress, whole);
}

}  // namespace dsckpt
