// Finds the layers of each pipeline stage if no file names them. Without ZeRO the optimizers of the
// stages have no names. They have as many parameters, of the same shapes, as the layers of the
// stage.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/pipeline_layers.h"

namespace dsckpt {

struct StageSplit {
  // The parameters of each stage, in the order in which torch walks them: tied layers first.
  // Borrowed from the layers.
  std::vector<std::vector<const PipelineTensor*>> of_stage;
  // False if the optimizers fit no split of the layers, or several: then every parameter is under
  // stage 0, and no state belongs to any.
  bool known = false;
};

// `optimizers` of the stages, those of their first tensor-parallel rank; nullopt if a stage has
// none. A layer that several stages share gets the name of a tied module in `layers`, if
// universal_checkpoint_info or buffers tell its key. A note says if they do not. Sets
// draft.facts.states to StatesTold::no if not `known`. Throws UnsupportedError if masters would be
// lost by that.
StageSplit split_stages(CheckpointDraft& draft,
                        const std::vector<std::optional<Fields>>& optimizers,
                        std::vector<PipelineLayer>& layers,
                        const std::set<std::string>& buffer_names);

}  // namespace dsckpt
