// Files of a model-parallel checkpoint that do not depend on the number of ranks: a pipeline's
// layers and single experts. Resharding copies them byte for byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/experts.h"
#include "checkpoint/shard.h"
#include "plan/copy_plan.h"

namespace dsckpt {

class RankFreeFiles {
 public:
  // Those in the folder of `source`, a checkpoint of several worlds, which has to outlive them; the
  // ones that it did not read are opened. Throws as open_shards().
  RankFreeFiles(InputFiles& inputs, const Checkpoint& source);

  // Throws InconsistentError that lists the files that `world`, of mp rank `mp_rank`, needs and the
  // folder lacks. Layers follow from the names of its parameters and buffers (pipe/module.py
  // ckpt_layer_path). Experts follow from num_experts (engine.py _get_expert_ckpt_name). A tied
  // layer's number is that of its first use, which nothing tells; its file is found by its
  // contents.
  void check(const Checkpoint& world, uint32_t mp_rank) const;

  // Adds each to `plan` as FOLDER/NAME.
  void lay_out(PlanBuilder& plan, const std::string& folder) const;

 private:
  struct File {
    ShardName name;
    std::filesystem::path path;
    const TorchArchive* archive;
  };
  // The layers that have files.
  struct Layers {
    std::set<uint32_t> numbers;
    std::map<uint32_t, std::set<uint32_t>> experts;  // by layer
  };

  void find_missing_layers(const Checkpoint& world, uint32_t tp_rank, MissingFiles& missing) const;
  void find_missing_experts(const Checkpoint& world, uint32_t mp_rank, MissingFiles& missing) const;
  const Layers& layers_of(uint32_t mp_rank) const;

  const InputFiles& inputs_;
  Mesh mesh_;
  std::string folder_;
  std::vector<Shard> opened_;
  std::vector<File> files_;
  std::map<uint32_t, Layers> layers_;  // by mp rank
};

}  // namespace dsckpt
