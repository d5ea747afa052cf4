// Checkpoint: a DeepSpeed checkpoint, opened. Metadata only.
//
// Whatever the layout on disk, a checkpoint is a list of named tensors, each a lazy TensorSource
// over the shards. The layouts are rows of a table in open_checkpoint.cpp, one reader a file
// (LAYOUTS.md).
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

class KeyMap;

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

// Whether values are equal, as far as can be told without reading more than a number.
bool same_value(const ShardValue& a, const ShardValue& b);

// What the optimizer keeps for every element of a parameter, in the parameter's shape.
struct ParamState {
  std::string key;  // the optimizer's own name: "exp_avg"
  TensorSource value;
};

// What the optimizer keeps once for a parameter, or for all parameters of a flat tensor: "step",
// "mu_product".
struct WholeState {
  std::string key;
  ShardValue value;  // a number, None, or a tensor; the first rank's
  // Whether all ranks have the same number or None. Only then it can be said of other ranks.
  bool same_on_all_ranks = true;
};

// Whether the optimizer computes it before it uses it, so that any value will do: transformers'
// Adafactor, `RMS`.
bool is_computed_anew(const WholeState& state);

// One of the optimizer's parameter groups.
struct ParamGroup {
  // Trainable parameters in the order in which the optimizer was given them; ZeRO may have
  // reordered them since (round_robin_gradients).
  std::vector<std::string> params;
  // Its entry of param_groups: the hyper-parameters. Empty if the files have none.
  ShardValue settings;
  // Over how many expert-parallel ranks its parameters, experts, are spread.
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

  // Of trainable parameters, and only if OpenOptions::optimizer_states was set.
  std::vector<ParamState> states = {};  // in the optimizer's order
  ShardValue step = {};  // how often it was stepped: an int or a tensor of one element
  SharedList<WholeState> others = {};  // what else is not one value an element
  // How the tensor-parallel ranks cut it.
  UniversalForm form = {};
  // torch's flag of the master.
  bool requires_grad = false;
  // The weight is not what the files have under its name, but that of Checkpoint::with_weights, or
  // cut or joined by Checkpoint::renamed.
  bool given = false;
  // Of Checkpoint::renamed: its name in the files, or that of the first of those that it is made
  // of.
  std::string saved_name = {};
};

// Owned by an optimizer under this name.
bool is_trained(const Param& param);

// `value`, the weight or a state of `param`, without the rows that only fill the vocabulary up
// (UniversalForm::vocab_rows).
TensorSource without_padding(const Param& param, const TensorSource& value);

struct Layout;
struct RunConfig;
struct WeightsFile;

// Whose run a checkpoint is of.
enum class RunKind : uint8_t {
  native,     // DeepSpeed's, in the files of its ranks
  universal,  // DeepSpeed's, in a Universal Checkpoint: no files of data-parallel ranks
  foreign,    // another framework's: no stage, and no files of DeepSpeed
  made,       // a foreign one as a universal one would be (Checkpoint::for_deepspeed)
  none,       // nobody's: files of weights alone
};

// Whose values it has.
enum class ValuesFrom : uint8_t {
  run,      // the run's own
  start,    // those of files of weights: no step was taken yet, and there are no states
  weights,  // those of files of weights, with the states and counters of the run
            // (Checkpoint::with_weights). Copies of them that the shards have are others.
  foreign,  // those of another framework, with its states and steps (Checkpoint::with_values,
            // for_deepspeed). Copies likewise.
};

// Whether the optimizer's states are told. They are read with OpenOptions::optimizer_states.
enum class StatesTold : uint8_t {
  yes,
  no,        // nothing tells which parameter each belongs to, or there are none: they are left out
  stripped,  // ckpt-pack strip has left them out, and the weights that there are masters of
};

// What is known of the run that wrote the checkpoint. Empty where the files do not say.
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
  // Whether the model is split over ranks, or its files are: pipeline stages, tensor slices,
  // experts.
  bool model_parallel = false;
  // False if universal_checkpoint_info was looked for and is not there.
  bool has_universal_info = true;
  // zero_optimization.round_robin_gradients: the flat vectors of stages 1 and 2 have the parameters
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
  // False if parameters that are trained are weights of 16 bit, and no file has fp32 masters of
  // them: params() has the weights then. The states are not told either, but of files of weights.
  bool has_masters = true;
  // The parameters have other names than in its files (Checkpoint::renamed).
  bool renamed = false;

  bool is_universal() const { return run == RunKind::universal || run == RunKind::made; }
  bool is_foreign() const { return run == RunKind::foreign || run == RunKind::made; }
  // Whether nothing tells the engine of DeepSpeed that is to go on with it.
  bool lacks_engine() const { return run == RunKind::foreign && values != ValuesFrom::foreign; }
  bool from_weights() const { return values == ValuesFrom::start; }
  // Whether the weights are others than those in the run's files.
  bool has_given_weights() const {
    return values == ValuesFrom::weights || values == ValuesFrom::foreign;
  }
  bool has_given_states() const { return values == ValuesFrom::foreign; }
};

struct OpenOptions {
  // The tag's folder name. Default: what the file `latest` says, or else `latest_universal`; the
  // folder itself if it holds shards.
  std::string tag;
  // Further folders with files of the same tag; see FindOptions.
  std::vector<std::filesystem::path> roots = {};
  // Of several models the one of that name; see FindOptions.
  std::string model = {};
  // Of the run that goes on: names for an optimizer of another framework that numbers them.
  KnownOrder order = {};
  // Open the optimizer's states too, not only its masters.
  bool optimizer_states = false;
  // How slices of tensor-parallel ranks go together where the checkpoint does not say it, or not
  // rightly. UsageError for a rule that fits no parameter.
  std::vector<TpRule> tp_rules = {};
  // Slices of one shape that no rule is for count as copies, which whoever reads them compares.
  bool slices_apart = false;
  // Go on without the files of ranks that are missing or cannot be read: parameters that have
  // elements there are not among params(), but incomplete().
  bool allow_missing = false;
};

// A rank's file that is missing or cannot be read.
struct LostFile {
  ShardName name;
  std::string display;
  std::string why;
};

// A parameter of which lost files hold a part.
struct IncompleteParam {
  std::string name;
  ParamKind kind = ParamKind::trainable;
  DType dtype = DType::float32;
  Shape shape;
  std::vector<size_t> lost;   // indices of lost_files(), rising
  std::string alias_of = {};  // Param::alias_of
};

// From the names in files of weights to the engine's: `strip_prefix` goes from the front of those
// that have it and more, then `add_prefix` comes to the front of all.
struct WeightNames {
  std::string strip_prefix = {};
  std::string add_prefix = {};
  std::string model = {};      // Weights::Options
  bool allow_missing = false;  // likewise
  // Names of the hub become the module's even where no checkpoint says that the run has these.
  bool as_module = false;
  // Rules for what is left then, which keep the names of the hub from becoming the module's by
  // themselves. nullptr: none. Borrowed.
  KeyMap* rules = nullptr;
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

// A file with an archive for each of its values, or one that says which these are.
struct DataFile {
  std::filesystem::path path;
  FileId id;
};

// The files of a checkpoint, but those of weights.
struct CheckpointFiles {
  // The model-states files by mp rank and data-parallel rank, and the optimizer-states files
  // likewise (none at stage 0). The second of a universal checkpoint is zero/optimizer_state.pt
  // alone, whose root is what others have under optimizer_state_dict.
  std::vector<CheckpointFile> model = {};
  std::vector<CheckpointFile> optim = {};
  // Of parts of the model that were read: the layers of a pipeline, and at stage 0 experts and what
  // optimizers keep of them.
  std::vector<CheckpointFile> modules = {};
  // Of universal checkpoints: those of single parameters, by path. None of others.
  std::vector<CheckpointFile> params = {};
  // Those below offloaded_tensors that tensors lie in; of states only with
  // OpenOptions::optimizer_states.
  std::vector<SwapFile> swap = {};
  // Of torch.distributed.checkpoint: `.metadata`, and all that tensors may lie in, also those of
  // states that were not asked for. None of others.
  std::vector<DataFile> data = {};
};

// Of entries, by name.
using ParamKinds = KeyedMap<std::string, ParamKind>;

class Checkpoint;

// A checkpoint that an average is of.
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
  // IoError; CorruptError for a damaged file; InconsistentError for missing shards (all of them in
  // one message), for shards that disagree, and for elements that are neither parameter nor
  // padding; UnsupportedError for layouts that have no reader. The files are added to `inputs`,
  // which must outlive the checkpoint and its tensors.
  static Checkpoint open(InputFiles& inputs, const std::filesystem::path& path,
                         const OpenOptions& options = {});
  // The same for a folder that was listed before, of whose shards any may have been left out.
  static Checkpoint open(InputFiles& inputs, const TagFolder& folder, const OpenOptions& options);
  // The same by other readers (layout.h): the first of `layouts` whose probe() takes the folder.
  static Checkpoint open(InputFiles& inputs, const TagFolder& folder, const OpenOptions& options,
                         std::span<const Layout* const> layouts);

  // Files of weights (weights.h) as a checkpoint of which no step was taken yet:
  // CheckpointFacts::from_weights(). With `like`, a checkpoint of the run that is to start from
  // them, open with optimizer states, it is that one with other values: its parameters and their
  // order, ties, groups, files and facts, trained parameters in the type of its masters. A tied
  // parameter may have any of its names in the files; a buffer that they do not have keeps its
  // value, with a note. Without `like` it has what is in the files, of the stored types: floating
  // tensors count as trained, the others as buffers, and there are no groups and no model files.
  // Throws what Weights::open throws; InconsistentError for names that become one, and for names,
  // shapes and types that are not those of `like`; UnsupportedError for a `like` that is split over
  // ranks. `like` has to outlive the result.
  static Checkpoint from_weights(InputFiles& inputs, const std::filesystem::path& path,
                                 const WeightNames& names = {}, const Checkpoint* like = nullptr);

  // `base` with the values of files of weights: parameters, frozen ones too, and the buffers that
  // the files have, of the types that they have in `base`; a vocabulary's padding stays. All else
  // is that of `base`: optimizer states, steps, counters, groups, files. Tied parameters and
  // missing buffers as from_weights(). Throws as from_weights() with `like`; UnsupportedError for a
  // `base` that is split over ranks but is no universal checkpoint, was stripped, or has no
  // masters.
  static Checkpoint with_weights(InputFiles& inputs, std::shared_ptr<const Checkpoint> base,
                                 const std::filesystem::path& path, const WeightNames& names = {});

  // `base` with the names that `rules` give, and with the tensors that they make of several or of a
  // part of one: parameters, groups, states and steps likewise, in the order of the first of each.
  // All else is that of `base`, its files too: renamed_from(). A note says which rules fit nothing.
  // Throws UsageError if none fits any, for what the rules do not fit, and for names that become
  // one; UnsupportedError for parameters that become one and have other states, groups or kinds.
  static Checkpoint renamed(InputFiles& inputs, std::shared_ptr<const Checkpoint> base,
                            KeyMap& rules);

  // `base` with the weights, the states, the steps and, as far as both know them, the
  // hyper-parameters of `values`, a checkpoint of another framework with names instead of an order:
  // the types are those of `base`, the tag is that of the steps. All else is that of `base`: the
  // order, ties, groups, counters, files. Both are open with optimizer states. Throws as
  // with_weights() does; InconsistentError for a parameter whose states are missing or other ones,
  // and for groups that were stepped unlike.
  static Checkpoint with_values(InputFiles& inputs, std::shared_ptr<const Checkpoint> base,
                                std::shared_ptr<const Checkpoint> values);

  // `values`, a checkpoint of another framework open with optimizer states, as a run of DeepSpeed
  // would have it that nothing is known of but its configuration: as a universal checkpoint, whose
  // one model-states file is put together, with meta tensors (meta_tensor.h) in `module`, as many
  // steps as were made and schedules that are there. Groups, their order and their hyper-parameters
  // are those of `values`; masters and states are float32. Throws UnsupportedError for parameters
  // without names, and for trained ones that float32 does not hold.
  // `kinds` says of entries that are not trained whether they are frozen parameters or buffers,
  // which such files do not.
  static Checkpoint for_deepspeed(InputFiles& inputs, std::shared_ptr<const Checkpoint> values,
                                  const ParamKinds& kinds = {});

  // The weighted mean (TensorSource::weighted_mean) of one or more checkpoints of the same inputs,
  // the oldest first: it is the newest with other values. Parameters, frozen ones too, are
  // averaged: masters where there are any. Buffers, and what is no floating type, are the newest's.
  // There are neither states nor groups. Numbers of ranks and stages may differ. Throws
  // InconsistentError for names, ties, shapes and types that do not fit, and where some have
  // masters only; UnsupportedError for other floating types than float32, bfloat16 and float16.
  static Checkpoint average(InputFiles& inputs, std::vector<AveragedCheckpoint> parts);

  // The world of one mp rank as a checkpoint of its own: its slices of the parameters, with all
  // experts, and its files. It borrows this one, of a model that is split over ranks or files
  // (CheckpointFacts::model_parallel). Throws UnsupportedError for one that is not of ZeRO, whose
  // ranks are not read one by one.
  Checkpoint world(uint32_t mp_rank) const;

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const CheckpointFacts& facts() const;
  // What the ds_config in the first files says of the run that saved them (deepspeed/run_config.h);
  // without one, and of weights, what none says.
  const RunConfig& run_config() const;
  // The folder that holds the shards.
  const std::filesystem::path& tag_folder() const;
  // The same with its files, as they were listed. Its note is among the notes.
  const TagFolder& folder() const;
  // In the order of DeepSpeed's zero_to_fp32: buffers, frozen, trainable by group, aliases.
  const std::vector<Param>& params() const;
  // The entry called `name`, or nullptr.
  const Param* find(std::string_view name) const;
  // The optimizer's parameter groups, which have every trainable parameter once. Only with
  // OpenOptions::optimizer_states; empty if the files do not tell, or where the ranks of a model
  // that is split have other groups. Those of world() have experts by their names on their own
  // rank.
  const std::vector<ParamGroup>& groups() const;
  // What the optimizer's wrapper saved beside its tensors, a dict: optimizer_state_dict of the
  // first optimizer-states file, at stage 0 `optimizer`, of a universal checkpoint the whole of
  // zero/optimizer_state.pt. Empty if there is none.
  ShardValue wrapper_state() const;
  const CheckpointFiles& files() const;
  // Files of weights that tensors lie in. None of ZeRO's own checkpoints.
  const std::vector<WeightsFile>& weights_files() const;
  // Patterns of universal_checkpoint_info that fit no parameter. Only with
  // OpenOptions::optimizer_states.
  const std::vector<std::string>& unused_patterns() const;
  // Tensors of the model that cannot be had: stage 3 of old releases loses frozen parameters, and
  // quantised and sparse tensors are not read. There is a note on each.
  const std::vector<std::string>& valueless() const;
  // What it was before renamed(), as its files still are: Param::saved_name. nullptr of others.
  const Checkpoint* renamed_from() const;
  // What it is the average of, the oldest first; empty if it is none.
  const std::vector<AveragedCheckpoint>& averaged() const;
  // Things a user should know that are no errors.
  const std::vector<std::string>& notes() const;
  // Only with OpenOptions::allow_missing. incomplete() is in the order of params(), which does not
  // have them.
  const std::vector<LostFile>& lost_files() const;
  const std::vector<IncompleteParam>& incomplete() const;

  // All files that are archives of torch, but the data files.
  std::vector<CheckpointFile> archives() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
