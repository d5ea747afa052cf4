#include "report/conversions.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>

#include "base/text.h"
#include "dsckpt/dcp.h"
#include "dsckpt/error.h"
#include "dsckpt/reshard.h"
#include "dsckpt/universal.h"
#include "dsckpt/weights.h"
#include "io/far_files.h"
#include "job/source.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

std::string refusal_of(const std::function<void()>& plan) {
  try {
    plan();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::io) throw;
    return error.message();
  }
  return "";
}

// The files of all ranks are made in the same way: a plan for some of them fails if a plan for all
// would.
uint32_t ranks_to_try(const Mesh& mesh) {
  constexpr uint32_t kEnough = 16;
  const uint32_t ep = std::max<uint32_t>(mesh.ep, 1);
  return mesh.dp <= kEnough ? mesh.dp : ep * std::max<uint32_t>(kEnough / ep, 1);
}

}  // namespace

std::vector<Conversion> conversions(const Source& source) {
  const Checkpoint& checkpoint = *source->checkpoint;
  const ReshardOptions some_ranks{.dp = ranks_to_try(checkpoint.facts().mesh)};
  struct Way {
    const char* tool;
    const char* result;
    std::function<void()> plan;
    std::string arguments;
  };
  const std::string shown = shown_path(source->path);
  const std::string path = " " + shell_word(shown) + " ";
  std::error_code failed;
  const bool is_file = fs::is_regular_file(source->path, failed);
  const fs::path universal =
      (is_file ? fs::path(shown).parent_path() : fs::path(shown)) / "universal";
  const std::array<Way, 4> ways{
      {{"zero-to-fp32", "fp32 weights", [&] { plan_weights(source); }, path + "OUTPUT"},
       {"to-universal", "a universal checkpoint", [&] { plan_universal(source); },
        path + shell_word(universal.string())},
       {"reshard", "shards for another number of GPUs", [&] { plan_reshard(source, some_ranks); },
        path + "OUTPUT --dp GPUS"},
       {"to-dcp", "a checkpoint for FSDP2", [&] { plan_dcp(source); }, path + "OUTPUT --dp GPUS"}}};
  std::vector<Conversion> found;
  if (checkpoint.lost_files().empty()) {
    for (const Way& way : ways) {
      found.push_back({way.tool, way.result, refusal_of(way.plan), way.tool + way.arguments});
    }
    return found;
  }
  const LostFile& lost = checkpoint.lost_files().front();
  const std::string why = lost.display + ": " + lost.why;
  for (const Way& way : ways) found.push_back({way.tool, way.result, why});
  found.front().refusal +=
      "; with --allow-missing " + std::to_string(checkpoint.params().size()) + " of " +
      counted(checkpoint.params().size() + checkpoint.incomplete().size(), "tensor");
  return found;
}

}  // namespace dsckpt
