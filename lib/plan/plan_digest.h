// PlanDigest: which plan it is, for a run that goes on another day.
#pragma once

#include "base/sha256.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Equal for plans that write the same outputs out of the same places of their inputs.
Sha256Digest digest_of(const CopyPlan& plan);

}  // namespace dsckpt
