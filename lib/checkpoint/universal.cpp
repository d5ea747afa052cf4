// Universal checkpoints: every parameter whole in a folder of its own, a file for each state.
// Layout: LAYOUTS.md; source: deepspeed/checkpoint/ds_to_universal.py (merge_tp_slices,
// merge_zero3_slices, _save_optimizer_state), universal_checkpoint.py load_hp_checkpoint_state,
// stage3.py load_hp_checkpoint_state_from_checkpoint_dir_stage3.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/assemble.h"
#include "checkpoint/experts.h"
#include "checkpoint/flat_states.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"
#include "checkpoint/state_dicts.h"
#include "checkpoint/universal_split.h"
#include "checkpoint/universal_worlds.h"
#include "checkpoint/zero_world.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using pickle::Value;

constexpr std::string_view kFp32 = "fp32";
constexpr std::string_view kStep = "step";

// All *.pt files below `folder`, by path.
std::vector<ShardFile> list_files(const fs::path& folder) {
  std::vector<ShardFile> files;
  std::error_code failed;
  fs::recursive_directory_iterator it(folder, failed);
  for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    const fs::path path = content_path(it->path());
    if (path.extension() != ".pt" || it->is_directory(ignored)) continue;
    files.push_back({{.kind = ShardName::Kind::universal}, path});
  }
  if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
  std::sort(files.begin(), files.end(),
            [](const ShardFile& a, const ShardFile& b) { return a.path < b.path; });
  const auto twice =
      std::adjacent_find(files.begin(), files.end(),
                         [](const ShardFile& a, const ShardFile& b) { return a.path == b.path; });
  if (twice != files.end()) refuse_two_forms(twice->path);
  return files;
}

class UniversalReader {
 public:
  UniversalReader(CheckpointDraft& draft, bool is_split)
      : draft_(draft), is_split_(is_split), models_(draft.model_shards) {}

  void read() {
    open_files();
    const Fields wrapper = this->wrapper();
    find_stage(wrapper);
    if (stage_ < 3) {
      for (ModelStates& each : models_.distinct()) {
        each.drop_false_aliases();
        each.find_tied_views();
        add_router_aliases(each, draft_.inputs);
      }
    } else {
      check_ranks_agree();
    }
    draft_.wrapper_state = {&wrapper.shard().archive, wrapper.shard().archive.root()};
    if (is_split_) return read_split(wrapper);
    World world{&model(), {}, {}};
    const std::vector<NamedShapes> groups = stage_ == 0 ? trained_at_stage_0(world) : trained();
    check_folders(groups, world.frozen);
    for (size_t g = 0; g < groups.size(); ++g) add_group(groups[g], g, wrapper, world);
    if (stage_ == 3) {
      world.frozen = cut_frozen(models_.ranks());
    } else if (stage_ != 0) {
      world.frozen = whole_frozen(model());
    }
    std::vector<ParamGroup> optimizer_groups = find_groups(wrapper, model());
    if (draft_.options.optimizer_states) world.groups = std::move(optimizer_groups);
    std::vector<World> worlds;
    worlds.push_back(std::move(world));
    assemble(draft_, worlds);
    if (stage_ == 3) find_valueless(worlds.front(), draft_);
    model().note_not_tensors(draft_);
  }

 private:
  using Files = UniversalFiles;

  // For a model that was split over ranks.
  void read_split(const Fields& wrapper) {
    find_degrees();
    const SplitModel split(draft_, models_, folders_);
    split_ = &split;
    const std::vector<NamedShapes> groups = split.trained();
    check_folders(groups, {});
    World world{&model(), {}, {}};
    for (size_t g = 0; g < groups.size(); ++g) add_group(groups[g], g, wrapper, world);
    split.add_params(draft_, std::move(world.owned), forms_, [&](const Shard& shard) {
      return in_context({.file = shard.display},
                        [&] { return shard.archive.tensor(tensor_in(shard)); });
    });
    split_ = nullptr;
    if (!draft_.options.optimizer_states) return;
    find_worlds(draft_, models_,
                [&](const ModelStates& rank) { return find_groups(wrapper, rank); });
  }

  // Older releases do not save them, and a pipeline's files of layers would tell them, but are
  // gone. The tensor-parallel ranks of a stage have the same parameters.
  void find_degrees() {
    const auto& ranks = models_.distinct();
    if (stage_ == 3 || model().fields.has(keys::kCheckpointParallelDimensions) ||
        model().fields.has(keys::kModule)) {
      return;
    }
    const auto other = std::find_if(ranks.begin(), ranks.end(), [&](const ModelStates& rank) {
      return rank.trainable_names != ranks.front().trainable_names;
    });
    const auto tp = static_cast<uint32_t>(other - ranks.begin());
    if (ranks.size() % tp != 0) return;
    draft_.facts.mesh.tp = tp;
    draft_.facts.mesh.pp = static_cast<uint32_t>(ranks.size()) / tp;
  }

  ModelStates& model() { return models_.distinct().front(); }

  void open_files() {
    const fs::path zero = draft_.folder.path / "zero";
    const fs::path root = draft_.folder.path.parent_path();
    std::vector<ShardFile> of_params;
    std::vector<ShardFile> of_all;
    for (ShardFile& file : list_files(zero)) {
      if (file.path.parent_path() != zero) {
        of_params.push_back(std::move(file));
      } else if (file.path.filename() == "optimizer_state.pt") {
        of_all.push_back(std::move(file));
      }
    }
    draft_.optim_shards = open_shards(draft_.inputs, of_all, root);
    draft_.param_shards = open_shards(draft_.inputs, of_params, root);
    for (const Shard& shard : draft_.param_shards) {
      const std::string name = shard.path.parent_path().lexically_relative(zero).generic_string();
      folders_[name].emplace(shard.path.stem().string(), &shard);
    }
    if (draft_.optim_shards.empty()) {
      throw InconsistentError({.file = draft_.folder.path.string()},
                              "zero/optimizer_state.pt is missing");
    }
  }

  Fields wrapper() const {
    const Shard& shard = draft_.optim_shards.front();
    return {shard, shard.archive.root()};
  }

  void find_stage(const Fields& wrapper) {
    const bool of_ranks = model().shard().name.kind == ShardName::Kind::zero_model_states;
    if (of_ranks || model().fields.has(keys::kParamShapes)) stage_ = zero_stage_of(wrapper);
    if (of_ranks != (stage_ == 3)) {
      throw InconsistentError(wrapper.where(keys::kZeroStage),
                              std::string(of_ranks ? "is not 3, but there are" : "is 3, without") +
                                  " model files of single ranks");
    }
    draft_.facts.run = RunKind::universal;
    draft_.facts.zero_stage = stage_;
    // BF16_Optimizer writes no stage.
    if (stage_ != 0) {
      draft_.facts.optimizer_wrapper = stage_ == 3 ? EngineWrapper::zero3
                                       : wrapper.has(keys::kZeroStage)
                                           ? EngineWrapper::zero12
                                           : EngineWrapper::bf16_optimizer;
    }
  }

  void check_ranks_agree() {
    for (const ModelStates& rank : models_.distinct()) {
      // Slices of other ranks have other shapes.
      const bool same_model = rank.shard().name.mp_rank == model().shard().name.mp_rank;
      if (same_model && rank.param_shapes != model().param_shapes) {
        throw_other_save(rank, model(), keys::kParamShapes);
      }
      if (same_model) check_same_save(rank, model());
      if (rank.fields.integer_if_any(keys::kDpWorldSize) !=
          model().fields.integer_if_any(keys::kDpWorldSize)) {
        throw_other_save(rank, model(), keys::kDpWorldSize);
      }
    }
  }

  std::vector<NamedShapes> trained() {
    const Where where = model().fields.where(keys::kParamShapes);
    for (const NamedShapes& group : model().param_shapes) {
      for (const auto& [name, shape] : group) {
        in_context({.file = where.file, .member = where.member, .tensor = name},
                   [&sizes = shape] { numel(sizes); });
      }
    }
    return model().param_shapes;
  }

  // No file says what stage 0 trained: what has a state beside its fp32 value. The rest, if it is
  // not everything, goes to `world.frozen`.
  std::vector<NamedShapes> trained_at_stage_0(World& world) {
    const auto is_stepped = [&](const std::string& name) {
      const auto found = folders_.find(name);
      return found != folders_.end() && found->second.size() > 1;
    };
    const auto rest = model().rest_of_module();
    draft_.facts.frozen_known = std::any_of(
        rest.begin(), rest.end(), [&](const auto& entry) { return is_stepped(entry.first); });
    NamedShapes trained;
    for (const auto& [name, value] : rest) {
      TensorSource stored =
          in_context({.file = model().shard().display, .tensor = name},
                     [&, &tensor = value] { return model().shard().archive.tensor(tensor); });
      // A value that a float32 copy cannot hold is not a master either.
      const bool has_copy = stored.dtype() == DType::float32 || stored.dtype() == DType::bfloat16 ||
                            stored.dtype() == DType::float16;
      if (draft_.facts.frozen_known ? is_stepped(name) : has_copy) {
        trained.emplace_back(name, stored.shape());
      } else {
        world.frozen.add(name, std::move(stored));
      }
    }
    return {std::move(trained)};
  }

  // There must be the master of everything that was trained, at stage 0 of all that may have been,
  // and nothing of other models.
  void check_folders(const std::vector<NamedShapes>& groups, const FrozenParams& untrained) {
    std::vector<std::string> missing;
    std::string first;
    const auto check = [&](const std::string& name) {
      const auto found = folders_.find(name);
      if (found != folders_.end() && found->second.contains(std::string(kFp32))) return;
      if (missing.empty()) first = name;
      missing.push_back("zero/" + name + "/fp32.pt");
    };
    for (const NamedShapes& group : groups) {
      for (const auto& entry : group) check(entry.first);
    }
    for (const auto& entry : untrained) check(entry.first);
    if (!missing.empty()) {
      throw InconsistentError({.file = draft_.folder.path.string(), .tensor = first},
                              counted(missing.size(), "file") +
                                  (missing.size() == 1 ? " is" : " are") +
                                  " missing:" + listed(missing));
    }
    KeyedSet<std::string> known;
    for (const NamedShapes& group : groups) {
      for (const auto& entry : group) known.insert(entry.first);
    }
    bool has_module = true;
    for (const ModelStates& each : models_.distinct()) {
      known.merge(each.aliases());
      for (const auto& entry : each.module) known.insert(entry.first);
      for (const auto& entry : each.frozen_param_shapes) known.insert(entry.first);
      known.insert(each.buffer_names.begin(), each.buffer_names.end());
      has_module = has_module && !each.module.empty();
    }
    std::vector<std::string> unknown;
    for (const auto& [name, files] : folders_) {
      if (known.contains(name) || (!has_module && files.size() == 1)) continue;
      unknown.push_back("zero/" + name);
    }
    if (unknown.empty()) return;
    throw InconsistentError(
        {.file = draft_.folder.path.string(), .tensor = unknown.front().substr(5)},
        model().shard().display + " has no such parameter:" + listed(unknown));
  }

  void add_group(const NamedShapes& group, size_t g, const Fields& wrapper, World& world) {
    FlatStates of_group;
    if (stage_ == 3 && draft_.options.optimizer_states) of_group = wrapper_states(wrapper, g);
    const Files* reference = nullptr;
    for (const auto& [name, shape] : group) {
      const Files& files = folders_.at(name);
      // At stage 0 the groups are not known; each may have an optimizer of its own.
      if (stage_ != 0) {
        if (reference == nullptr) reference = &files;
        check_same_states(name, files, group.front().first, *reference);
      }
      world.owned.push_back(read_param(name, shape, files));
      OwnedParam& param = world.owned.back();
      if (param.step.archive == nullptr) param.step = of_group.step;
      param.others = of_group.others;
    }
  }

  // The values that stage 3 keeps of sub-group `g` beside the parameters; the loader reads the
  // first one's only.
  FlatStates wrapper_states(const Fields& wrapper, size_t g) {
    if (!optimizer_) optimizer_.emplace(wrapper, keys::kOptimizerStateDict);
    FlatStates states = flat_states({&*optimizer_}, g);
    if (states.step.archive == nullptr && g > 0) states = flat_states({&*optimizer_}, 0);
    return states;
  }

  // The optimizer steps all parameters of a group or none.
  void check_same_states(const std::string& name, const Files& files, const std::string& first,
                         const Files& reference) const {
    const auto has_all_of = [&](const Files& some, const std::string& some_name,
                                const Files& others, const std::string& other_name) {
      for (const auto& entry : others) {
        if (some.contains(entry.first)) continue;
        throw InconsistentError(
            {.file = some.at(std::string(kFp32))->path.parent_path().string(), .tensor = some_name},
            "has no " + entry.first + ".pt, but '" + other_name + "' of the same group has");
      }
    };
    has_all_of(files, name, reference, first);
    has_all_of(reference, first, files, name);
  }

  OwnedParam read_param(const std::string& name, const Shape& shape, const Files& files) {
    const Shard& master = *files.at(std::string(kFp32));
    OwnedParam param{.name = name,
                     .shape = shape,
                     .master = value_of(master, name, shape, true),
                     .requires_grad = false,
                     .states = {},
                     .step = {},
                     .others = {}};
    in_context({.file = master.display, .tensor = name}, [&] {
      check_master_type(param.master.dtype());
      param.requires_grad = master.archive.info(tensor_in(master)).requires_grad;
    });
    if (!draft_.options.optimizer_states) return param;
    for (const auto& [key, file] : files) {
      if (key == kFp32 || is_meta_tensor(value_in(*file))) continue;
      if (key != kStep) {
        param.states.push_back({key, value_of(*file, name, shape, false)});
        continue;
      }
      if (!file->archive.scalar(file->archive.root())) {
        throw CorruptError({.file = file->display, .tensor = name}, "is not a number");
      }
      param.step = {&file->archive, file->archive.root()};
    }
    std::sort(param.states.begin(), param.states.end(), is_before_in_adam);
    return param;
  }

  // The value that a file has bare or under 'param'.
  static Value value_in(const Shard& file) {
    const Value root = file.archive.root();
    return root.is_mapping() ? root.at("param") : root;
  }

  static Value tensor_in(const Shard& file) {
    const Value value = value_in(file);
    if (!TorchArchive::is_tensor(value)) {
      throw CorruptError({}, describe(value) + " where a tensor was expected");
    }
    return value;
  }

  TensorSource value_of(const Shard& file, const std::string& name, const Shape& shape,
                        bool is_master) {
    return in_context({.file = file.display, .tensor = name}, [&] {
      const Value value = tensor_in(file);
      const Value root = file.archive.root();
      if (split_ != nullptr) return whole_value(file, name, shape, is_master);
      if (root.find_or_none("is_expert_param").is_true()) {
        throw InconsistentError({},
                                "belongs to experts that the model-states file does not mention");
      }
      TensorSource source = file.archive.tensor(value);
      if (root.find_or_none("vocab_tensor").is_true()) source = padded(source, name, shape);
      const Shape& found = source.shape();
      const bool is_scalar = shape.empty() && found == Shape{1};
      const bool is_flat = stage_ == 3 && found.size() == 1 && source.numel() == numel(shape);
      if (found != shape && !is_scalar && !is_flat) {
        throw InconsistentError({}, "has shape " + to_text(found) + ", the parameter has " +
                                        to_text(shape) + " in " + model().shard().display);
      }
      return source.view(shape);
    });
  }

  // All states have the master's shape.
  TensorSource whole_value(const Shard& file, const std::string& name, const Shape& local,
                           bool is_master) {
    const Value root = file.archive.root();
    const TensorSource source = file.archive.tensor(tensor_in(file));
    const bool is_vocabulary = root.find_or_none("vocab_tensor").is_true();
    const Shape shape = split_->whole_shape(name, local, source.shape(), is_vocabulary);
    const auto [first, is_new] = whole_shapes_.emplace(name, shape);
    if (!is_new && first->second != shape) {
      throw InconsistentError(
          {}, "has shape " + to_text(shape) + ", the master " + to_text(first->second));
    }
    if (is_master) forms_.emplace(name, form_of(root, shape, is_vocabulary));
    return source.view(shape);
  }

  static UniversalForm form_of(const Value& root, const Shape& shape, bool is_vocabulary) {
    UniversalForm form;
    const Value cat_dim = root.find_or_none("cat_dim");
    if (cat_dim.is(pickle::Kind::integer)) form.cat_dim = cat_dim.as_int();
    if (is_vocabulary && !shape.empty()) form.vocab_rows = shape[0];
    if (root.find_or_none("is_expert_param").is_true() && !shape.empty()) {
      form.ep_num_experts = shape[0];
    }
    return form;
  }

  // The rows that make the vocabulary divisible are left out of the file; the loader makes zeros of
  // them.
  TensorSource padded(const TensorSource& source, const std::string& name, const Shape& shape) {
    Shape rows = source.shape();
    if (rows.size() != shape.size() || rows.empty() || rows[0] >= shape[0]) return source;
    rows[0] = shape[0] - rows[0];
    if (!std::equal(rows.begin() + 1, rows.end(), shape.begin() + 1)) return source;
    note_once(draft_.notes, "the last " + counted(rows[0], "row") + " of '" + name +
                                "' are padding, which universal checkpoints leave out: they are "
                                "zero");
    return TensorSource::cat(0, {source, TensorSource::zeros(source.dtype(), rows)});
  }

  // At stage 0 nothing tells them.
  std::vector<ParamGroup> find_groups(const Fields& wrapper, const ModelStates& rank) {
    if (stage_ == 3) return sub_group_param_groups(rank, wrapper);
    if (stage_ == 1 || stage_ == 2) return flat_groups(wrapper, rank);
    return {};
  }

  std::vector<ParamGroup> flat_groups(const Fields& wrapper, const ModelStates& rank) {
    auto settings = wrapper.sequence(keys::kParamGroups);
    // Elastic files have no hyper-parameters.
    draft_.facts.elastic =
        !settings.empty() && std::all_of(settings.begin(), settings.end(), [](const Value& group) {
          return group.is_mapping() && group.as_dict().items.size() == 1 && group.find("params");
        });
    if (draft_.facts.elastic) settings = {};
    // BF16_Optimizer knows nothing of it.
    const bool may_be_round_robin =
        wrapper.has(keys::kZeroStage) && draft_.run_config.may_be_round_robin();
    draft_.facts.round_robin = may_be_round_robin && draft_.run_config.saved;
    uint32_t ranks = 1;
    if (may_be_round_robin && draft_.facts.mesh.dp > 1) {
      if (!draft_.run_config.saved) return {};
      ranks = draft_.facts.mesh.dp;
      note_once(
          draft_.notes,
          "under round_robin_gradients ds_to_universal.py gives parameters each other's values; "
          "to-universal does not");
    }
    return flat_param_groups(rank, std::vector<uint32_t>(rank.param_shapes.size(), ranks),
                             wrapper.shard().archive, settings);
  }

  CheckpointDraft& draft_;
  bool is_split_;  // over pipeline stages, tensor-parallel or expert-parallel ranks
  RankModels models_;
  int stage_ = 0;
  std::optional<FlatOptimizer> optimizer_;  // of stage 3, once it was asked
  SplitModel::Folders folders_;
  const SplitModel* split_ = nullptr;  // while it is read
  std::map<std::string, Shape> whole_shapes_;
  std::map<std::string, UniversalForm> forms_;
};

bool probe_universal(CheckpointDraft& draft) {
  std::error_code failed;
  return !draft.folder.has(ShardName::Kind::optim_states) &&
         fs::is_directory(draft.folder.path / "zero", failed);
}

void read_universal(CheckpointDraft& draft) {
  // A folder that a run starts from weights with has both kinds: any stage can load it.
  const bool of_ranks = draft.folder.has(ShardName::Kind::zero_model_states) &&
                        !draft.folder.has(ShardName::Kind::model_states);
  const ShardName::Kind kind =
      of_ranks ? ShardName::Kind::zero_model_states : ShardName::Kind::model_states;
  const std::vector<ShardFile> files = draft.folder.of_kind(kind);
  if (files.empty()) {
    throw InconsistentError({.file = draft.folder.path.string()},
                            "all model_states files are missing");
  }
  draft.first_model =
      std::move(open_shards(draft.inputs, {files.front()}, draft.folder.display_root(), nullptr,
                            draft.pickles.get())
                    .front());
  const Fields fields(*draft.first_model, draft.first_model->archive.root());
  const bool is_split = files.back().name.mp_rank > 0 ||
                        fields.integer_if_any(keys::kMpWorldSize).value_or(1) > 1 ||
                        !fields.sequence("num_experts").empty() ||
                        fields.has(autoep_layers_key(draft.first_model->archive.root()));
  constexpr int64_t kMaxRanks = 1 << 20;
  const int64_t dp = fields.integer_if_any(keys::kDpWorldSize)
                         .value_or(of_ranks ? static_cast<int64_t>(files.size()) : 1);
  if (dp < 1 || dp > kMaxRanks) {
    throw CorruptError(fields.where(keys::kDpWorldSize), "is " + std::to_string(dp));
  }
  draft.facts.mesh.dp = static_cast<uint32_t>(dp);
  open_model_shards(draft, kind);
  UniversalReader(draft, is_split).read();
  if (is_split) draft.facts.model_parallel = true;
}

}  // namespace

const Layout kUniversal{"universal", probe_universal, read_universal};

}  // namespace dsckpt
