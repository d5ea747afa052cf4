// StagingSinks: the sinks of portions at one place, in a folder or in an object store.
#pragma once

#include <memory>

#include "exec/staged_files.h"
#include "exec/staging_sink.h"
#include "plan/plan_part.h"

namespace dsckpt {

class StagingSinks {
 public:
  virtual ~StagingSinks() = default;
  // The sink of a portion's outputs, which may borrow the part. One thread at a time. Throws
  // IoError, and UsageError for a folder that leads elsewhere.
  virtual std::unique_ptr<StagingSink> of(const PlanPart& part) = 0;
};

// Throws as StagingPlace::open() and far_place_called().
std::unique_ptr<StagingSinks> sinks_at(const StagingPlace& place);

}  // namespace dsckpt
