// Stage 3: DeepSpeedZeroOptimizer_Stage3 (stage3.py _rigid_state_dict).
#include <array>
#include <string>
#include <utility>

#include "deepspeed/keys.h"
#include "reshard/experts.h"
#include "reshard/loss_scale_values.h"
#include "reshard/state_dict_keys.h"
#include "reshard/torch_optimizer.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

using Run = ReshardLayout::Run;

std::optional<Value> one_partition_count(const RankFile& file) {
  return Document::integer(file.target().dp);
}

// One entry of ds_zero_partition_groups.
Value partition_group(const RankFile& file, const ReshardLayout::Group& group, size_t sub_group) {
  Document& document = file.document();
  const ExpertMesh& mesh = group.mesh;
  std::vector<uint64_t> ranks;
  for (uint32_t i = 0; i < mesh.edp(); ++i) {
    ranks.push_back(mesh.rank_of(mesh.ep_rank(file.rank), i));
  }
  const auto list_of = [&](const std::string& text) {
    return document.list({document.string(text)});
  };
  const std::string name = group.experts ? expert_group_name(mesh.ep) : "replicated";
  const Value entry = document.dict();
  file.copy.set(entry, "sub_group", Document::integer(static_cast<int64_t>(sub_group)));
  file.copy.set(entry, "partition_count", Document::integer(mesh.edp()));
  file.copy.set(entry, "partition_rank", Document::integer(mesh.edp_rank(file.rank)));
  file.copy.set(entry, "partition_ranks", integers(document, ranks));
  file.copy.set(entry, "families", list_of(group.experts ? "autoep_expert" : "replicated"));
  file.copy.set(entry, "group_names", list_of(name));
  return entry;
}

// _zero3_partition_group_metadata: of models with AutoEP's experts.
std::optional<Value> zero_partition_groups(const RankFile& file) {
  if (!file.from.wrapper.value.find(keys::kZeroPartitionGroups)) return std::nullopt;
  const ReshardLayout& layout = file.layout();
  std::vector<Value> all;
  for (const Run& run : layout.runs()) {
    all.push_back(partition_group(file, layout.groups()[run.group], all.size()));
  }
  return file.document().list(std::move(all));
}

std::optional<Value> fp32_flat_groups(const RankFile& file) {
  std::vector<Value> flat;
  for (const Run& run : file.layout().runs()) {
    flat.push_back(masters(file, file.layout().of_run(run, file.rank, master_of)));
  }
  return file.document().list(std::move(flat));
}

constexpr std::array kZero3Keys{
    DictKey{keys::kZeroStage, zero_stage_value},
    DictKey{keys::kLossScaler, loss_scaler_value},
    DictKey{keys::kDynamicLossScale, dynamic_loss_scale_value},
    DictKey{keys::kOverflow, overflow_value},
    DictKey{keys::kPartitionCount, one_partition_count},
    DictKey{keys::kZeroPartitionGroups, zero_partition_groups},
    DictKey{keys::kOptimizerStateDict, torch_optimizer},
    DictKey{keys::kFp32FlatGroups, fp32_flat_groups},
};

}  // namespace

std::span<const DictKey> zero3_keys() {
  return kZero3Keys;
}

}  // namespace dsckpt
