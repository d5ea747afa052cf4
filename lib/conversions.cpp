#include "conversions.h"

#include "base/error.h"
#include "convert.h"
#include "reshard.h"
#include "universal.h"

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

}  // namespace

std::vector<Conversion> conversions(InputFiles& inputs, const Checkpoint& checkpoint,
                                    const std::filesystem::path& input) {
  ReshardOptions same_ranks;
  same_ranks.dp = checkpoint.facts().mesh.dp;
  return {
      {"zero-to-fp32", "fp32 weights",
       refusal_of([&] { plan_weights(inputs, checkpoint, WeightsOptions()); })},
      {"to-universal", "a universal checkpoint",
       refusal_of([&] { plan_universal(inputs, checkpoint, UniversalOptions()); })},
      {"reshard", "shards for another number of GPUs",
       refusal_of([&] { plan_reshard(inputs, checkpoint, input, same_ranks, false); })},
  };
}

}  // namespace dsckpt
