// The slow, obvious way to run a CopyPlan: an oracle for the executor, and the way format tests get
// their bytes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt::test {

// Validates `plan` and returns the bytes of each of its outputs, digests filled in. One thread, one
// row at a time. A cast is a std::logic_error, operands that must be the same and are not a
// std::runtime_error of their text.
std::vector<std::string> run_plan(const CopyPlan& plan, const InputFiles& inputs);

// Writes each output below `folder`, which must exist.
void run_plan_to(const CopyPlan& plan, const InputFiles& inputs,
                 const std::filesystem::path& folder);

}  // namespace dsckpt::test
