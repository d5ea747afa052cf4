#include "reshard/files.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "deepspeed/shard_name.h"
#include "reshard/file_notes.h"
#include "reshard/model_file.h"
#include "reshard/rank_file.h"
#include "reshard/state_dict_keys.h"

namespace dsckpt {
namespace {

using Written = TorchArchiveWriter::Written;

// A kind of files, and how one of a rank is made.
struct FileKind {
  uint32_t ranks;  // that have one
  ShardName (*name)(const ReshardTarget& target, uint32_t rank);
  Written (*write)(const ShardSource& from, uint32_t rank);
};

ShardName model_file_name(const ReshardTarget& target, uint32_t rank) {
  if (target.stage != 3) {
    return {.kind = ShardName::Kind::model_states, .mp_rank = target.mp_rank};
  }
  return {.kind = ShardName::Kind::zero_model_states, .dp_rank = rank, .mp_rank = target.mp_rank};
}

ShardName optim_file_name(const ReshardTarget& target, uint32_t rank) {
  return {.kind = ShardName::Kind::optim_states,
          .dp_rank = rank,
          .mp_rank = target.mp_rank,
          .bf16 = target.precision == Precision::bf16};
}

Written write_whole_model_file(const ShardSource& from, uint32_t rank) {
  return write_model_file(from, rank);
}

Written write_optim_file(const ShardSource& from, uint32_t rank) {
  ArchiveCopy copy(*from.wrapper.archive);
  return copy.write(dict_of({from, copy, rank}, optim_file_keys()));
}

// Adds the files of all ranks to the plan in their order, made several at a time. If several cannot
// be made, the error is that of the first.
void lay_out_files(PlanBuilder& plan, const ShardSource& from, const std::string& folder,
                   const FileKind& kind) {
  constexpr uint32_t kAtOnce = 32;  // that are in memory
  for (uint32_t begin = 0; begin < kind.ranks; begin += kAtOnce) {
    const uint32_t count = std::min(kAtOnce, kind.ranks - begin);
    std::vector<Written> files(count);
    std::vector<std::exception_ptr> failures(count);
    tbb::parallel_for(uint32_t{0}, count, [&](uint32_t i) {
      try {
        files[i] = kind.write(from, begin + i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
    for (uint32_t i = 0; i < count; ++i) {
      if (failures[i]) std::rethrow_exception(failures[i]);
      const ShardName name = kind.name(from.target, begin + i);
      TorchArchiveWriter::lay_out(std::move(files[i]), plan, folder + "/" + name.file_name());
    }
  }
}

ReshardedGroup summary_of(const ReshardLayout& layout, size_t g, const ReshardTarget& target) {
  const ReshardLayout::Group& from = layout.groups()[g];
  ReshardedGroup group{.mp_rank = target.mp_rank,
                       .ep = from.mesh.ep,
                       .params = from.params().size(),
                       .numel = 0,
                       .partition = from.flat.partition};
  for (const Param* param : from.params()) {
    const auto numel = static_cast<uint64_t>(param->weight.numel());
    group.numel += numel;
    if (target.stage == 3) group.partition += piece_of(numel, from.mesh.edp());
  }
  for (const ReshardLayout::Run& run : layout.runs()) {
    if (target.stage == 3 && run.group == g) ++group.sub_groups;
  }
  return group;
}

}  // namespace

std::vector<ReshardedGroup> lay_out_shards(PlanBuilder& plan, const Checkpoint& source,
                                           const ReshardTarget& target, const std::string& folder,
                                           std::vector<std::string>& notes) {
  const ShardSource from(source, target);
  lay_out_files(plan, from, folder,
                {target.stage == 3 ? target.dp : 1, model_file_name, write_whole_model_file});
  lay_out_files(plan, from, folder,
                {target.stage == 0 ? 0 : target.dp, optim_file_name, write_optim_file});
  for (std::string& note : file_notes(from)) notes.push_back(std::move(note));
  std::vector<ReshardedGroup> groups;
  for (size_t g = 0; g < from.layout.groups().size(); ++g) {
    groups.push_back(summary_of(from.layout, g, target));
  }
  return groups;
}

FilesOfRanks::FilesOfRanks(const Checkpoint& source, const ReshardTarget& target)
    : from_(std::make_unique<const ShardSource>(source, target)) {}

FilesOfRanks::~FilesOfRanks() = default;

RankFiles FilesOfRanks::of(uint32_t rank, std::span<const ModuleEntry> more) const {
  const int stage = from_->target.stage;
  // Below stage 3 all ranks read that of the first.
  RankFiles files{.model = write_model_file(*from_, stage == 3 ? rank : 0, more),
                  .optimizer = {},
                  .weights_are_masters = !from_->offer.module_as_it_is};
  if (stage != 0) files.optimizer = write_optim_file(*from_, rank);
  return files;
}

std::vector<std::string> FilesOfRanks::notes() const {
  return file_notes(*from_);
}

}  // namespace dsckpt
