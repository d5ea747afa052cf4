// A file of torch.save around a pickle.
#pragma once

#include <string>
#include <utility>

#include "format/zip.h"
#include "plan/copy_plan.h"
#include "support/plan_runner.h"

namespace dsckpt {

// `pickle` as data.pkl; a zip is taken as it is.
inline std::string archive_of(std::string pickle) {
  if (pickle.starts_with("PK\3\4")) return pickle;
  ZipLayout zip("archive");
  zip.add("data.pkl", std::move(pickle));
  zip.add("version", "3\n");
  PlanBuilder plan;
  std::move(zip).lay_out(plan, "archive");
  return test::run_plan(plan.finish(), InputFiles()).front();
}

}  // namespace dsckpt
