#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dsckpt/error.h"
#include "dsckpt/reshard.h"
#include "dsckpt/resume.h"
#include "format/checked_records.h"
#include "job/gather.h"
#include "job/source.h"
#include "reshard/choose_target.h"
#include "reshard/files.h"
#include "reshard/live_run.h"
#include "reshard/run_facts.h"

namespace dsckpt {
namespace {

void check_rank(const EngineFacts& engine) {
  if (engine.dp < 1 || engine.dp > kMaxRanks || engine.rank >= engine.dp) {
    throw UsageError("there is no rank " + std::to_string(engine.rank) + " of " +
                     std::to_string(engine.dp));
  }
  if (engine.stage < 0 || engine.stage > 3) {
    throw UsageError("there is no stage " + std::to_string(engine.stage));
  }
}

void refuse_what_no_engine_loads(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  if (facts.states == StatesTold::stripped || !facts.has_masters)
    throw unassigned_states(checkpoint);
  if (!facts.model_parallel) return;
  throw UnsupportedError({.file = checkpoint.tag_folder().string()},
                         "is of a model that is split over pipeline, tensor-parallel or "
                         "expert-parallel ranks, which is not loaded into a running engine")
      .with_hint("reshard, or to-universal, makes a checkpoint that DeepSpeed itself loads");
}

ReshardTarget target_for(const EngineFacts& engine, const LiveRun& run,
                         const Checkpoint& checkpoint, std::vector<std::string>& notes) {
  TargetOptions options{.dp = engine.dp};
  if (engine.stage == 3) options.sub_group_size = engine.sub_group_size;
  return choose_target(run_facts(checkpoint), &run.facts(), options, notes);
}

ParamKinds kinds_of(const EngineFacts& engine) {
  ParamKinds kinds;
  for (const EngineTensor& tensor : engine.tensors) {
    if (tensor.kind != ParamKind::trainable) kinds.emplace(tensor.name, tensor.kind);
  }
  return kinds;
}

ResumeFile described(const TorchArchiveWriter::Written& written, bool optimizer) {
  ResumeFile file{.optimizer = optimizer, .pickle = written.pickle, .storages = {}};
  for (const TensorSource& data : written.data) {
    file.storages.push_back({data.dtype(), data.numel()});
  }
  return file;
}

}  // namespace

struct ResumePlan::Impl {
  std::shared_ptr<InputFiles> inputs;
  std::string folder;
  std::vector<ResumeFile> files;
  std::vector<std::vector<TensorSource>> data;  // of each file, by storage
  std::vector<std::string> notes;
  bool weights_are_masters = false;
  mutable CheckedRecords checked;
};

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

void ResumePlan::gather(std::span<const StorageRead> reads, bool check, Progress& progress) const {
  std::vector<TensorSource> sources;
  std::vector<std::span<std::byte>> outs;
  for (const StorageRead& read : reads) {
    const TensorSource& whole = impl_->data.at(read.file).at(read.storage);
    if (read.first < 0 || read.count < 0 || read.first > whole.numel() - read.count) {
      throw UsageError("elements that the storage does not have");
    }
    sources.push_back(whole.flatten().narrow(0, read.first, read.count));
    outs.push_back(read.out);
  }
  gather_checked(plan_gather(sources), *impl_->inputs, outs, check, impl_->checked, progress);
}

ResumePlan plan_resume(const Source& source, const EngineFacts& engine) {
  check_rank(engine);
  const std::shared_ptr<InputFiles>& inputs = source->inputs;
  std::shared_ptr<const Checkpoint> checkpoint = source->checkpoint;
  if (checkpoint->facts().lacks_engine()) {
    checkpoint = std::make_shared<const Checkpoint>(
        Checkpoint::for_deepspeed(*inputs, checkpoint, kinds_of(engine)));
  }
  refuse_what_no_engine_loads(*checkpoint);
  auto impl = std::make_shared<ResumePlan::Impl>();
  impl->inputs = inputs;
  impl->folder = checkpoint->tag_folder().string();
  const LiveRun run(engine, *checkpoint, *inputs);  // the target borrows its hyper-parameters
  const ReshardTarget target = target_for(engine, run, *checkpoint, impl->notes);
  RankFiles made = files_of_rank(*checkpoint, target, engine.rank, impl->notes);
  impl->weights_are_masters = made.weights_are_masters;
  impl->files.push_back(described(made.model, false));
  impl->data.push_back(std::move(made.model.data));
  if (made.optimizer) {
    impl->files.push_back(described(*made.optimizer, true));
    impl->data.push_back(std::move(made.optimizer->data));
  }
  return ResumePlan(std::move(impl));
}

}  // namespace dsckpt
