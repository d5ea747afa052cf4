#include "reshard/files.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <exception>
#include <sstream>
#include <string_view>
#include <utility>

#include "checkpoint/module_entries.h"
#include "checkpoint/shard.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "reshard/model_file.h"
#include "reshard/rank_file.h"
#include "reshard/state_dict_keys.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
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

ShardName expert_optim_name(const ReshardTarget& target, uint32_t ep_rank) {
  return {.kind = ShardName::Kind::expert_optim, .dp_rank = ep_rank, .mp_rank = target.mp_rank};
}

ExpertMesh largest_mesh(const ReshardTarget& target) {
  return {.dp = target.dp, .ep = target.ep, .data_before = target.data_before_experts};
}

// Stage 0 reads it in place of the model-states file's `optimizer`.
Written write_expert_optim(const ShardSource& from, uint32_t rank) {
  ArchiveCopy copy(*from.wrapper.archive);
  const RankFile file{from, copy, rank};
  const Value dict = file.document().dict();
  copy.set(dict, keys::kOptimizer, wrapper_state_dict(file));
  return copy.write(dict);
}

Written write_expert_optim_of(const ShardSource& from, uint32_t ep_rank) {
  return write_expert_optim(from, largest_mesh(from.target).rank_of(ep_rank, 0));
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

// --- notes on the parts of a checkpoint that have no place in the files of a target

// Each rank has its own of these, or rank 0 alone has one.
constexpr std::array kOfRanks{keys::kModule,
                              keys::kSharedParams,
                              keys::kFrozenParamFragments,
                              keys::kParamShapes,
                              keys::kAutoEpLayers,
                              keys::kAutoEpLayersLegacy,
                              keys::kUniversalCheckpointInfo};

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

// True if `differs` is true of any file but the first.
template <typename F>
bool any_other(const std::vector<CheckpointFile>& files, F&& differs) {
  return std::any_of(files.begin() + 1, files.end(), differs);
}

void add_keys_that_differ(const Checkpoint& checkpoint, std::vector<std::string>& names) {
  const auto& files = checkpoint.files().model;
  const TorchArchive& first = *files.front().archive;
  const Value root = first.root();
  for (const auto& [key, value] : root.as_dict().items) {
    if (!key.is(Kind::string)) continue;
    const std::string_view name = key.as_string();
    if (std::find(kOfRanks.begin(), kOfRanks.end(), name) != kOfRanks.end()) continue;
    const std::vector<uint32_t> sums = first.checksums(value);
    const bool differs = any_other(files, [&, &saved = value](const CheckpointFile& file) {
      const auto other = file.archive->root().find(name);
      return !other || !same_plain_data(saved, *other) || file.archive->checksums(*other) != sums;
    });
    if (differs) names.emplace_back(name);
  }
}

void add_buffers_that_differ(const Checkpoint& checkpoint, std::vector<std::string>& names) {
  const auto& files = checkpoint.files().model;
  std::vector<ModuleEntries> modules;
  for (const CheckpointFile& file : files) {
    modules.emplace_back(file.archive->root().find_or_none(keys::kModule));
  }
  for (const Param& param : checkpoint.params()) {
    if (param.kind != ParamKind::buffer) continue;
    const auto sums = [&](const CheckpointFile& file) {
      const auto index = static_cast<size_t>(&file - files.data());
      return file.archive->checksums(
          modules[index].find(param.saved_name.empty() ? param.name : param.saved_name));
    };
    const std::vector<uint32_t> first = sums(files.front());
    if (any_other(files, [&](const CheckpointFile& file) { return sums(file) != first; })) {
      names.push_back(param.name);
    }
  }
}

// Stage 3 has a model-states file a rank, and a program may have put another client_state into
// each.
std::vector<std::string> client_state_notes(const ShardSource& from) {
  const size_t files = from.checkpoint.files().model.size();
  const size_t kept = from.target.stage == 3 ? from.target.dp : 1;
  if (files == 1 || kept == files) return {};
  std::vector<std::string> names;
  add_keys_that_differ(from.checkpoint, names);
  add_buffers_that_differ(from.checkpoint, names);
  if (names.empty()) return {};
  return {(kept < files ? "data that each rank saved for itself is kept of the first " +
                              std::to_string(kept) + " only: "
                        : "of data that each rank saved for itself, the new ranks get rank 0's: ") +
          quoted_list(names)};
}

std::string learning_rates(const ReshardLayout& layout) {
  std::string text;
  for (const ReshardLayout::Group& group : layout.groups()) {
    const Value rate = group.settings.value.find_or_none("lr");
    if (!rate.is(Kind::real) && !rate.is(Kind::integer)) continue;
    std::ostringstream number;
    number << rate.as_real();
    text += (text.empty() ? ", where the learning rate is " : ", ") + number.str();
  }
  return text;
}

std::vector<std::string> start_notes(const ShardSource& from) {
  std::vector<std::string> notes{
      "the new run starts at step 0, with an optimizer that took no step and a schedule that "
      "begins; hyper-parameters are those of " +
      from.checkpoint.files().model.front().path.string() + learning_rates(from.layout)};
  std::vector<std::string> left_out;
  const Value root = model_file_for(from, 0).archive->root();
  for (const auto& [key, value] : root.as_dict().items) {
    if (!key.is(Kind::string) || is_written_at_start(key.as_string()) || value.is_none()) continue;
    left_out.emplace_back(key.as_string());
  }
  if (!left_out.empty()) {
    notes.push_back("data that the program saved is left out: " + quoted_list(left_out));
  }
  return notes;
}

std::vector<std::string> file_notes(const ShardSource& from) {
  return from.offer.starts ? start_notes(from) : client_state_notes(from);
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
  lay_out_files(
      plan, from, folder,
      {target.expert_optimizers ? target.ep : 0, expert_optim_name, write_expert_optim_of});
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
  const bool has_own_optimizer = from_->target.expert_optimizers;
  // Below stage 3 all ranks read that of the first.
  RankFiles files{
      .model = write_model_file(*from_, stage == 3 ? rank : 0, more, !has_own_optimizer),
      .optimizer = {},
      .weights_are_masters = !from_->offer.module_as_it_is};
  if (stage != 0) files.optimizer = write_optim_file(*from_, rank);
  if (has_own_optimizer) files.optimizer = write_expert_optim(*from_, rank);
  return files;
}

std::vector<std::string> FilesOfRanks::notes() const {
  return file_notes(*from_);
}

}  // namespace dsckpt
