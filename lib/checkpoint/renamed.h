// Parameters under other names, cut and joined, by the rules of a file (names/key_map.h).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hub_weights.h"
#include "checkpoint/names/key_map.h"
#include "checkpoint/weights.h"
#include "format/archive_copy.h"
#include "pickle/pickle.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Throws UsageError, also for a file that is too long to be of rules, and IoError.
KeyMap read_key_map(const std::filesystem::path& path);

// A parameter, and the numbers of those that it is made of.
struct RenamedParam {
  Param param;
  std::vector<size_t> inputs;
};

// The parameters that `params` become, in the order of the first input of each. Param::alias_of is
// the name of another one of `params`, in both lists. A result of tied parameters alone is tied
// likewise. `options`: the cause of the renaming, for errors. Throws as renamed(), except if no
// rule fits.
std::vector<RenamedParam> renamed_params(std::span<const Param> params, KeyMap& rules,
                                         const std::string& options);

// A note on each rule that fits nothing; UsageError if none does.
void note_unused(const KeyMap& rules, size_t tensors, std::vector<std::string>& notes);

// `base` with its tensors renamed, cut and joined by `rules`. Parameters, groups, states and steps
// change alike, in the order of the first input of each. Everything else comes from `base`, its
// files too: Checkpoint::changed_from(). A note lists rules that fit nothing. Throws UsageError if
// no rule fits, for tensors that a rule cannot convert, and for names that become equal. Throws
// UnsupportedError for parameters that are joined but differ in states, groups or kinds.
Checkpoint renamed(std::shared_ptr<const Checkpoint> base, KeyMap& rules);

// The tensors of files of weights by the engine's names: prefixes first, then the rules.
std::vector<WeightsTensor> renamed_weights(const Weights& weights, const WeightNames& names,
                                           std::vector<std::string>& notes);

// Makes the new entry of a parameter in `module` from the entry that the file has; None of a new
// parameter.
using MakeEntry = std::function<pickle::Value(const Param& param, const pickle::Value& saved)>;

// `module` of a renamed checkpoint, as `saved` in `file`: flat, in the file's order or
// Checkpoint::module_order; entries that are not tensors follow. Throws UnsupportedError for a
// tensor whose values are in no file.
pickle::Value renamed_module(ArchiveCopy& copy, const Checkpoint& checkpoint,
                             const std::string& file, const pickle::Value& saved,
                             const MakeEntry& make);

// The changed value of a file's key; nullopt: no change.
using ChangeValue =
    std::function<std::optional<pickle::Value>(std::string_view key, const pickle::Value& saved)>;

// A model-states file of a renamed checkpoint, with the new names, and with the values of `change`
// for other keys. Throws UnsupportedError for tensors whose values are not available.
void lay_out_renamed(PlanBuilder& plan, const Checkpoint& checkpoint, const CheckpointFile& file,
                     std::string path, const ChangeValue& change);

// True if the parameters are some of those in the files, with their names and shapes.
bool keeps_names(const Checkpoint& checkpoint);

// For writers of DeepSpeed's files: only parameters that data-parallel ranks have whole can get
// other names. Throws UnsupportedError.
void refuse_renamed_slices(const Checkpoint& checkpoint);

}  // namespace dsckpt
