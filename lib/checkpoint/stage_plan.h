// The layers of each stage of a pipeline of another length. deepspeed/runtime/pipe/module.py
// _partition_layers, runtime/utils.py partition_uniform, partition_balanced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsckpt {

// A layer of the PipelineModule. The ones without parameters and buffers have no files.
struct StageLayer {
  uint64_t numel = 0;     // of its parameters on a rank
  bool is_block = false;  // one of the layers that are alike
  // The stage that it is in now; nullopt if its parameters are in no stage of their own.
  std::optional<uint32_t> stage = {};
};

// The first layer of each stage, rising; the first is 0.
using StageStarts = std::vector<uint32_t>;

// The starts of `stages` stages of `layers`, all layers of the module in their order. The method
// `asked` balances the numbers of layers ("uniform"), of parameters ("parameters"), or of layers
// that are alike ("blocks", `type:transformer`). It may also be a list of the starts, "0,3,5". If
// it is empty, the present stages tell the method. All that would make these have to agree on the
// new ones; `default_method`, if any, is then the only one. Throws UsageError if they do not agree,
// and for lists of other layers.
StageStarts stage_starts(const std::vector<StageLayer>& layers, uint32_t stages,
                         std::string_view asked, std::string_view default_method);

}  // namespace dsckpt
