// A file of one rank in the making, and the values that both of its files have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "deepspeed/release.h"
#include "dsckpt/error.h"
#include "format/archive_copy.h"
#include "reshard/layout.h"
#include "reshard/target.h"

namespace dsckpt {

// The parts that a checkpoint offers to the files of a target: decided once, from the facts of
// both.
struct SourceOffer {
  // The new run starts from it: nothing of its training goes on.
  bool starts = false;
  // Its parameters have other values, or other names, than the copies of them in its files.
  bool new_values = false;
  // Its optimizer's wrapper is the target's, so what is not known of the wrapper's state_dict, as a
  // later DeepSpeed may have it, is kept.
  bool keeps_unknown_state = false;
  // Stage 0: `optimizer` can be copied as it is.
  bool optimizer_as_it_is = false;
  // Under ZeRO `optimizer` of its model-states files, if there, is the program's (client_state).
  bool optimizer_is_programs = false;
  // `module` can be copied as it is.
  bool module_as_it_is = false;
  // So can frozen_param_fragments, if they are of the frozen parameters.
  bool fragments_as_they_are = false;

  bool operator==(const SourceOffer&) const = default;
};

SourceOffer source_offer(const CheckpointFacts& source, const ReshardTarget& target);

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

// ds_config of the new run.
std::optional<pickle::Value> ds_config_value(const RankFile& file);
// A torch.Size, or what the checkpoint has in its place.
pickle::Value shape_value(const RankFile& file, const Shape& shape);
// param_shapes of the target's groups: one dict of each, or of all for old releases.
pickle::Value param_shapes_value(const RankFile& file);

}  // namespace dsckpt
