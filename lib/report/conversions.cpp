#include "report/conversions.h"

#include <algorithm>

#include "base/error.h"
#include "reshard/plan_reshard.h"
#include "universal/plan_universal.h"
#include "weights/plan_weights.h"

namespace dsckpt {
namespace {

template <typename Plan>
std::string refusal_of(const Plan& plan) {
  try {
    plan();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::io) throw;
    return error.message();
  }
  return "";
}

// Every rank's files are made in the same way: planning those of some tells as much as all.
uint32_t ranks_to_try(const Mesh& mesh) {
  constexpr uint32_t kEnough = 16;
  const uint32_t ep = std::max<uint32_t>(mesh.ep, 1);
  return mesh.dp <= kEnough ? mesh.dp : ep * std::max<uint32_t>(kEnough / ep, 1);
}

}  // namespace

std::vector<Conversion> conversions(InputFiles& inputs, const Checkpoint& checkpoint,
                                    const std::filesystem::path& input) {
  ReshardOptions some_ranks;
  some_ranks.dp = ranks_to_try(checkpoint.facts().mesh);
  return {
      {"zero-to-fp32", "fp32 weights",
       refusal_of([&] { plan_weights(inputs, checkpoint, WeightsOptions()); })},
      {"to-universal", "a universal checkpoint",
       refusal_of([&] { plan_universal(inputs, checkpoint, UniversalOptions()); })},
      {"reshard", "shards for another number of GPUs",
       refusal_of([&] { plan_reshard(inputs, checkpoint, input, some_ranks, false); })},
  };
}

}  // namespace dsckpt
