// A checkpoint of ZeRO on another grid: other numbers of pipeline stages and tensor-parallel ranks.
//
// The parameters of a new rank are cut from the merged ones, by the rules that merged them
// (tp_cut.h), and values from elsewhere alike. They go to stages by their layers (stage_plan.h).
// Everything else continues from the file of a rank that the checkpoint has.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/module_entries.h"
#include "checkpoint/stage_plan.h"

namespace dsckpt {

struct GridOptions {
  // Ranks of the new run. Default: as they are.
  std::optional<uint32_t> pp = {};
  std::optional<uint32_t> tp = {};
  // The layers of the new stages, as stage_starts() takes them. Empty: as the present ones tell.
  std::string stages = {};
  // Rows of the vocabularies of the new run, with their padding. Default: as the arguments that the
  // program saved tell, else as they are.
  std::optional<int64_t> padded_vocab_size = {};
  // Key-value heads of a model that AutoTP cuts, which decide how its ranks share slices that are
  // equal now. Default: these stay equal.
  std::optional<int64_t> kv_heads = {};
  // A checkpoint of the new run, or nullptr. Its files tell the layers of a pipeline where those of
  // a universal checkpoint do not. It has the values of buffers and frozen parameters that this one
  // lacks.
  const Checkpoint* like = nullptr;
  // The names of a running rank, which is the only one that is asked for, or nullptr. They tell the
  // tied modules that it has.
  const KeyedSet<std::string>* held = nullptr;
};

// A layer of a pipeline that has files, one a tensor-parallel rank.
struct RegridLayer {
  uint32_t index = 0;
  // The names of the file's tensors, there and in the model.
  std::vector<std::pair<std::string, std::string>> names;
  // By tensor-parallel rank of the checkpoint; none of a universal one, whose layers have only
  // their parameters.
  std::vector<const TorchArchive*> files;
  bool has_model_suffix = false;  // layer_LL-model_TT-model_states.pt
};

// The layers of a pipeline, by their numbers; none of another model. Borrows `source`.
std::vector<RegridLayer> layers_with_files(const Checkpoint& source);

class Regrid {
 public:
  // `source` is joined, and open with its optimizer states and OpenOptions::cut_anew; it has to
  // outlive this. Throws UsageError for a grid that cannot share it, UnsupportedError for what is
  // not cut anew.
  Regrid(const Checkpoint& source, const GridOptions& options);

  const Mesh& mesh() const { return mesh_; }  // pp and tp of the new run
  uint32_t worlds() const { return mesh_.pp * mesh_.tp; }
  // The world of a new rank. Throws UsageError for parameters that the ranks cannot share.
  Checkpoint world(uint32_t mp_rank) const;
  // The tensor of the whole model as new tensor-parallel rank `tp_rank` has it.
  Param slice(const Param& param, uint32_t tp_rank) const;
  const Param& param(const std::string& name) const;
  // The same of a parameter's copy in the files of the model, whose slices these are by the ranks
  // of the checkpoint. The copy of a mean, of a sum and of a value from elsewhere is that of the
  // parameter, rounded. So is one that some ranks lack.
  TensorSource slice_of_copies(const Param& param, const std::vector<TensorSource>& copies,
                               uint32_t tp_rank) const;

  bool is_pipeline() const { return !layers_.empty(); }
  const std::vector<RegridLayer>& layers() const { return layers_; }
  // True if the slices stay, and so do the files of layers. A universal checkpoint has neither.
  bool keeps_slices() const { return mesh_.tp == old_.tp && !padded_ && !is_universal(); }
  bool is_universal() const { return run_.facts().run == RunKind::universal; }
  // The rank of the checkpoint that a new one continues from.
  uint32_t base_tp(uint32_t tp_rank) const { return tp_rank < old_.tp ? tp_rank : 0; }

  const std::vector<std::string>& notes() const { return notes_; }
  // The first layer of each stage, and a line for each; empty without a pipeline.
  const StageStarts& starts() const { return starts_; }
  std::vector<std::string> lines() const;

 private:
  void check_grid(const GridOptions& options) const;
  void check_experts();
  void check_heads();
  void note_random_states();
  void find_layers(const GridOptions& options);
  std::vector<RegridLayer> named_layers(const GridOptions& options) const;
  uint32_t number_of_tied(const std::string& front, const std::vector<RegridLayer>& layers,
                          const std::vector<RegridLayer>& of_like,
                          const GridOptions& options) const;
  void take_lost_entries(const GridOptions& options);
  const Param* find(const std::string& name) const;
  std::vector<const Param*> all_params() const;
  void choose_vocabulary(const GridOptions& options);
  void find_modules();
  void choose_stages(const GridOptions& options);
  std::vector<StageLayer> stage_layers() const;
  void place_tied();
  std::shared_ptr<const TpCut> told_cut(const Param& param) const;
  std::shared_ptr<const TpCut> cut_for(const Param& param) const;
  TensorSource slice_of(const Param& param, const TensorSource& value, const TpCut& cut,
                        uint32_t tp_rank) const;
  bool is_vocabulary(const Param& param) const;
  bool is_in(const std::string& name, uint32_t stage) const;
  bool is_in_earlier(const std::string& name, uint32_t stage) const;
  bool is_on_first_rank(const std::string& name, uint32_t ep_size) const;
  std::vector<ParamGroup> groups_of(uint32_t stage) const;
  uint32_t base_stage(uint32_t stage) const;
  // The world of a rank of the checkpoint.
  const Checkpoint& base(uint32_t mp_rank) const;
  const std::vector<std::string>& names_in(uint32_t stage) const;
  CheckpointDraft draft_of_base(uint32_t mp_rank) const;
  const TorchArchive& model_of(uint32_t mp_rank) const;
  const Param& present_slice(const std::string& name, uint32_t tp_rank) const;
  std::vector<TensorSource> copies_in_modules(const Param& param) const;

  const Checkpoint& source_;
  const Checkpoint& run_;  // whose files it has
  Mesh old_;
  Mesh mesh_;
  pickle::Value args_;  // that the program saved
  std::optional<int64_t> padded_;
  std::optional<int64_t> old_padded_;
  std::optional<int64_t> kv_heads_;
  // Parts of a pipeline that a universal checkpoint lacks, from GridOptions::like.
  std::vector<Param> lost_;
  KeyedMap<std::string, size_t> lost_index_;  // by name
  std::vector<RegridLayer> layers_;           // by index
  // How many experts a layer has, by the part of their names before the number.
  KeyedMap<std::string, int64_t> experts_;
  StageStarts starts_;
  // The stages of each tied module by its front, "tied_modules.embed.": now, and of the new run.
  KeyedMap<std::string, std::vector<uint32_t>> tied_;
  KeyedMap<std::string, std::vector<uint32_t>> new_tied_;
  KeyedMap<std::string, uint32_t> tied_layers_;  // the first places
  std::optional<KeyedSet<std::string>> held_;    // GridOptions::held
  mutable std::map<uint32_t, std::unique_ptr<Checkpoint>> bases_;
  mutable std::map<uint32_t, std::vector<std::string>> names_;  // names_in() of stages
  // The model-states files of the checkpoint's ranks, and `module` in them, by tensor-parallel
  // rank. None if trained parameters are not copied there, or have other values now.
  std::vector<const TorchArchive*> models_;
  std::vector<ModuleEntries> modules_;
  std::vector<std::string> notes_;
};

}  // namespace dsckpt
