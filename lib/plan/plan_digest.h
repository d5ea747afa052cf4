// PlanDigest: identifies a plan, for a run that resumes later.
#pragma once

#include "base/sha256.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Equal for plans that write the same outputs from the same places of their inputs.
Sha256Digest digest_of(const CopyPlan& plan);

}  // namespace dsckpt
