#include "reshard/model_values.h"

#include <utility>
#include <vector>

#include "checkpoint/made_values.h"
#include "checkpoint/module_entries.h"
#include "checkpoint/renamed.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"
#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

const Param& owner_of(const RankFile& file, const Param& param) {
  return param.alias_of.empty() ? param : *file.from.checkpoint.find(param.alias_of);
}

// The type of a parameter in the file's `module`, where it has `value`: None of a new one.
DType saved_type(const ModelFile& file, const Value& value) {
  if (value.is_none()) return file.target().saved_param_dtype;
  return is_meta_tensor(value) ? meta_tensor(value).dtype : file.copy.from().info(value).dtype;
}

// The entry of a parameter in `module`, where the file has `value`, in the target's form.
Value param_entry(ModelFile& file, const Param& param, const Value& value) {
  TorchArchiveWriter& writer = file.copy.writer();
  const Param& owner = owner_of(file, param);
  if (owner.kind == ParamKind::buffer) {
    return file.from.offer.starts || param.given ? writer.tensor(param.weight)
                                                 : file.copy.of(value);
  }
  const DType dtype = file.target().param_dtype.value_or(saved_type(file, value));
  if (file.target().stage == 3) {
    const int64_t elements = is_before(file.target().release, kEmptyPlaceholders) ? 1 : 0;
    return writer.tensor(TensorSource::zeros(dtype, {elements}));
  }
  const auto [found, is_new] = file.storages.try_emplace(owner.name, 0);
  // At stage 0 there may be no other copy of the weight.
  const bool is_copy = owner.in_module && !file.target().param_dtype && file.target().stage != 0;
  if (is_new) {
    found->second = writer.storage((is_copy ? *owner.in_module : owner.weight).to(dtype));
  }
  return writer.tensor(found->second, owner.weight.shape());
}

// A copy of each value that is not a tensor.
Value module_entry(ModelFile& file, const std::string& name, const Value& value) {
  if (!is_meta_tensor(value) && !TorchArchive::is_tensor(value)) return file.copy.of(value);
  const Param* param = file.from.checkpoint.find(name);
  if (param == nullptr) {
    throw UnsupportedError({.file = file.from.where().file, .tensor = name},
                           "is a parameter of the model whose values are in no file");
  }
  return param_entry(file, *param, value);
}

// Stages 2 and 3 keep frozen parameters apart; None if the run chose not to save them, which loads
// where there are none, too.
bool has_frozen_entries(const RankFile& file, const Value& saved) {
  return file.target().stage >= 2 && (!file.layout().frozen().empty() || saved.is_mapping());
}

// Name -> what `make` makes of each frozen parameter.
template <typename F>
Value of_frozen(const RankFile& file, F&& make) {
  Document& document = file.document();
  const Value dict = ordered_dict(document);
  for (const Param* param : file.layout().frozen()) {
    const Value name = document.intern(param->name);
    document.set_item(dict, name, make(*param));
  }
  return dict;
}

// Stage 2 keeps a whole copy, of the storage that `module` has where there is one; stage 3 the
// rank's piece.
Value frozen_fragment(ModelFile& file, const Param& param, const ModuleEntries& module) {
  TorchArchiveWriter& writer = file.copy.writer();
  const ReshardTarget& target = file.target();
  const DType stored =
      param.kind == ParamKind::trainable ? target.saved_param_dtype : param.weight.dtype();
  const TensorSource value = param.weight.to(target.param_dtype.value_or(stored));
  if (target.stage == 3) return writer.tensor(ReshardLayout::piece(value, file.rank, target.dp));
  const auto found = file.storages.find(param.name);
  if (found != file.storages.end()) return writer.tensor(found->second, param.weight.shape());
  const Value in_module = module.find(param.name);
  return in_module.is_none() || file.from.offer.new_values ? writer.tensor(value)
                                                           : file.copy.of(in_module);
}

// `saved` in the target's form, nested as it was. The entries' names begin with `front`.
Value module_dict(ModelFile& file, const Value& saved, const ModuleEntries& entries,
                  const std::string& front) {
  Document& document = file.document();
  const Value dict = ordered_dict(document);
  for (const auto& [key, value] : saved.as_dict().items) {
    const Value copied = file.copy.of(key);
    const std::string name = key.is(Kind::string) ? front + std::string(key.as_string()) : "";
    document.set_item(dict, copied,
                      entries.is_nested(value) ? module_dict(file, value, entries, name + ".")
                                               : module_entry(file, name, value));
  }
  if (saved.is(Kind::object) && saved.as_object().has_state) {
    document.set_state(dict, file.copy.of(saved.as_object().state));
  }
  return dict;
}

// True if `module` of the files has the same entries, whatever their values.
bool keeps_entries(const Checkpoint& checkpoint) {
  return keeps_names(checkpoint) &&
         (checkpoint.changed_from() == nullptr ||
          checkpoint.params().size() == checkpoint.changed_from()->params().size());
}

Value own_module(ModelFile& file, const Value& saved) {
  if (!keeps_entries(file.from.checkpoint) && saved.is_mapping()) {
    return renamed_module(
        file.copy, file.from.checkpoint, file.from.where().file, saved,
        [&](const Param& param, const Value& entry) { return param_entry(file, param, entry); });
  }
  if (file.from.offer.module_as_it_is || saved.is_none()) return file.copy.of(saved);
  return module_dict(file, saved, ModuleEntries(saved), "");
}

}  // namespace

Value module_value(ModelFile& file, const Value& saved) {
  // All entries of the rank's are among the further ones.
  const bool is_of_others = file.from.checkpoint.facts().run == RunKind::made && !file.more.empty();
  Value module = is_of_others ? Value() : own_module(file, saved);
  if (file.more.empty()) return module;
  // A pipeline's ranks have no entries of their own.
  if (module.is_none()) module = ordered_dict(file.document());
  for (const ModuleEntry& entry : file.more) {
    file.copy.set(module, entry.name, file.copy.writer().tensor(entry.value));
  }
  return module;
}

Value names_of_buffers(ModelFile& file, const Value& saved) {
  const bool same_names =
      keeps_entries(file.from.checkpoint) && !file.from.checkpoint.facts().regridded;
  return same_names ? file.copy.of(saved)
                    : buffer_names(file.document(), file.from.checkpoint.params());
}

Value param_shapes(ModelFile& file, const Value&) {
  return param_shapes_value(file);
}

Value frozen_param_shapes(ModelFile& file, const Value& saved) {
  if (!has_frozen_entries(file, saved)) return {};
  return of_frozen(file,
                   [&](const Param& param) { return shape_value(file, param.weight.shape()); });
}

Value frozen_param_fragments(ModelFile& file, const Value& saved) {
  if (!has_frozen_entries(file, saved)) return {};
  if (file.from.offer.fragments_as_they_are && saved.is_mapping() &&
      saved.as_dict().items.size() == file.layout().frozen().size()) {
    return file.copy.of(saved);
  }
  const ModuleEntries module(file.copy.from().root().find_or_none(keys::kModule));
  return of_frozen(file, [&](const Param& param) { return frozen_fragment(file, param, module); });
}

// Only the first rank says them.
Value shared_params(ModelFile& file, const Value& saved) {
  if (file.target().stage == 0) return {};
  Document& document = file.document();
  const Value dict = document.dict();
  if (file.rank > 0) return dict;
  if (saved.is_mapping() && keeps_entries(file.from.checkpoint)) return file.copy.of(saved);
  for (const Param& param : file.from.checkpoint.params()) {
    if (param.alias_of.empty()) continue;
    file.copy.set(dict, param.name, document.string(param.alias_of));
  }
  return dict;
}

}  // namespace dsckpt
