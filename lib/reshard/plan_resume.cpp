#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype_names.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "base/varint.h"
#include "checkpoint/other_values.h"
#include "checkpoint/pipeline_layers.h"
#include "checkpoint/regrid.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "dsckpt/reshard.h"
#include "dsckpt/resume.h"
#include "format/torch_archive.h"
#include "io/far_files.h"
#include "job/gather.h"
#include "job/source.h"
#include "reshard/engine_part.h"
#include "reshard/files.h"
#include "reshard/live_run.h"
#include "reshard/refusals.h"
#include "reshard/resume_storages.h"
#include "reshard/run_facts.h"
#include "reshard/target.h"

namespace dsckpt {
namespace {

void check_engine(const EngineFacts& engine) {
  if (engine.dp < 1 || engine.dp > kMaxRanks) {
    throw UsageError("the engine has " + counted(engine.dp, "data-parallel rank"));
  }
  if (engine.tp < 1 || engine.tp > kMaxRanks || engine.stages.size() > kMaxRanks ||
      engine.mp_rank >= uint64_t{stages_of(engine)} * engine.tp) {
    throw UsageError("there is no rank " + std::to_string(engine.mp_rank) + " of " +
                     counted(stages_of(engine), "pipeline stage") + " and " +
                     counted(engine.tp, "tensor-parallel rank"));
  }
  for (const EngineTensor& tensor : engine.tensors) {
    if (tensor.ep == 0 || engine.dp % tensor.ep == 0) continue;
    throw UsageError(counted(engine.dp, "data-parallel rank") + " cannot be shared by " +
                     counted(tensor.ep, "expert-parallel rank"));
  }
  if (engine.stage < 0 || engine.stage > 3) {
    throw UsageError("there is no stage " + std::to_string(engine.stage));
  }
}

void refuse_what_no_engine_loads(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  if (facts.states == StatesTold::stripped || !facts.has_masters)
    throw unassigned_states(checkpoint);
}

// The rows of the vocabulary in the engine, with padding for its ranks.
std::optional<int64_t> padded_vocab_size(const Checkpoint& whole, const EngineFacts& engine) {
  for (const EngineTensor& tensor : engine.tensors) {
    const Param* param = whole.find(tensor.name);
    if (param == nullptr || !param->form.vocab_rows || tensor.shape.size() != 2) continue;
    return tensor.shape.front() * engine.tp;
  }
  return std::nullopt;
}

bool is_pipeline(const Checkpoint& checkpoint) {
  if (checkpoint.facts().is_universal()) {
    return root_of(checkpoint).find_or_none(keys::kModule).is_none();
  }
  return checkpoint.facts().mesh.pp > 1 || !layers_with_files(checkpoint).empty();
}

// As GridOptions::stages says them.
std::string starts_of(const EngineFacts& engine) {
  std::string text;
  for (const uint32_t start : engine.stages) {
    text += (text.empty() ? "" : ",") + std::to_string(start);
  }
  return text;
}

// True if the engine's rank and `world`, which is that rank of the checkpoint, hold different
// layers of `whole`.
bool is_cut_elsewhere(const Checkpoint& whole, const Checkpoint& world, const EngineFacts& engine) {
  if (engine.stages.empty()) return false;
  const auto is_elsewhere = [&](const Param& param) {
    const auto layer = layer_number(param.name);
    if (!layer) return false;
    const auto next = std::upper_bound(engine.stages.begin(), engine.stages.end(), *layer);
    return static_cast<uint32_t>(next - engine.stages.begin()) != engine.mp_rank / engine.tp + 1;
  };
  const auto is_missing = [&](const EngineTensor& tensor) {
    const Param* param = whole.find(tensor.name);
    return param != nullptr && is_trained(*param) && world.find(tensor.name) == nullptr;
  };
  return std::any_of(world.params().begin(), world.params().end(), is_elsewhere) ||
         std::any_of(engine.tensors.begin(), engine.tensors.end(), is_missing);
}

// An mp rank's part of a checkpoint.
struct PartOfRank {
  std::shared_ptr<const Checkpoint> whole;
  std::optional<Regrid> grid = {};  // of other tensor-parallel ranks or pipeline stages
  std::optional<Checkpoint> world = {};

  PartOfRank(std::shared_ptr<const Checkpoint> source, const EngineFacts& engine,
             const std::vector<TpRule>& rules, const InputFiles& inputs)
      : whole(std::move(source)) {
    const CheckpointFacts& facts = whole->facts();
    if (!facts.model_parallel && !is_split(engine)) return;
    const Where where{.file = whole->tag_folder().string()};
    if (facts.is_foreign()) {
      world.emplace(part_of(whole, engine, rules, inputs));
      return;
    }
    refuse_folded(*whole);
    if (facts.mesh.tp == engine.tp && facts.mesh.pp == stages_of(engine) &&
        !(facts.is_universal() && facts.model_parallel)) {
      if (!facts.model_parallel) return;
      world.emplace(whole->world(engine.mp_rank));
      if (!is_cut_elsewhere(*whole, *world, engine)) return;
    }
    if (is_pipeline(*whole) == engine.stages.empty()) {
      throw InconsistentError(where, is_pipeline(*whole)
                                         ? "is of a pipeline, and the engine is none"
                                         : "is not of a pipeline, and the engine is one");
    }
    GridOptions options{.pp = stages_of(engine), .tp = engine.tp, .stages = starts_of(engine)};
    if (facts.mesh.tp != engine.tp) options.padded_vocab_size = padded_vocab_size(*whole, engine);
    KeyedSet<std::string> held;
    for (const EngineTensor& tensor : engine.tensors) held.insert(tensor.name);
    options.held = &held;
    grid.emplace(*whole, options);
    world.emplace(grid->world(engine.mp_rank));
  }

  const Checkpoint& operator*() const { return world ? *world : *whole; }
};

std::vector<TpRule> rules_of(const Source& source) {
  std::vector<TpRule> rules;
  for (const std::string& rule : source->options.tp_rules) rules.push_back(TpRule::parse(rule));
  return rules;
}

ReshardTarget target_for(const EngineFacts& engine, const LiveRun& run,
                         const Checkpoint& checkpoint, std::vector<std::string>& notes) {
  TargetOptions options{.dp = engine.dp};
  if (engine.stage == 3) options.sub_group_size = engine.sub_group_size;
  RunFacts source = run_facts(checkpoint);
  source.checkpoint.model_parallel = false;  // the engine has the groups of its slices
  return choose_target(source, &run.facts(), options, notes);
}

ParamKinds kinds_of(const EngineFacts& engine) {
  ParamKinds kinds;
  for (const EngineTensor& tensor : engine.tensors) {
    if (tensor.kind != ParamKind::trainable) kinds.emplace(tensor.name, tensor.kind);
  }
  return kinds;
}

// The files of a rank, while they are made.
struct Files {
  std::vector<ResumeFile> files = {};
  std::vector<std::vector<TensorSource>> data = {};  // of each file, by storage

  void add(TorchArchiveWriter::Written written) {
    ResumeFile& file = files.emplace_back();
    file.pickle = std::move(written.pickle);
    for (const TensorSource& source : written.data) {
      file.storages.push_back({source.dtype(), source.numel()});
    }
    data.push_back(std::move(written.data));
  }
};

// A dictionary of all tensors by their names. Each has a storage, since rules may cut an alias
// otherwise than its owner.
TorchArchiveWriter::Written state_dict_of(const Checkpoint& checkpoint) {
  TorchArchiveWriter writer;
  pickle::Document& document = writer.document();
  const pickle::Value root = document.dict();
  for (const Param& param : checkpoint.params()) {
    const TensorSource value = without_padding(param, param.weight);
    document.set_item(root, document.string(param.name),
                      writer.tensor(writer.storage(value), value.shape()));
  }
  document.set_root(root);
  return std::move(writer).write();
}

}  // namespace

struct ResumePlan::Impl {
  Impl(const std::shared_ptr<InputFiles>& inputs, Files made)
      : files(std::move(made.files)), storages(inputs, made.data) {}
  explicit Impl(VarintReader& bytes) : storages(bytes) {}

  bool of_weights = false;
  std::string folder = {};
  std::vector<ResumeFile> files = {};
  std::vector<std::string> notes = {};
  bool weights_are_masters = false;
  mutable std::mutex mutex = {};  // guards what follows
  mutable ResumeStorages storages;
  mutable CheckedRecords checked = {};
};

bool ResumePlan::is_of_weights() const {
  return impl_->of_weights;
}
const std::vector<ResumeFile>& ResumePlan::files() const {
  return impl_->files;
}
const std::vector<std::string>& ResumePlan::notes() const {
  return impl_->notes;
}
bool ResumePlan::weights_are_masters() const {
  return impl_->weights_are_masters;
}
const std::string& ResumePlan::folder() const {
  return impl_->folder;
}

std::set<std::string> ResumePlan::sites() const {
  return impl_->storages.sites();
}

std::string ResumePlan::encode() const {
  const std::lock_guard lock(impl_->mutex);
  VarintWriter writer;
  impl_->storages.write(writer);
  writer.number(impl_->of_weights ? 1 : 0);
  writer.number(impl_->weights_are_masters ? 1 : 0);
  writer.text(shown_text(impl_->folder));  // stand-ins are this process's own
  writer.number(impl_->notes.size());
  for (const std::string& note : impl_->notes) writer.text(shown_text(note));
  writer.number(impl_->files.size());
  for (const ResumeFile& file : impl_->files) {
    writer.text(file.pickle);
    writer.number(file.storages.size());
    for (const ResumeFile::Storage& storage : file.storages) {
      writer.number(static_cast<uint64_t>(storage.dtype));
      writer.number(static_cast<uint64_t>(storage.numel));
    }
  }
  return writer.take();
}

ResumePlan ResumePlan::decode(std::string_view bytes) {
  VarintReader reader(bytes);
  auto impl = std::make_shared<Impl>(reader);
  impl->of_weights = reader.number() != 0;
  impl->weights_are_masters = reader.number() != 0;
  impl->folder = reader.text();
  impl->notes.resize(reader.count());
  for (std::string& note : impl->notes) note = reader.text();
  impl->files.resize(reader.count());
  for (ResumeFile& file : impl->files) {
    file.pickle = reader.text();
    file.storages.resize(reader.count());
    for (ResumeFile::Storage& storage : file.storages) {
      storage.dtype = static_cast<DType>(reader.below(kDTypeCount));
      storage.numel = static_cast<int64_t>(reader.number());
    }
  }
  return ResumePlan(std::move(impl));
}

void ResumePlan::open_files(std::span<const StorageRead> reads) const {
  const std::lock_guard lock(impl_->mutex);
  for (const StorageRead& read : reads) impl_->storages.at(read.file, read.storage);
}

void ResumePlan::gather(std::span<const StorageRead> reads, bool check, Progress& progress) const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<TensorSource> sources;
  std::vector<std::span<std::byte>> outs;
  for (const StorageRead& read : reads) {
    const int64_t numel = impl_->files.at(read.file).storages.at(read.storage).numel;
    if (read.first < 0 || read.count < 0 || read.first > numel - read.count) {
      throw UsageError("elements that the storage does not have");
    }
    if (impl_->storages.copy_number(read.file, read.storage, read.out)) continue;
    const TensorSource& whole = impl_->storages.at(read.file, read.storage);
    sources.push_back(whole.flatten().narrow(0, read.first, read.count));
    outs.push_back(read.out);
  }
  gather_checked(plan_gather(sources), impl_->storages.inputs(), outs, check, impl_->checked,
                 progress);
}

struct ResumePlans::Impl {
  Impl(const Source& source, const EngineFacts& engine)
      : inputs(source->inputs),
        part(loaded(source, engine), engine, rules_of(source), *inputs),
        checkpoint(*part),
        run(engine, checkpoint, *inputs),
        target(target_for(engine, run, checkpoint, notes)),
        entries(*inputs, *part.whole, checkpoint, part.grid ? &*part.grid : nullptr, engine,
                target),
        files(checkpoint, target) {
    if (part.grid) {
      notes.insert(notes.begin(), part.grid->notes().begin(), part.grid->notes().end());
    }
    for (std::string& note : files.notes()) notes.push_back(std::move(note));
  }

  static std::shared_ptr<const Checkpoint> loaded(const Source& source, const EngineFacts& engine) {
    std::shared_ptr<const Checkpoint> checkpoint = source->checkpoint;
    if (checkpoint->facts().lacks_engine()) {
      checkpoint = std::make_shared<const Checkpoint>(for_deepspeed(checkpoint, kinds_of(engine)));
    }
    refuse_what_no_engine_loads(*checkpoint);
    return checkpoint;
  }

  std::shared_ptr<InputFiles> inputs;
  PartOfRank part;
  const Checkpoint& checkpoint;
  std::vector<std::string> notes;
  LiveRun run;  // the target borrows its hyper-parameters
  ReshardTarget target;
  LiveEntries entries;
  FilesOfRanks files;
};

ResumePlans::ResumePlans(const Source& source, const EngineFacts& engine) {
  check_engine(engine);
  impl_ = std::make_shared<const Impl>(source, engine);
}

ResumePlan ResumePlans::of_rank(uint32_t rank) const {
  if (rank >= impl_->target.dp) {
    throw UsageError("there is no rank " + std::to_string(rank) + " of " +
                     std::to_string(impl_->target.dp));
  }
  RankFiles made = impl_->files.of(rank, impl_->entries.of(rank));
  Files files;
  files.add(std::move(made.model));
  if (made.optimizer) files.add(std::move(*made.optimizer));
  auto plan = std::make_shared<ResumePlan::Impl>(impl_->inputs, std::move(files));
  plan->folder = impl_->checkpoint.tag_folder().string();
  plan->notes = impl_->notes;
  plan->weights_are_masters = made.weights_are_masters && !impl_->entries.are_copies();
  return ResumePlan(std::move(plan));
}

ResumePlan plan_weights_alone(const Source& source, const EngineFacts& engine) {
  const Checkpoint& checkpoint = *source->checkpoint;
  if (!checkpoint.facts().from_weights()) {
    throw UsageError(source->path.string() + " is more than weights");
  }
  check_engine(engine);
  std::optional<Checkpoint> part;
  if (is_split(engine)) {
    part.emplace(part_of(source->checkpoint, engine, rules_of(source), *source->inputs));
  }
  Files files;
  files.add(state_dict_of(part ? *part : checkpoint));
  auto impl = std::make_shared<ResumePlan::Impl>(source->inputs, std::move(files));
  impl->of_weights = true;
  impl->folder = source->path.string();
  return ResumePlan(std::move(impl));
}

}  // namespace dsckpt
