// Files of a model-parallel checkpoint that do not depend on the number of ranks: a pipeline's
// layers and single experts. Resharding copies them byte for byte, unless their values change or
// other ranks cut them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/experts.h"
#include "checkpoint/regrid.h"
#include "checkpoint/shard.h"
#include "format/torch_archive.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"
#include "reshard/target.h"

namespace dsckpt {

class RankFreeFiles {
 public:
  struct File {
    ShardName name;
    std::filesystem::path path;
    const TorchArchive* archive;
  };

  // Those in the folder of source.run(), a checkpoint of several worlds; the ones that it did not
  // read are opened. The values are those of `source`, which has to outlive this. Throws as
  // open_shards().
  RankFreeFiles(InputFiles& inputs, const Checkpoint& source);

  // Throws InconsistentError that lists the files that `world`, of mp rank `mp_rank`, needs and the
  // folder lacks. Layers follow from the names of its parameters and buffers (pipe/module.py
  // ckpt_layer_path). Experts follow from num_experts (engine.py _get_expert_ckpt_name). A tied
  // layer's number is that of its first use, which nothing tells; its file is found by its
  // contents.
  void check(const Checkpoint& world, uint32_t mp_rank) const;

  // The files get the values of `world` of the new run, and the type of `target`, if the ones in
  // them are others. A tensor of several worlds gets the first one's. Experts of AutoEP get files
  // where only the run's stage 3 had none, and lose them at stage 3.
  void take_values(const Checkpoint& world, const ReshardTarget& target);

  // The tensors of all files of tensor-parallel rank `tp_rank` as they would be written, by their
  // names in the model. Throws as lay_out().
  KeyedMap<std::string, TensorSource> tensors(uint32_t tp_rank) const;

  // Adds each to `plan` as FOLDER/NAME. Throws UnsupportedError for a tensor that gets another
  // value or type and is none of the model's.
  void lay_out(PlanBuilder& plan, const std::string& folder) const;

  // Layers first, then experts.
  const std::vector<File>& files() const { return files_; }

 private:
  // A file of an expert that the run has not.
  struct MadeFile {
    ShardName name;
    std::vector<std::pair<std::string, TensorSource>> tensors;
  };
  // The layers that have files.
  struct Layers {
    std::set<uint32_t> numbers;
    std::map<uint32_t, std::set<uint32_t>> experts;  // by layer
  };

  void find_missing_layers(const Checkpoint& world, uint32_t tp_rank, MissingFiles& missing) const;
  void find_missing_experts(const Checkpoint& world, uint32_t mp_rank, MissingFiles& missing) const;
  const Layers& layers_of(uint32_t mp_rank) const;
  void make_experts(const Checkpoint& world, const ReshardTarget& target);
  // The new value of what `file` has under `key`; nullopt: as it is.
  std::optional<TensorSource> new_value(const File& file, const std::string& key,
                                        const TensorSource& saved) const;
  std::string name_of(const File& file, const std::string& key) const;

  const InputFiles& inputs_;
  const Checkpoint& source_;
  Mesh mesh_;
  std::string folder_;
  std::vector<Shard> opened_;
  std::vector<File> files_;
  std::vector<MadeFile> made_;
  bool has_expert_files_ = true;       // the new run
  std::map<uint32_t, Layers> layers_;  // by mp rank
  // The names of a layer's tensors in the model, by those in its file.
  std::map<uint32_t, KeyedMap<std::string, std::string>> layer_names_;
  // Weights by tensor-parallel rank; none if the files are copied.
  std::map<uint32_t, KeyedMap<std::string, TensorSource>> values_;
  std::optional<DType> param_dtype_;  // ReshardTarget::param_dtype
};

// For other tensor-parallel ranks.

// Adds FOLDER/layer_LL[-model_TT]-model_states.pt of all layers to `plan`, cut from those of the
// checkpoint. If `target` has another type of parameters, they are rounded from the masters. So are
// those of a universal checkpoint, which has no files of layers.
void lay_out_grid_layers(PlanBuilder& plan, const Regrid& grid, const ReshardTarget& target,
                         const std::string& folder);

// The same for FOLDER/layer_L_expert_E_mp_rank_TT_model_states.pt of all experts among `files`, the
// checkpoint's.
void lay_out_grid_experts(PlanBuilder& plan, const Regrid& grid, const RankFreeFiles& files,
                          const ReshardTarget& target, const std::string& folder);

// The tensors that both write for new tensor-parallel rank `tp_rank`, by their names in the model.
KeyedMap<std::string, TensorSource> grid_tensors(const Regrid& grid, const RankFreeFiles& files,
                                                 const ReshardTarget& target, uint32_t tp_rank);

}  // namespace dsckpt
