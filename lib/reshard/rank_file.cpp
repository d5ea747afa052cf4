#include "reshard/rank_file.h"

#include <string>
#include <utility>

#include "deepspeed/config_pickle.h"
#include "deepspeed/keys.h"
#include "deepspeed/release.h"

namespace dsckpt {
using pickle::Document;
using pickle::ObjectNode;
using pickle::Value;
namespace {

bool has_tuple_shapes(const Checkpoint& checkpoint) {
  const Value root = checkpoint.model_files().front().archive->root();
  const Value shapes = root.find_or_none(keys::kParamShapes);
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
      has_tuple_shapes(dsckpt::has_tuple_shapes(source)) {}

Value dict_of(const RankFile& file, std::span<const DictKey> keys) {
  const Value dict = file.document().dict();
  for (const DictKey& key : keys) {
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
  const TorchArchive& archive = *file.from.checkpoint.model_files().front().archive;
  return file.copy.of(archive, archive.root().find_or_none(keys::kDsConfig));
}

std::optional<Value> ds_version_value(const RankFile& file) {
  if (auto saved = carried(file, keys::kDsVersion)) return saved;
  const std::string& version = file.from.checkpoint.facts().ds_version;
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
  const auto release = release_of(file.from.checkpoint.facts().ds_version);
  if (saved ? saved->is(pickle::Kind::integer) : release && *release < kZeroStageEnum) {
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
