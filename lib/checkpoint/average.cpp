#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/other_values.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

std::string folder_of(const Checkpoint& checkpoint) {
  return checkpoint.tag_folder().string();
}

bool can_be_averaged(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

[[noreturn]] void refuse(const Checkpoint& checkpoint, const std::string& tensor,
                         const std::string& why) {
  throw InconsistentError({.file = folder_of(checkpoint), .tensor = tensor}, why)
      .with_hint("checkpoints of one model can be averaged, however many ranks saved each");
}

std::vector<std::string> names_without(const Checkpoint& checkpoint, const Checkpoint& other) {
  std::vector<std::string> names;
  for (const Param& param : checkpoint.params()) {
    if (other.find(param.name) == nullptr) names.push_back(param.name);
  }
  return names;
}

// Names, ties, shapes and types of `other` are those of the newest.
void check_fits(const Checkpoint& newest, const Checkpoint& other) {
  const std::vector<std::string> missing = names_without(newest, other);
  const std::vector<std::string> extra = names_without(other, newest);
  const std::string there = folder_of(newest);
  if (!missing.empty()) {
    refuse(other, missing.front(),
           "lacks " + counted(missing.size(), "tensor") + " of " + there + ":" + listed(missing));
  }
  if (!extra.empty()) {
    refuse(other, extra.front(),
           "has " + counted(extra.size(), "tensor") + " that " + there +
               " does not have:" + listed(extra));
  }
  if (newest.facts().has_masters != other.facts().has_masters) {
    const bool without = newest.facts().has_masters;
    refuse(without ? other : newest, {},
           "has 16-bit weights without fp32 masters, " + folder_of(without ? newest : other) +
               " has masters");
  }
  for (const Param& param : newest.params()) {
    const Param& its = *other.find(param.name);
    if (its.alias_of != param.alias_of) {
      refuse(other, param.name, "is tied to a different tensor than in " + there);
    }
    const Shape shape = without_padding(its, its.weight).shape();
    const Shape wanted = without_padding(param, param.weight).shape();
    if (shape != wanted) {
      refuse(other, param.name,
             "has shape " + to_text(shape) + ", in " + there + " " + to_text(wanted));
    }
    const DType a = its.weight.dtype();
    const DType b = param.weight.dtype();
    if (a != b && !(can_be_averaged(a) && can_be_averaged(b))) {
      refuse(other, param.name,
             "is of type " + std::string(torch_name(a)) + ", in " + there + " " +
                 std::string(torch_name(b)));
    }
  }
}

TensorSource average_of(const Param& param, std::span<const AveragedCheckpoint> parts) {
  std::vector<TensorSource> values;
  std::vector<double> weights;
  for (const AveragedCheckpoint& part : parts) {
    const Param& its = *part.checkpoint->find(param.name);
    values.push_back(without_padding(its, its.weight));
    weights.push_back(part.weight);
  }
  return in_context({.tensor = param.name}, [&] {
    return TensorSource::weighted_mean(std::move(values), std::move(weights));
  });
}

}  // namespace

Checkpoint average(std::vector<AveragedCheckpoint> parts) {
  const Checkpoint& newest = *parts.back().checkpoint;
  const CheckpointDraft of_newest = newest.draft();
  CheckpointDraft draft{.inputs = of_newest.inputs,
                        .facts = of_newest.facts,
                        .run_config = of_newest.run_config,
                        .valueless = of_newest.valueless};
  KeyedSet<std::string_view> noted;
  for (const AveragedCheckpoint& part : parts) {
    const Checkpoint& checkpoint = *part.checkpoint;
    if (&checkpoint != &newest) check_fits(newest, checkpoint);
    for (const std::string& note : checkpoint.notes()) {
      if (noted.insert(note).second) draft.notes.push_back(note);
    }
    const std::vector<CheckpointFile> files = checkpoint.archives();
    draft.files.model.insert(draft.files.model.end(), files.begin(), files.end());
  }
  draft.folder.path = newest.tag_folder();
  draft.folder.other_roots = newest.folder().other_roots;
  if (draft.facts.states == StatesTold::yes) draft.facts.states = StatesTold::no;
  KeyedMap<std::string, TensorSource> averages;  // by owner
  for (const Param& param : newest.params()) {
    Param averaged = param;
    averaged.states.clear();
    const bool is_number =
        param.kind != ParamKind::buffer && is_floating_point(param.weight.dtype());
    if (is_number && !can_be_averaged(param.weight.dtype())) {
      throw UnsupportedError({.file = folder_of(newest), .tensor = param.name},
                             "is of type " + std::string(torch_name(param.weight.dtype())) +
                                 "; float32, bfloat16 and float16 are averaged");
    }
    if (is_number) {
      const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
      auto found = averages.find(owner);
      if (found == averages.end()) {
        found = averages.emplace(owner, average_of(*newest.find(owner), parts)).first;
      }
      averaged.weight = found->second;
      averaged.form.vocab_rows.reset();
    }
    draft.params.push_back(std::move(averaged));
  }
  draft.averaged = std::move(parts);
  return Checkpoint(std::move(draft));
}

}  // namespace dsckpt
