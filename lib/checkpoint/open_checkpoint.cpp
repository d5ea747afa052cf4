#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

#include "base/keyed_hash.h"
#include "checkpoint/assemble.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/find/weights_files.h"
#include "checkpoint/layout.h"
#include "checkpoint/other_values.h"
#include "checkpoint/salvage.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// The layouts, probed in this order.
constexpr std::array<const Layout*, 8> kLayouts{&kTorchDist, &kDcp,   &kRankFiles, &kTraining,
                                                &kUniversal, &kZero3, &kZero12,    &kZero0};

// `mp_rank`: only those of that world.
std::vector<CheckpointFile> files_of(const std::vector<Shard>& shards,
                                     std::optional<uint32_t> mp_rank = {}) {
  std::vector<CheckpointFile> files;
  for (const Shard& shard : shards) {
    if (shard.lost || (mp_rank && shard.name.mp_rank != *mp_rank)) continue;
    files.push_back({shard.path, &shard.archive});
  }
  return files;
}

// Facts of the save, from a model-states file.
void find_save(const Shard& shard, CheckpointFacts& facts) {
  const Fields model(shard, shard.archive.root());
  facts.ds_version = model.text(keys::kDsVersion);
  facts.global_steps = model.integer_if_any(keys::kGlobalSteps);
}

// A file of another save among them would not have the others' states back.
void find_stripped(CheckpointDraft& draft) {
  const auto is_stripped = [](const Shard& shard) {
    return !shard.archive.root().find_or_none(keys::kStripped).is_none();
  };
  const auto shards = {&draft.model_shards, &draft.optim_shards, &draft.module_shards};
  if (std::none_of(shards.begin(), shards.end(), [&](const std::vector<Shard>* some) {
        return std::any_of(some->begin(), some->end(), is_stripped);
      })) {
    return;
  }
  draft.facts.states = StatesTold::stripped;
  draft.notes.emplace_back(
      "was stripped to its weights by ckpt-pack strip: without optimizer states");
}

// DeepSpeed's OptimizedLinear may cut its frozen weight over the ranks (base_weight_sharding). Each
// rank then has a vector as a parameter of its own, and the file that one rank writes has one of
// them.
void drop_base_weight_shards(CheckpointDraft& draft) {
  constexpr std::string_view kWeight = "weight";
  constexpr std::string_view kDown = "lora_weight_1.weight";
  if (std::none_of(draft.params.begin(), draft.params.end(),
                   [&](const Param& param) { return param.name.ends_with(kDown); })) {
    return;
  }
  KeyedMap<std::string_view, const Shape*> shapes;
  for (const Param& param : draft.params) shapes.emplace(param.name, &param.weight.shape());
  const auto matrix = [&](const std::string& name) {
    const auto found = shapes.find(name);
    return found == shapes.end() || found->second->size() != 2 ? nullptr : found->second;
  };
  std::set<std::string> shards;
  for (const Param& param : draft.params) {
    if (!param.name.ends_with(".weight") || param.weight.shape().size() != 1) continue;
    const std::string layer = param.name.substr(0, param.name.size() - kWeight.size());
    const Shape* down = matrix(layer + std::string(kDown));
    const Shape* up = matrix(layer + "lora_weight_2.weight");
    if (down != nullptr && up != nullptr) shards.insert(param.name);
  }
  const auto is_shard = [&](const Param& param) {
    return shards.contains(param.name) || shards.contains(param.alias_of);
  };
  for (const Param& param : draft.params) {
    if (!is_shard(param)) continue;
    draft.valueless.push_back(param.name);
    draft.notes.push_back("'" + param.name +
                          "' is cut over the ranks (base_weight_sharding), and one rank's part "
                          "alone is in the files; left out");
  }
  std::erase_if(draft.params, is_shard);
}

}  // namespace

const char* to_string(ParamKind kind) {
  switch (kind) {
    case ParamKind::trainable:
      return "trainable";
    case ParamKind::frozen:
      return "frozen";
    case ParamKind::buffer:
      return "buffer";
  }
  return "unknown";
}

bool is_trained(const Param& param) {
  return param.kind == ParamKind::trainable && param.alias_of.empty();
}

std::optional<double> step_of(const Param& param) {
  if (param.step.archive == nullptr) return std::nullopt;
  return param.step.archive->scalar(param.step.value);
}

bool same_value(const ShardValue& a, const ShardValue& b) {
  if (a.archive == nullptr || b.archive == nullptr) return a.archive == b.archive;
  if (a.archive == b.archive && a.value.identity() != nullptr &&
      a.value.identity() == b.value.identity()) {
    return true;
  }
  if (a.value.kind() != b.value.kind()) return false;
  if (a.value.is_none()) return true;
  const auto x = a.archive->scalar(a.value);
  const auto y = b.archive->scalar(b.value);
  if (x || y) return x == y;
  return same_plain_data(a.value, b.value);
}

bool is_computed_anew(const WholeState& state) {
  return state.key == "RMS";
}

TensorSource without_padding(const Param& param, const TensorSource& value) {
  if (!param.form.vocab_rows || value.shape().empty()) return value;
  return value.narrow(0, 0, std::min(*param.form.vocab_rows, value.shape().front()));
}

struct Checkpoint::Impl {
  explicit Impl(CheckpointDraft made) : draft(std::move(made)) {
    for (size_t i = 0; i < draft.params.size(); ++i) by_name.emplace(draft.params[i].name, i);
  }
  CheckpointDraft draft;
  KeyedMap<std::string_view, size_t> by_name;
};

Checkpoint::Checkpoint(CheckpointDraft draft) : impl_(std::make_unique<Impl>(std::move(draft))) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

namespace {

// The steps that are older than the newest, which is `damaged` by `error`.
std::optional<Checkpoint> first_whole(InputFiles& inputs, const TagFolder& damaged,
                                      const OpenOptions& options, const Error& error) {
  for (const fs::path& path : damaged.older) {
    try {
      TagFolder folder = find_tag_folder(path, {.roots = options.roots, .model = damaged.model});
      folder.note = "reading " + path.string() + ", the newest that is whole; of " +
                    damaged.named.string() + ": " + error.what();
      return Checkpoint::open(inputs, folder, options);
    } catch (const Error& of_older) {
      if (!of_older.is_damage()) throw;
    }
  }
  return std::nullopt;
}

// True if `error` is of a shard that was not known to be damaged; then it is now.
bool mark_damaged(TagFolder& folder, const Error& error) {
  if (error.kind() != ErrorKind::corrupt) return false;
  const auto name = parse_shard_name(fs::path(error.where().file).filename().string());
  const auto shard = std::find_if(folder.shards.begin(), folder.shards.end(),
                                  [&](const ShardFile& each) { return name == each.name; });
  if (!name || shard == folder.shards.end() || !shard->damage.empty()) return false;
  shard->damage = error.message();
  return true;
}

// Without the files that open, but turn out to be damaged when they are read.
std::optional<Checkpoint> without_damaged(InputFiles& inputs, TagFolder folder,
                                          const OpenOptions& options, const Error& first) {
  constexpr int kMost = 16;
  bool marked = mark_damaged(folder, first);
  for (int i = 0; marked && i < kMost; ++i) {
    try {
      return Checkpoint::open(inputs, folder, options);
    } catch (const Error& error) {
      if (!error.is_damage()) throw;
      marked = mark_damaged(folder, error);
    }
  }
  return std::nullopt;
}

}  // namespace

FindOptions find_options(const OpenOptions& options) {
  return {.tag = options.tag,
          .roots = options.roots,
          .model = options.model,
          .folders = options.folders};
}

Checkpoint Checkpoint::open(InputFiles& inputs, const fs::path& path, const OpenOptions& options) {
  return open_found(inputs, find_tag_folder(path, find_options(options)), options);
}

Checkpoint Checkpoint::open_found(InputFiles& inputs, const TagFolder& folder,
                                  const OpenOptions& options) {
  if (folder.has_only_weights()) {
    throw InconsistentError({.file = folder.path.string()},
                            "holds weights, and a checkpoint of a training is expected");
  }
  OpenOptions of_folder = options;
  of_folder.model = folder.model;
  try {
    return open(inputs, folder, of_folder);
  } catch (const Error& error) {
    if (!error.is_damage()) throw;
    if (options.allow_missing) {
      if (auto left = without_damaged(inputs, folder, of_folder, error)) return std::move(*left);
    }
    // Nothing names the newest one, so that a whole one is meant rather than a damaged one.
    if (!folder.older.empty() && !options.allow_missing) {
      std::optional<Checkpoint> whole = first_whole(inputs, folder, of_folder, error);
      if (whole) return std::move(*whole);
    }
    const fs::path file = error.where().file;
    error.hinted(cure_of(folder, parse_shard_name(file.filename().string()), false)).raise();
  }
}

Checkpoint Checkpoint::open(InputFiles& inputs, const TagFolder& folder,
                            const OpenOptions& options) {
  return open(inputs, folder, options, kLayouts);
}

Checkpoint Checkpoint::open(InputFiles& inputs, const TagFolder& folder, const OpenOptions& options,
                            std::span<const Layout* const> layouts) {
  CheckpointDraft draft{.inputs = inputs, .options = options, .folder = folder};
  const OpeningFiles all(inputs.progress(), folder.shards.size());
  draft.facts.tag = draft.folder.tag;
  if (!folder.note.empty()) draft.notes.push_back(folder.note);
  for (const Layout* layout : layouts) {
    if (!layout->probe(draft)) continue;
    if (layout == &kUniversal) refuse_other_roots(draft.folder);
    if (!options.model.empty() && !layout->has_models) {
      throw no_such_model(options.model, folder.path.string());
    }
    layout->read(draft);
    draft.pickles.reset();
    drop_incomplete(draft);
    drop_base_weight_shards(draft);
    if (draft.facts.layout.empty()) draft.facts.layout = layout->name;
    if (!draft.model_shards.empty()) find_save(draft.model_shards.front(), draft.facts);
    find_stripped(draft);
    const Mesh& mesh = draft.facts.mesh;
    draft.facts.model_parallel = draft.facts.model_parallel || mesh.pp > 1 || mesh.tp > 1 ||
                                 mesh.ep > 1 || draft.folder.has_split_files();
    draft.files.model = files_of(draft.model_shards);
    draft.files.optim = files_of(draft.optim_shards);
    draft.files.modules = files_of(draft.module_shards);
    draft.files.params = files_of(draft.param_shards);
    return Checkpoint(std::move(draft));
  }
  throw InconsistentError({.file = draft.folder.path.string()},
                          "there are optimizer files but no model_states file");
}

CheckpointDraft Checkpoint::draft() const {
  const CheckpointDraft& own = impl_->draft;
  return {.inputs = own.inputs,
          .options = {.tag = {}, .optimizer_states = own.options.optimizer_states},
          .folder = own.folder,
          .facts = own.facts,
          .run_config = own.run_config,
          .groups = own.groups,
          .wrapper_state = own.wrapper_state,
          .valueless = own.valueless,
          .notes = own.notes,
          .unused_patterns = own.unused_patterns,
          .files = own.files};
}

Checkpoint Checkpoint::world(uint32_t mp_rank) const {
  const CheckpointDraft& whole = impl_->draft;
  if (whole.changed_world) return whole.changed_world(mp_rank);
  if (whole.run != nullptr) return given_world(whole.run->world(mp_rank), mp_rank);
  CheckpointDraft draft = draft_of_world(mp_rank);
  const World& world = whole.worlds->all.at(mp_rank);
  if (!world.uncut.empty()) {
    throw UnsupportedError({.file = whole.folder.path.string(), .tensor = world.uncut},
                           "is whole, and no simple rule cuts it for " +
                               counted(whole.facts.mesh.tp, "tensor-parallel rank"))
        .with_hint("--tp-rule REGEX=cat:0, REGEX=cat:1 or REGEX=replicated gives one");
  }
  assemble_alone(draft, world);
  drop_incomplete(draft);
  drop_base_weight_shards(draft);
  return Checkpoint(std::move(draft));
}

CheckpointDraft Checkpoint::draft_of_world(uint32_t mp_rank) const {
  const CheckpointDraft& whole = impl_->draft;
  if (whole.run != nullptr) return whole.run->draft_of_world(mp_rank);
  if (!whole.worlds) {
    throw UnsupportedError({.file = whole.folder.path.string()},
                           "has no files of the ranks that its model is split over")
        .with_hint("a checkpoint that the run itself has saved has them");
  }
  if (whole.worlds->lost) std::rethrow_exception(whole.worlds->lost);
  const World& world = whole.worlds->all.at(mp_rank);
  CheckpointDraft draft{.inputs = whole.inputs,
                        .options = {.tag = {}, .optimizer_states = whole.options.optimizer_states},
                        .folder = whole.folder,
                        .facts = world.facts,
                        .run_config = whole.run_config,
                        .lost_files = whole.lost_files,
                        .lost_ids = whole.lost_ids,
                        .wrapper_state = world.wrapper_state};
  draft.facts.layout = whole.facts.layout;
  draft.facts.model_parallel = whole.facts.model_parallel;
  draft.facts.states = whole.facts.states;
  find_save(world.model->shard(), draft.facts);
  draft.files.model = files_of(whole.model_shards, mp_rank);
  // The file of a universal checkpoint is of all ranks.
  draft.files.optim = whole.facts.run == RunKind::universal ? files_of(whole.optim_shards)
                                                            : files_of(whole.optim_shards, mp_rank);
  return draft;
}

Checkpoint Checkpoint::given_world(Checkpoint world, uint32_t mp_rank) const {
  CheckpointDraft& draft = world.impl_->draft;
  tell_values(draft.facts, facts());
  give_values(draft.params, *this, mp_rank % facts().mesh.tp);
  // A world has a part of every group.
  for (size_t g = 0; g < draft.groups.size() && groups().size() == draft.groups.size(); ++g) {
    draft.groups[g].settings = groups()[g].settings;
  }
  return world;
}

const CheckpointFacts& Checkpoint::facts() const {
  return impl_->draft.facts;
}
const RunConfig& Checkpoint::run_config() const {
  return impl_->draft.run_config;
}
const fs::path& Checkpoint::tag_folder() const {
  return impl_->draft.folder.path;
}
const TagFolder& Checkpoint::folder() const {
  return impl_->draft.folder;
}
const std::vector<Param>& Checkpoint::params() const {
  return impl_->draft.params;
}

const Param* Checkpoint::find(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &params()[found->second];
}

const std::vector<ParamGroup>& Checkpoint::groups() const {
  return impl_->draft.groups;
}

ShardValue Checkpoint::wrapper_state() const {
  return impl_->draft.wrapper_state;
}

const CheckpointFiles& Checkpoint::files() const {
  return impl_->draft.files;
}
const std::vector<WeightsFile>& Checkpoint::weights_files() const {
  return impl_->draft.weights;
}
const std::vector<std::string>& Checkpoint::unused_patterns() const {
  return impl_->draft.unused_patterns;
}

const std::vector<std::string>& Checkpoint::valueless() const {
  return impl_->draft.valueless;
}
const Checkpoint& Checkpoint::run() const {
  return impl_->draft.run == nullptr ? *this : impl_->draft.run->run();
}
const Checkpoint* Checkpoint::changed_from() const {
  return impl_->draft.changed_from.get();
}
const std::vector<std::string>& Checkpoint::module_order() const {
  return impl_->draft.module_order;
}
const std::vector<AveragedCheckpoint>& Checkpoint::averaged() const {
  return impl_->draft.averaged;
}
const std::vector<std::string>& Checkpoint::notes() const {
  return impl_->draft.notes;
}
const std::vector<Error>& Checkpoint::doubts() const {
  return impl_->draft.doubts;
}
const std::vector<LostFile>& Checkpoint::lost_files() const {
  return impl_->draft.lost_files;
}
const std::vector<IncompleteParam>& Checkpoint::incomplete() const {
  return impl_->draft.incomplete;
}

std::vector<CheckpointFile> Checkpoint::archives() const {
  std::vector<CheckpointFile> all = files().model;
  for (const auto* some : {&files().optim, &files().modules, &files().params}) {
    all.insert(all.end(), some->begin(), some->end());
  }
  for (const WeightsFile& file : weights_files()) {
    if (file.archive) all.push_back({file.path, file.archive.get()});
  }
  return all;
}

}  // namespace dsckpt
