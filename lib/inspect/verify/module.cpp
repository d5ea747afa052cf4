// Compares `module` in the model's files with the parameter shapes that the files record.

#include <algorithm>

#include "checkpoint/model_states.h"
#include "deepspeed/keys.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;

// Layers of a pipeline, and experts, have files of their own.
bool is_elsewhere(const ModelStates& model, std::string_view name) {
  return is_of_pipeline(model.shard()) || name.find("experts") != std::string_view::npos;
}

// Adds one finding for all parameters that `module` lacks.
void check_all_in_module(Verification& v, CheckedFile& file, const ModelStates& model) {
  std::vector<std::string> absent;
  for (const NamedShapes& group : model.param_shapes) {
    for (const auto& entry : group) {
      const std::string& name = entry.first;
      if (model.by_name.contains(name) || model.stripped.contains(name)) continue;
      if (is_elsewhere(model, name)) continue;
      absent.push_back(name);
    }
  }
  if (absent.empty()) return;
  std::string message = "is in " + std::string(keys::kParamShapes) + ", but not in `module`";
  if (absent.size() > 1) message += "; so are " + std::to_string(absent.size() - 1) + " more";
  v.add({.check = Check::layout,
         .message = std::move(message),
         .file = file.display,
         .rank = file.rank(),
         .member = std::string(keys::kModule),
         .tensor = absent.front()});
}

}  // namespace

bool is_for_any_stage(Verification& v) {
  if (v.report.form != "universal" || !v.folder.has(Kind::model_states)) return false;
  const std::vector<CheckedFile*> files = v.of_kind(Kind::zero_model_states);
  return !files.empty() && std::all_of(files.begin(), files.end(), [](const CheckedFile* file) {
    const pickle::Value module = file->shard->archive.root().find_or_none(keys::kModule);
    return module.is_mapping() && module.as_dict().items.empty();
  });
}

void check_module_shapes(Verification& v) {
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    v.attempt(Check::layout, *file, [&] {
      const ModelStates model(*file->shard);
      const auto shape_in_module = [&](const std::string& name) -> std::optional<Shape> {
        const auto stripped = model.stripped.find(name);
        if (stripped != model.stripped.end()) return stripped->second;
        const auto found = model.by_name.find(name);
        if (found == model.by_name.end()) return std::nullopt;
        return if_supported([&] { return file->shard->archive.info(found->second).shape; });
      };
      const auto compare = [&](const NamedShapes& shapes, std::string_view member) {
        for (const auto& [name, shape] : shapes) {
          const auto stored = shape_in_module(name);
          if (!stored || *stored == shape) continue;
          v.add({.check = Check::shape,
                 .message = "is " + to_text(shape) + ", but " + to_text(*stored) + " in `module`",
                 .file = file->display,
                 .rank = file->rank(),
                 .member = std::string(member),
                 .tensor = name});
          file->suspect = true;
        }
      };
      check_all_in_module(v, *file, model);
      for (const NamedShapes& group : model.param_shapes) compare(group, keys::kParamShapes);
      compare(model.frozen_param_shapes, keys::kFrozenParamShapes);
    });
  }
  // Stage 3 keeps the names, without the values.
  if (is_for_any_stage(v)) return;
  for (CheckedFile* file : v.of_kind(Kind::zero_model_states)) {
    v.attempt(Check::layout, *file,
              [&] { check_all_in_module(v, *file, ModelStates(*file->shard)); });
  }
}

}  // namespace dsckpt
