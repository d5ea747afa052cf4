// A file of one rank in the making, and the values that several of its dicts have.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "deepspeed/release.h"
#include "dsckpt/error.h"
#include "format/archive_copy.h"
#include "reshard/layout.h"
#include "reshard/source_offer.h"
#include "reshard/target.h"

namespace dsckpt {

// The source of all files of a resharded checkpoint. Immutable; borrows the checkpoint and the
// target.
struct ShardSource {
  ShardSource(const Checkpoint& source, const ReshardTarget& new_run);

  Where where() const { return {.file = checkpoint.tag_folder().string()}; }

  const Checkpoint& checkpoint;
  const ReshardTarget& target;
  ReshardLayout layout;
  SourceOffer offer;
  ShardValue wrapper;  // Checkpoint::wrapper_state
  // The ds_version of the new files; "" if none is known.
  std::string ds_version;
  // True if shapes are tuples: DeepSpeed saves models with experts through a helper that makes
  // tuples of torch.Size.
  bool has_tuple_shapes;
};

// One thread.
struct RankFile {
  const ShardSource& from;
  ArchiveCopy& copy;
  uint32_t rank;  // data-parallel

  const ReshardTarget& target() const { return from.target; }
  const ReshardLayout& layout() const { return from.layout; }
  pickle::Document& document() const { return copy.document(); }
};

// A key of a dict, and what makes its value; nullopt: the dict does not have it.
struct DictKey {
  std::string_view key;
  std::optional<pickle::Value> (*make)(const RankFile&);
  Release since = {};  // the first release that has it
};

// The dict of `keys`, in their order.
pickle::Value dict_of(const RankFile& file, std::span<const DictKey> keys);

// The value that the checkpoint's wrapper saved under `key`, as it is.
std::optional<pickle::Value> carried(const RankFile& file, std::string_view key);

// ds_config of the new run.
std::optional<pickle::Value> ds_config_value(const RankFile& file);
// Stages 1 and 2 load nothing without it: UnsupportedError if they would have none.
std::optional<pickle::Value> ds_version_value(const RankFile& file);
// zero/config.py ZeroStageEnum, or a number for releases without it.
std::optional<pickle::Value> zero_stage_value(const RankFile& file);
std::optional<pickle::Value> clip_grad_value(const RankFile& file);
// A torch.Size, or what the checkpoint has in its place.
pickle::Value shape_value(const RankFile& file, const Shape& shape);
// param_shapes of the target's groups: one dict of each, or of all for old releases.
pickle::Value param_shapes_value(const RankFile& file);

// A tensor with a storage of its own that requires gradients.
pickle::Value masters(const RankFile& file, TensorSource values);
TensorSource master_of(const Param& param);
pickle::Value integers(pickle::Document& document, const std::vector<uint64_t>& values);

}  // namespace dsckpt
