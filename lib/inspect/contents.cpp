#include "inspect/contents.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "checkpoint/find/rank_name.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;

namespace {

// "__RANK_NUMBER.distcp"
std::optional<ShardName> dcp_writer(std::string_view name) {
  uint32_t rank = 0;
  if (!name.starts_with("__")) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 2, name.data() + name.size(), rank);
  if (error != std::errc() || end == name.data() + name.size() || *end != '_') return std::nullopt;
  return ShardName{.kind = ShardName::Kind::zero_model_states, .dp_rank = rank};
}

}  // namespace

Contents Contents::open(InputFiles& inputs, const fs::path& path, const ContentsOptions& options) {
  const Beside beside = options.states ? Beside::optimizer : Beside::shards;
  const auto folders = options.folders ? options.folders : std::make_shared<Folders>();
  TagFolder found{.path = path};
  found.model = options.model;
  const FindOptions find{options.tag, options.roots, options.model, folders};
  bool is_weights = holds_only_weights(*folders, path, options.tag, beside);
  if (is_weights && !options.roots.empty()) throw no_roots_of_weights(path);
  if (!is_weights) {
    found = find_tag_folder(path, find);
    is_weights = found.has_only_weights();
  }
  if (is_weights) {
    Contents contents;
    contents.own_ = found.path;
    contents.choice_ = found.note;
    contents.weights_ = std::make_unique<Weights>(
        Weights::open(inputs, found.path, {.model = found.model, .folders = folders}));
    contents.notes_ = contents.weights_->notes();
    if (!found.note.empty()) contents.notes_.insert(contents.notes_.begin(), found.note);
    bool torch = false;
    bool safetensors = false;
    for (const WeightsFile& file : contents.weights_->files()) {
      (file.archive ? torch : safetensors) = true;
      if (file.archive) contents.archives_.push_back({file.path, file.archive.get()});
    }
    contents.index_files();
    contents.form_ = torch && safetensors ? "weights" : torch ? "torch" : "safetensors";
    for (const WeightsTensor& tensor : contents.weights_->tensors()) {
      contents.tensors_.push_back({tensor.name, "", std::nullopt, tensor.value, tensor.alias_of});
    }
    return contents;
  }

  OpenOptions open{.tag = options.tag,
                   .roots = options.roots,
                   .model = options.model,
                   .optimizer_states = options.states,
                   .folders = folders};
  for (const std::string& rule : options.tp_rules) open.tp_rules.push_back(TpRule::parse(rule));
  const auto opened = [&] {
    return of(std::make_shared<const Checkpoint>(Checkpoint::open_found(inputs, found, open)));
  };
  if (!options.damaged) return opened();
  try {
    return opened();
  } catch (const Error& error) {
    const bool some_may_open = error.is_damage() || error.kind() == ErrorKind::unsupported;
    if (!some_may_open) throw;
    open.allow_missing = true;
    try {
      Contents contents = opened();
      contents.damage_ = error;
      return contents;
    } catch (const Error&) {
      error.raise();  // the remaining files do not show the content of the lost ones
    }
  }
}

Contents Contents::of(std::shared_ptr<const Checkpoint> opened) {
  Contents contents;
  contents.checkpoint_ = std::move(opened);
  const Checkpoint& checkpoint = *contents.checkpoint_;
  contents.form_ = checkpoint.facts().layout;
  contents.own_ = checkpoint.folder().own();
  contents.choice_ = checkpoint.folder().note;
  for (const auto* files : {&checkpoint.files().model, &checkpoint.files().optim,
                            &checkpoint.files().modules, &checkpoint.files().params}) {
    contents.archives_.insert(contents.archives_.end(), files->begin(), files->end());
  }
  contents.index_files();
  for (const Param& param : checkpoint.params()) {
    contents.tensors_.push_back(
        {param.name, "", param.kind, without_padding(param, param.weight), param.alias_of});
    for (const ParamState& state : param.states) {
      contents.tensors_.push_back(
          {param.name, state.key, param.kind, without_padding(param, state.value), param.alias_of});
    }
  }
  for (const IncompleteParam& param : checkpoint.incomplete()) {
    contents.tensors_.push_back({param.name, "", param.kind,
                                 TensorSource::zeros(param.dtype, param.shape), param.alias_of,
                                 param.lost});
  }
  return contents;
}

void Contents::index_files() {
  for (const CheckpointFile& file : archives_) {
    by_file_.emplace(file.archive->file(), file.archive);
  }
  if (!checkpoint_) return;
  for (const SwapFile& swap : checkpoint_->files().swap) swap_owners_.emplace(swap.id, swap.owner);
}

const std::vector<WeightsFile>& Contents::weights_files() const {
  static const std::vector<WeightsFile> kNone;
  return weights_ ? weights_->files() : checkpoint_ ? checkpoint_->weights_files() : kNone;
}

const std::vector<std::string>& Contents::notes() const {
  return checkpoint_ ? checkpoint_->notes() : notes_;
}

std::optional<ShardName> Contents::writer_of(const InputFiles& inputs, FileId file) const {
  const auto swap = swap_owners_.find(file);
  if (swap != swap_owners_.end()) return swap->second;
  const std::string name = inputs[file].path().filename().string();
  if (checkpoint_ && !checkpoint_->files().data.empty()) return dcp_writer(name);
  if (const auto rank = parse_rank_name(name)) {
    ShardName writer{.kind = ShardName::Kind::zero_model_states};
    writer.dp_rank = rank->rank;
    return writer;
  }
  return parse_shard_name(name);
}

std::string Contents::record_at(FileId file, uint64_t offset) const {
  const auto archive = by_file_.find(file);
  if (archive != by_file_.end()) return archive->second->record_at(offset);
  for (const WeightsFile& opened : weights_files()) {
    if (opened.id != file || !opened.safetensors) continue;
    for (const SafetensorsEntry& entry : opened.safetensors->entries()) {
      if (offset >= entry.extent.offset && offset < entry.extent.end()) return entry.name;
    }
  }
  return "";
}

}  // namespace dsckpt
