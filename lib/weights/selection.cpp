#include "weights/selection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/dtype_names.h"
#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "job/cast.h"
#include "job/key_map.h"

namespace dsckpt {
namespace {

class Selection {
 public:
  explicit Selection(const WeightsOptions& options)
      : options_(options),
        include_(options.include, "--include"),
        exclude_(options.exclude, "--exclude"),
        keep_fp32_(options.keep_fp32, "--keep-fp32") {}

  bool wants(const std::string& name, ParamKind kind) const {
    if (options_.exclude_frozen_parameters && kind == ParamKind::frozen) return false;
    if (!include_.empty() && !include_.find_in(name)) return false;
    return !exclude_.find_in(name);
  }

  TensorSource cast(const Param& param, std::vector<std::string>& notes) const {
    const bool keeps_fp32 = keep_fp32_.find_in(param.name);
    return dsckpt::cast(param, keeps_fp32 ? DType::float32 : options_.dtype, notes);
  }

 private:
  const WeightsOptions& options_;
  Patterns include_;
  Patterns exclude_;
  Patterns keep_fp32_;
};

UsageError nothing_left(const Checkpoint& checkpoint) {
  UsageError error("no tensor is left to write");
  if (checkpoint.params().empty()) return error;
  std::vector<std::string> names;
  for (const Param& param : checkpoint.params()) names.push_back(param.name);
  return std::move(error).with_hint("the names are " + some_of(names) + "; `ckpt-inspect list " +
                                    shell_word(checkpoint.tag_folder().string()) +
                                    "` shows them all");
}

void note_options_without_effect(const Checkpoint& checkpoint, const WeightsOptions& options,
                                 std::vector<std::string>& notes) {
  const auto any_name = [&](const auto& fits) {
    return std::any_of(checkpoint.params().begin(), checkpoint.params().end(),
                       [&](const Param& param) { return fits(param.name); });
  };
  for (const auto& [option, patterns] : {std::pair("--include", &options.include),
                                         {"--exclude", &options.exclude},
                                         {"--keep-fp32", &options.keep_fp32}}) {
    for (const std::string& pattern : *patterns) {
      const Patterns one({pattern}, option);
      if (any_name([&](const std::string& name) { return one.find_in(name); })) continue;
      notes.push_back(std::string(option) + " '" + pattern + "': no tensor's name matches");
    }
  }
  for (const std::string& prefix : options.strip_prefix) {
    if (any_name([&](const std::string& name) { return name.starts_with(prefix); })) continue;
    notes.push_back("--strip-prefix '" + prefix + "': no tensor's name begins with it");
  }
  if (!options.keep_fp32.empty() && options.dtype == DType::float32) {
    notes.emplace_back("--keep-fp32 changes nothing: --dtype is float32 for all");
  }
}

}  // namespace

std::vector<ChosenTensor> choose_tensors(const Checkpoint& checkpoint,
                                         const WeightsOptions& options,
                                         std::vector<std::string>& notes) {
  if (options.exclude_frozen_parameters && !checkpoint.facts().frozen_known) {
    throw UnsupportedError({.file = checkpoint.tag_folder().string()},
                           checkpoint.facts().from_weights
                               ? "does not tell which parameters are frozen: it has weights alone"
                               : "does not tell which parameters are frozen: it is of stage 0 in "
                                 "fp32, and trained ones have the same shapes")
        .with_hint("name them with --exclude");
  }
  const Selection selection(options);
  NewNames names(options.key_map,
                 options.key_map.empty() ? "--strip-prefix" : "--strip-prefix or --key-map");
  std::vector<ChosenTensor> tensors;
  // From what owns the data in the checkpoint, and the type it is written as, to what owns it here:
  // an alias stands alone when its owner is left out or becomes another type.
  KeyedMap<std::string, std::pair<DType, std::string>> written;
  for (const Param& param : checkpoint.params()) {
    if (!selection.wants(param.name, param.kind)) continue;
    OutputTensor tensor{names.add(param.name, without_prefix(param.name, options.strip_prefix)),
                        selection.cast(param, notes),
                        {}};
    const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
    const auto [first, is_first] =
        written.emplace(owner, std::pair(tensor.source.dtype(), tensor.name));
    if (!is_first && first->second.first == tensor.source.dtype()) {
      tensor.alias_of = first->second.second;
    }
    tensors.push_back({&param, std::move(tensor)});
  }
  if (tensors.empty() && !choose_incomplete(checkpoint, options).empty()) {
    throw InconsistentError({.file = checkpoint.tag_folder().string()},
                            "no parameter is complete without the files that are lost");
  }
  if (tensors.empty()) throw nothing_left(checkpoint);
  note_options_without_effect(checkpoint, options, notes);
  names.note_unused(notes);
  return tensors;
}

std::vector<std::string> choose_valueless(const Checkpoint& checkpoint,
                                          const WeightsOptions& options) {
  const Selection selection(options);
  std::vector<std::string> chosen;
  for (const std::string& name : checkpoint.valueless()) {
    if (selection.wants(name, ParamKind::frozen)) chosen.push_back(name);
  }
  return chosen;
}

std::vector<IncompleteParam> choose_incomplete(const Checkpoint& checkpoint,
                                               const WeightsOptions& options) {
  const Selection selection(options);
  std::vector<IncompleteParam> chosen;
  for (const IncompleteParam& param : checkpoint.incomplete()) {
    if (selection.wants(param.name, param.kind)) chosen.push_back(param);
  }
  return chosen;
}

}  // namespace dsckpt
