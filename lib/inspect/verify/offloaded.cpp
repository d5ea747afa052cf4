// Checks the swap files of optimizers on NVMe: each must exist with the length of its sub-group,
// and a tensor must refer to it.

#include "checkpoint/offloaded.h"

#include <map>
#include <set>
#include <system_error>

#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"
#include "checkpoint/zero_world.h"
#include "deepspeed/keys.h"
#include "deepspeed/run_config.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using Kind = ShardName::Kind;

class SwapCheck {
 public:
  explicit SwapCheck(Verification& v) : v_(v) {
    for (const CheckedFile& file : v.files) {
      if (!file.name || file.name->kind != Kind::optim_states || file.left_out) continue;
      worlds_.insert(file.name->mp_rank);
      complete_ = complete_ && file.usable();
    }
    for (const CheckedFile* file : v.of_kind(Kind::zero_model_states)) {
      models_.emplace(std::pair(file->name->mp_rank, file->name->dp_rank), file);
    }
  }

  void run() {
    complete_ = complete_ && !v_.has(Check::missing);
    for (const uint32_t mp_rank : worlds_) check_world(mp_rank);
    // Other ranks' unreadable files might refer to more swap files.
    if (complete_) report_others();
  }

 private:
  void check_world(uint32_t mp_rank) {
    std::vector<CheckedFile*> files;
    std::vector<const Shard*> shards;
    std::vector<std::vector<SubGroupSize>> sizes;
    for (CheckedFile* file : v_.of_kind(Kind::optim_states, mp_rank)) {
      const CheckedFile* model = model_of(*file);
      if (model == nullptr) {
        complete_ = false;
        continue;
      }
      v_.attempt(Check::layout, *file, [&] {
        if (zero_stage_of(*file->shard) != 3) return;
        const std::vector<int64_t> counts = partition_counts(optimizer_state(*file->shard));
        if (counts.empty() || counts.front() < 1) return;
        sizes.push_back(sub_group_sizes(ModelStates(*model->shard), *file->shard,
                                        static_cast<size_t>(counts.front())));
        files.push_back(file);
        shards.push_back(&*file->shard);
      });
    }
    if (shards.empty()) return;
    try {
      std::vector<std::string> notes;
      const auto mp_ranks = static_cast<uint32_t>(worlds_.size());
      const OffloadConfig offload =
          run_config({}, shards.front()->archive.root().find_or_none(keys::kDsConfig)).offload;
      const auto tensors = swapped_tensors(shards, sizes, mp_ranks, offload, notes);
      for (size_t rank = 0; rank < shards.size(); ++rank) {
        for (const SwappedTensor& tensor : tensors[rank]) check(tensor, *files[rank]);
      }
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;
      complete_ = false;
      v_.add(Check::layout, error);
      for (CheckedFile* file : files) {
        file->suspect = file->suspect || file->display == error.where().file;
      }
    }
  }

  const CheckedFile* model_of(const CheckedFile& optim) {
    const auto found = models_.find({optim.name->mp_rank, optim.name->dp_rank});
    return found == models_.end() ? nullptr : found->second;
  }

  void check(const SwappedTensor& tensor, const CheckedFile& owner) {
    v_.stop_if_cancelled();
    known_.insert(tensor.path);
    Finding finding{
        .check = Check::missing, .message = {}, .file = tensor.display, .rank = owner.rank()};
    try {
      if (!is_stored(tensor.path)) {
        finding.message = "is not there: it has the elements of " + tensor.member + " in " +
                          owner.path.filename().string();
        v_.add(std::move(finding));
        return;
      }
      const InputFile& file = v_.inputs[v_.inputs.add(tensor.path, v_.folder.path.parent_path())];
      ++v_.report.files;
      v_.report.bytes += file.size();
      finding.size = file.size();
      check_swap_file(file, tensor);
    } catch (const Error& error) {
      finding.check = error.kind() == ErrorKind::io ? Check::unreadable : Check::layout;
      finding.message = error.message();
      v_.add(std::move(finding));
    }
  }

  void report_others() {
    const fs::path root = v_.folder.path.parent_path();
    for (const fs::path& path : unreferenced_swap_files(offload_folder(v_.folder.path), known_)) {
      v_.add({.check = Check::extra,
              .message =
                  "no tensor refers to it: it is left over from another run, or from other ranks",
              .file = path.lexically_relative(root).string()});
    }
  }

  Verification& v_;
  std::set<uint32_t> worlds_;
  std::map<std::pair<uint32_t, uint32_t>, const CheckedFile*> models_;  // by mp and dp rank
  bool complete_ = true;  // every rank's file could be read for its swap files
  std::set<fs::path> known_;
};

}  // namespace

void check_swap_files(Verification& v) {
  SwapCheck(v).run();
}

}  // namespace dsckpt
