// Tensors into memory, as a plan whose outputs are the callers' buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "dsckpt/run.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// The inputs that plans are validated against.
std::vector<PlannedInput> planned_inputs(const InputFiles& inputs);

// Output number i of it is sources[i], row-major.
CopyPlan plan_gather(std::span<const TensorSource> sources);

// Runs the plan: outs[i] takes output i, and has its size. `records` are checked whole. Throws what
// execute() throws, and IoError if an input was written to since it was opened.
void gather(const CopyPlan& plan, const InputFiles& inputs,
            std::span<const std::span<std::byte>> outs, std::vector<InputRecord> records,
            Progress& progress);

// Checks the records that any byte of `tensor` lies in, all of each. Throws as gather() does.
void check_records(const InputFiles& inputs, const TensorSource& tensor, Progress& progress);

// Which records have been compared with their checksums, so that each is once. Any thread.
class CheckedRecords {
 public:
  // Those that `plan` reads any byte of and that are not known to be right. Throws as all_records()
  // does.
  std::vector<InputRecord> unchecked(const CopyPlan& plan, const InputFiles& inputs);
  void add(std::span<const InputRecord> records);
  // check_records(), of those that are not known to be right.
  void check(const InputFiles& inputs, const TensorSource& tensor, Progress& progress);

 private:
  std::mutex mutex_;
  std::map<FileId, std::vector<InputRecord>> records_;  // of a file, by offset
  std::set<std::pair<FileId, uint64_t>> checked_;       // by offset
};

// As gather(), and checks the records that the plan reads whole. With `all`, checks each record
// that it reads a byte of, if `checked` does not have it.
void gather_checked(const CopyPlan& plan, const InputFiles& inputs,
                    std::span<const std::span<std::byte>> outs, bool all, CheckedRecords& checked,
                    Progress& progress);

}  // namespace dsckpt
