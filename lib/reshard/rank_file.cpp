#include "reshard/rank_file.h"

#include <string>
#include <utility>

#include "deepspeed/config_pickle.h"
#include "deepspeed/keys.h"
#include "pickle/python_objects.h"
#include "reshard/run_facts.h"

namespace dsckpt {
using pickle::Document;
using pickle::ObjectNode;
using pickle::Value;
namespace {

bool has_tuple_shapes(const Checkpoint& checkpoint) {
  const Value shapes = saved_param_shapes(checkpoint);
  for (const Value& group : shapes.sequence_or_empty()) {
    if (!group.is_mapping() || group.as_dict().items.empty()) continue;
    return group.as_dict().items.front().second.is(pickle::Kind::tuple);
  }
  return false;
}

}  // namespace

ShardSource::ShardSource(const Checkpoint& source, const ReshardTarget& new_run)
    : checkpoint(source),
      target(new_run),
      layout(LayoutSource(source), new_run),
      offer(source_offer(source.facts(), new_run)),
      wrapper(source.wrapper_state()),
      ds_version(new_run.ds_version.empty() ? source.facts().ds_version : new_run.ds_version),
      has_tuple_shapes(dsckpt::has_tuple_shapes(source)) {}

Value dict_of(const RankFile& file, std::span<const DictKey> keys) {
  const Value dict = file.document().dict();
  for (const DictKey& key : keys) {
    if (is_before(file.target().release, key.since)) continue;
    if (const auto value = key.make(file)) file.copy.set(dict, key.key, *value);
  }
  return dict;
}

std::optional<Value> carried(const RankFile& file, std::string_view key) {
  const ShardValue& wrapper = file.from.wrapper;
  const auto value = wrapper.value.find(key);
  if (!value) return std::nullopt;
  return file.copy.of(*wrapper.archive, *value);
}

std::optional<Value> ds_config_value(const RankFile& file) {
  if (file.target().ds_config) return pickle_of(file.document(), *file.target().ds_config);
  const TorchArchive& archive = *file.from.checkpoint.files().model.front().archive;
  return file.copy.of(archive, archive.root().find_or_none(keys::kDsConfig));
}

std::optional<Value> ds_version_value(const RankFile& file) {
  if (file.target().ds_version.empty()) {
    if (auto saved = carried(file, keys::kDsVersion)) return saved;
  }
  const std::string& version = file.from.ds_version;
  if (!version.empty()) return file.document().string(version);
  if (!file.target().is_zero12()) return std::nullopt;
  throw UnsupportedError(file.from.where(),
                         "does not say which ds_version wrote it; stages 1 and 2 do not load "
                         "without");
}

std::optional<Value> zero_stage_value(const RankFile& file) {
  Document& document = file.document();
  const Value number = Document::integer(file.target().stage);
  const auto saved = file.from.wrapper.value.find(keys::kZeroStage);
  const auto& release = file.target().release;
  if (release ? *release < kZeroStageEnum : saved && saved->is(pickle::Kind::integer)) {
    return number;
  }
  return document.object(ObjectNode::Made::reduce,
                         document.global("deepspeed.runtime.zero.config", "ZeroStageEnum"),
                         document.tuple({number}));
}

std::optional<Value> clip_grad_value(const RankFile& file) {
  if (auto saved = carried(file, keys::kClipGrad)) return saved;
  return Document::real(file.target().engine.gradient_clipping);
}

Value shape_value(const RankFile& file, const Shape& shape) {
  if (!file.from.has_tuple_shapes) return torch_size(file.document(), shape);
  std::vector<Value> dims;
  for (const int64_t dim : shape) dims.push_back(Document::integer(dim));
  return file.document().tuple(std::move(dims));
}

Value param_shapes_value(const RankFile& file) {
  if (file.target().stage == 0) return {};
  Document& document = file.document();
  const bool of_groups = !is_before(file.target().release, kParamShapesOfGroups);
  std::vector<Value> all;
  for (const ReshardLayout::Run& run : file.layout().runs()) {
    if (of_groups || all.empty()) all.push_back(ordered_dict(document));
    for (const Param* param : file.layout().params_of(run, 0)) {
      document.set_item(all.back(), document.intern(param->name),
                        shape_value(file, param->weight.shape()));
    }
  }
  return of_groups ? document.list(std::move(all)) : all.front();
}

Value masters(const RankFile& file, TensorSource values) {
  Shape shape = values.shape();
  TorchArchiveWriter& writer = file.copy.writer();
  return writer.tensor(writer.storage(std::move(values)), std::move(shape), 0, {}, true);
}

TensorSource master_of(const Param& param) {
  return param.weight;
}

Value integers(Document& document, const std::vector<uint64_t>& values) {
  std::vector<Value> items;
  for (const uint64_t value : values) {
    items.push_back(Document::integer(static_cast<int64_t>(value)));
  }
  return document.list(std::move(items));
}

}  // namespace dsckpt
