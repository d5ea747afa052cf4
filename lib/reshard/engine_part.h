// The part of a whole model that a rank of a running engine has. The engine knows how its ranks
// share a parameter, where a checkpoint of another framework does not.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tp_rule.h"
#include "dsckpt/resume.h"
#include "io/input_file.h"

namespace dsckpt {

// True if the engine's model is in several files, or its ranks have different parts of it.
bool is_split(const EngineFacts& engine);
// The pipeline stages of the engine; 1 if it has none.
uint32_t stages_of(const EngineFacts& engine);

// The layers of a pipeline that an engine's rank has.
class LayersOfRank {
 public:
  explicit LayersOfRank(const EngineFacts& engine);
  // False for a name in a layer of other stages. True for all others, also of no layer.
  bool may_have(const std::string& name) const;

 private:
  const EngineFacts& engine_;
  KeyedSet<std::string_view> fronts_;  // layer_front() of its tensors
};

// `whole` with the part of the engine's mp rank. The rules of the engine's model
// (EngineFacts::universal_info) cut it, or `rules` where they fit. Names in layers of other
// pipeline stages are left out; others stay, whether the engine has them or not. The padding of a
// vocabulary is zero. Throws UnsupportedError for engines with experts, and for a parameter that no
// rule cuts. Throws InconsistentError for a part that does not have the engine's shape.
Checkpoint part_of(std::shared_ptr<const Checkpoint> whole, const EngineFacts& engine,
                   const std::vector<TpRule>& rules, const InputFiles& inputs);

}  // namespace dsckpt
