// Checkpoint: a DeepSpeed checkpoint, opened. Metadata only.
//
// A checkpoint of any layout is a list of named tensors, each a lazy TensorSource over the shards.
// The layouts are rows of a table in open_checkpoint.cpp, one reader a file (LAYOUTS.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/order_match.h"
#include "checkpoint/shared_list.h"
#include "checkpoint/tp_cut.h"
#include "checkpoint/tp_rule.h"
#include "deepspeed/engine_wrapper.h"
#include "deepspeed/shard_name.h"
#include "deepspeed/universal_form.h"
#include "dsckpt/tensor.h"
#include "format/torch_archive.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// How many ranks each kind of parallelism has.
struct Mesh {
  uint32_t pp = 1;
  uint32_t tp = 1;
  uint32_t dp = 1;
  uint32_t ep = 1;
};

// A value in the pickle of one of the checkpoint's files. Borrowed from the Checkpoint; empty if
// `archive` is null.
struct ShardValue {
  const TorchArchive* archive = nullptr;
  pickle::Value value;
};

// True if the values are equal, as far as this can be told without reading more than a number.
bool same_value(const ShardValue& a, const ShardValue& b);

// A state that the optimizer keeps for every element of a parameter, in the parameter's shape.
struct ParamState {
  std::string key;  // the optimizer's own name: "exp_avg"
  TensorSource value;
};

// A state that the optimizer keeps once for a parameter, or once for all parameters of a flat
// tensor: "step", "mu_product".
struct WholeState {
  std::string key;
  ShardValue value;  // a number, None, or a tensor; the first rank's
  // True if all ranks have the same number or None. Only then does it hold for other ranks.
  bool same_on_all_ranks = true;
};

// True if the optimizer computes the state before it uses it, so that any value will do: `RMS` of
// transformers' Adafactor.
bool is_computed_anew(const WholeState& state);

// One of the optimizer's parameter groups.
struct ParamGroup {
  // Trainable parameters in the order in which the optimizer was given them; ZeRO may have
  // reordered them since (round_robin_gradients).
  std::vector<std::string> params;
  // Its entry of param_groups: the hyper-parameters. Empty if the files have none.
  ShardValue settings;
  // The number of expert-parallel ranks that its parameters, experts, are spread over.
  uint32_t ep_size = 1;
};

// One entry of the model's state_dict.
struct Param {
  std::string name;
  ParamKind kind = ParamKind::trainable;
  // The value the live engine held: the fp32 master of a trainable parameter; frozen parameters and
  // buffers as stored. A vocabulary is as the engine had it, filled up: see without_padding().
  TensorSource weight;
  // For a tied parameter, the name of the entry it is the same tensor as; else "".
  std::string alias_of = {};

  // For trainable parameters only, and only if OpenOptions::optimizer_states was set.
  std::vector<ParamState> states = {};  // in the optimizer's order
  ShardValue step = {};  // how often it was stepped: an int or a tensor of one element
  SharedList<WholeState> others = {};  // other states that are not one value an element
  // How the tensor-parallel ranks cut it.
  UniversalForm form = {};
  // The same for other numbers of ranks; nullptr if nothing says it. Without tensor parallelism it
  // is there only with OpenOptions::cut_anew.
  std::shared_ptr<const TpCut> cut = {};
  // torch's flag of the master.
  bool requires_grad = false;
  // True if the weight is not the one that the files have under its name. Then it is from elsewhere
  // (other_values.h), or renamed() or changed_set() has changed it.
  bool given = false;
  // For renamed() and changed_set(): its name in the files; "" if it is new. If it is made of
  // several, the name of the first.
  std::string saved_name = {};
  // True if the optimizer has not had it so far (changed_set()): there are no states. An
  // optimizer's tensor of such parameters alone has none either; beside others they are zero.
  bool fresh = false;
  // For Regrid::world: the copy of a trained parameter in `module` of the files, cut like the
  // weight. Empty if there is none.
  std::optional<TensorSource> in_module = {};
};

// True if an optimizer owns it under this name.
bool is_trained(const Param& param);

// The number of steps that the optimizer has made with it; nothing if the files have no such
// number.
std::optional<double> step_of(const Param& param);

// `value` without the rows that only pad the vocabulary (UniversalForm::vocab_rows). `value` is the
// weight or a state of `param`.
TensorSource without_padding(const Param& param, const TensorSource& value);

struct CheckpointDraft;
struct Layout;
struct RunConfig;
struct WeightsFile;

// The kind of run that a checkpoint belongs to.
enum class RunKind : uint8_t {
  native,     // DeepSpeed's, in the files of its ranks
  universal,  // DeepSpeed's, in a Universal Checkpoint: no files of data-parallel ranks
  foreign,    // another framework's: no stage, and no files of DeepSpeed
  made,       // a foreign one as a universal one would be (for_deepspeed())
  none,       // nobody's: files of weights alone
};

// The origin of a checkpoint's values (other_values.h).
enum class ValuesFrom : uint8_t {
  run,      // the run's own
  start,    // those of files of weights: no step was taken yet, and there are no states
  weights,  // those of files of weights, with the states and counters of the run. Copies of them
            // that the shards have are others.
  foreign,  // those of another framework, with its states and steps. Copies likewise.
};

// Tells if the optimizer's states are known. They are read with OpenOptions::optimizer_states.
enum class StatesTold : uint8_t {
  yes,
  no,        // nothing tells which parameter each belongs to, or there are none: they are left out
  stripped,  // ckpt-pack strip has left them out, and the weights that there are masters of
};

// Where a world of another grid is (regrid.h).
struct GridPlace {
  Mesh mesh;  // pp and tp of the new run
  uint32_t mp_rank = 0;
  // The rows of its vocabularies with their padding, if they have others than in the files.
  std::optional<int64_t> padded_vocab_size = {};
};

// Facts about the run that wrote the checkpoint. Empty where the files do not say.
struct CheckpointFacts {
  std::string layout;  // row of the table: "zero-2"
  RunKind run = RunKind::native;
  ValuesFrom values = ValuesFrom::run;
  StatesTold states = StatesTold::yes;
  int zero_stage = 0;  // 0 to 3
  // plain where nothing wraps the optimizer, or there is none.
  EngineWrapper optimizer_wrapper = EngineWrapper::plain;
  Mesh mesh;
  std::string ds_version;
  std::optional<int64_t> global_steps;
  std::string tag;
  // False if frozen parameters may be listed as trainable: an fp32 checkpoint of stage 0 does not
  // always tell.
  bool frozen_known = true;
  // True if the model or its files are split over ranks: pipeline stages, tensor slices, experts.
  bool model_parallel = false;
  // False if universal_checkpoint_info was looked for and is not there.
  bool has_universal_info = true;
  // zero_optimization.round_robin_gradients: the flat vectors of stages 1 and 2 hold the parameters
  // of each group in another order.
  bool round_robin = false;
  // zero_optimization.parameter_alignment: the flat vectors of stages 1 and 2 have padding between
  // parameters, whether or not the configuration says so.
  bool parameter_alignment = false;
  // zero_optimization.elastic_checkpoint: the files have no hyper-parameters.
  bool elastic = false;
  // zero_optimization.offload_optimizer.device was nvme: some flat tensors are in swap files, or
  // could have been. DeepSpeed does not read the optimizer-states files of such a run.
  bool nvme_optimizer = false;
  // False if trained parameters are 16-bit weights and no file has fp32 masters of them. Then
  // params() has the weights. The states are then unknown too, except for files of weights.
  bool has_masters = true;
  // The parameters have different names than in its files, or are others (renamed(),
  // changed_set()).
  bool changed = false;
  // The files are weights with the hub's names, and the parameters are those of the module.
  bool from_hub = false;
  // The parameters are those of a rank that its files are not of (Regrid::world).
  std::optional<GridPlace> regridded = {};

  bool is_universal() const { return run == RunKind::universal || run == RunKind::made; }
  bool is_foreign() const { return run == RunKind::foreign || run == RunKind::made; }
  // True if nothing describes the DeepSpeed engine that will continue from it.
  bool lacks_engine() const { return run == RunKind::foreign && values != ValuesFrom::foreign; }
  bool from_weights() const { return values == ValuesFrom::start; }
  // True if the weights are not those in the run's files.
  bool has_given_weights() const {
    return values == ValuesFrom::weights || values == ValuesFrom::foreign;
  }
  bool has_given_states() const { return values == ValuesFrom::foreign; }
};

struct OpenOptions {
  // The tag's folder name. Default: the tag that the file `latest` names, else `latest_universal`;
  // or the folder itself if it holds shards.
  std::string tag;
  // Further folders with files of the same tag; see FindOptions.
  std::vector<std::filesystem::path> roots = {};
  // The name of the model to open, if there are several; see FindOptions.
  std::string model = {};
  // Names from the run that continues, for an optimizer of another framework that numbers its
  // parameters.
  KnownOrder order = {};
  // Open the optimizer's states too, not only its masters.
  bool optimizer_states = false;
  // Rules that join the slices of tensor-parallel ranks where the checkpoint has no rule or a wrong
  // one. UsageError for a rule that fits no parameter.
  std::vector<TpRule> tp_rules = {};
  // Slices of one shape without a rule count as copies. The reader of the values compares them.
  bool slices_apart = false;
  // The rules are also for another number of tensor-parallel ranks: Param::cut of a lone one.
  bool cut_anew = false;
  // Continue without the files of ranks that are missing or cannot be read. Parameters with
  // elements there are in incomplete(), not in params().
  bool allow_missing = false;
  std::shared_ptr<Folders> folders = {};  // FindOptions::folders
};

// For find_tag_folder().
FindOptions find_options(const OpenOptions& options);

// A rank's file that is missing or cannot be read.
struct LostFile {
  ShardName name;
  std::string display;
  std::string why;
};

// A parameter with a part in lost files.
struct IncompleteParam {
  std::string name;
  ParamKind kind = ParamKind::trainable;
  DType dtype = DType::float32;
  Shape shape;
  std::vector<size_t> lost;   // indices of lost_files(), rising
  std::string alias_of = {};  // Param::alias_of
};

// A file of the checkpoint, opened. Borrowed from the Checkpoint.
struct CheckpointFile {
  std::filesystem::path path;
  const TorchArchive* archive;
};

// A file of an optimizer that was offloaded to NVMe: the raw elements of one flat tensor, then
// padding.
struct SwapFile {
  std::filesystem::path path;
  FileId id;
  ShardName owner;  // the optimizer-states file that refers to it
};

// A file with an archive for each of its values, or a file that lists such values.
struct DataFile {
  std::filesystem::path path;
  FileId id;
};

// The files of a checkpoint, without files of weights.
struct CheckpointFiles {
  // The model-states files by mp rank and data-parallel rank, and the optimizer-states files
  // likewise (none at stage 0). In a universal checkpoint, `optim` is zero/optimizer_state.pt
  // alone. Its root is what other layouts have under optimizer_state_dict.
  std::vector<CheckpointFile> model = {};
  std::vector<CheckpointFile> optim = {};
  // Files of parts of the model that were read: the layers of a pipeline, and at stage 0 experts
  // and their optimizer states.
  std::vector<CheckpointFile> modules = {};
  // For universal checkpoints: the files of single parameters, by path. Others have none.
  std::vector<CheckpointFile> params = {};
  // The files below offloaded_tensors that hold tensors. Files of states are listed
  // only with OpenOptions::optimizer_states.
  std::vector<SwapFile> swap = {};
  // For torch.distributed.checkpoint: `.metadata` and all files that may hold tensors, also states
  // that were not asked for. Others have none.
  std::vector<DataFile> data = {};
};

class Checkpoint;

// One of the checkpoints that are averaged.
struct AveragedCheckpoint {
  std::shared_ptr<const Checkpoint> checkpoint;
  double weight = 1;
};

// Immutable; any thread.
class Checkpoint {
 public:
  // Opens `path`: a folder with `latest`, or else `latest_universal`, or with the folder
  // `options.tag`, or a tag's own folder.
  // Reads the metadata of every shard and accounts for every element of every flat group. Throws
  // IoError, and CorruptError for a damaged file. Throws InconsistentError for missing shards (all
  // of them in one message) and for shards that disagree. Throws it also for elements that are
  // neither parameter nor padding. Throws UnsupportedError for layouts that have no reader. The
  // files are added to `inputs`, which must outlive the checkpoint and its tensors.
  static Checkpoint open(InputFiles& inputs, const std::filesystem::path& path,
                         const OpenOptions& options = {});
  // The same for a path that was found before. Throws InconsistentError for weights alone.
  static Checkpoint open_found(InputFiles& inputs, const TagFolder& folder,
                               const OpenOptions& options);
  // The same for a folder that was listed before, without its older states and without hints. Any
  // of its shards may have been left out.
  static Checkpoint open(InputFiles& inputs, const TagFolder& folder, const OpenOptions& options);
  // The same by other readers (layout.h): the first of `layouts` whose probe() takes the folder.
  static Checkpoint open(InputFiles& inputs, const TagFolder& folder, const OpenOptions& options,
                         std::span<const Layout* const> layouts);

  // The result of a reader (layout.h).
  explicit Checkpoint(CheckpointDraft draft);
  // A draft with all of this checkpoint but its parameters, for one with others.
  CheckpointDraft draft() const;

  // The world of one mp rank as a checkpoint of its own. It has this rank's slices of the
  // parameters, with all experts, and its files. It borrows this checkpoint, whose model must be
  // split over ranks or files (CheckpointFacts::model_parallel). Values from other files are cut as
  // give_values() does it (other_values.h), and errors are its own. The slices of a universal
  // checkpoint are cut from its whole parameters. Throws UnsupportedError if it has experts, and
  // for a parameter that no simple rule cuts.
  Checkpoint world(uint32_t mp_rank) const;
  // A draft of world() with all but its parameters and groups. Throws alike, but for parameters.
  CheckpointDraft draft_of_world(uint32_t mp_rank) const;

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const CheckpointFacts& facts() const;
  // The settings of the run that saved the files, from the ds_config in the first of them
  // (deepspeed/run_config.h). Without one, and for weights, the settings of an absent ds_config.
  const RunConfig& run_config() const;
  // The folder that holds the shards.
  const std::filesystem::path& tag_folder() const;
  // The same folder with its files, as they were listed. Its note is among the notes.
  const TagFolder& folder() const;
  // In the order of DeepSpeed's zero_to_fp32: buffers, frozen, trainable by group, aliases.
  const std::vector<Param>& params() const;
  // The entry called `name`, or nullptr.
  const Param* find(std::string_view name) const;
  // The optimizer's parameter groups, which list every trainable parameter once. Only with
  // OpenOptions::optimizer_states. Empty if the files do not tell, or if the ranks of a split model
  // have different groups. The groups of world() list experts by their names on their own rank.
  const std::vector<ParamGroup>& groups() const;
  // A dict that the optimizer's wrapper saved beside its tensors. It is optimizer_state_dict of the
  // first optimizer-states file, and `optimizer` at stage 0. For a universal checkpoint it is the
  // whole of zero/optimizer_state.pt. Empty if there is none.
  ShardValue wrapper_state() const;
  const CheckpointFiles& files() const;
  // Files of weights that hold tensors. ZeRO's own checkpoints have none.
  const std::vector<WeightsFile>& weights_files() const;
  // Patterns of universal_checkpoint_info that fit no parameter. Only with
  // OpenOptions::optimizer_states.
  const std::vector<std::string>& unused_patterns() const;
  // Tensors of the model without values: stage 3 of old releases loses frozen parameters, and
  // quantised and sparse tensors are not read. There is a note on each.
  const std::vector<std::string>& valueless() const;
  // The checkpoint whose files this one has, with its own values: this one, unless the values are
  // from elsewhere (CheckpointFacts::values).
  const Checkpoint& run() const;
  // The checkpoint before renamed() or changed_set() (renamed.h, changed_set.h), with the names of
  // the files: Param::saved_name. nullptr for others.
  const Checkpoint* changed_from() const;
  // The names in the order of the new model's state_dict, of a changed_set(). Empty: the order is
  // that of the files.
  const std::vector<std::string>& module_order() const;
  // The checkpoints that it averages, the oldest first; empty if it is not an average.
  const std::vector<AveragedCheckpoint>& averaged() const;
  // Notes for the user; they are not errors.
  const std::vector<std::string>& notes() const;
  // Those of the notes that are a defect, unless something that the files do not tell explains it.
  const std::vector<Error>& doubts() const;
  // Only with OpenOptions::allow_missing. incomplete() is in the order of params(), which does not
  // have them.
  const std::vector<LostFile>& lost_files() const;
  const std::vector<IncompleteParam>& incomplete() const;

  // All files that are archives of torch, without the data files.
  std::vector<CheckpointFile> archives() const;

 private:
  // `world`, of the checkpoint whose files this one has, with this one's values.
  Checkpoint given_world(Checkpoint world, uint32_t mp_rank) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
