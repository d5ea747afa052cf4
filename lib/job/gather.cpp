#include "job/gather.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/executor.h"
#include "format/checked_records.h"

namespace dsckpt {
namespace {

class MemorySink final : public Sink {
 public:
  explicit MemorySink(std::span<const std::span<std::byte>> outs) : outs_(outs) {}

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), outs_[out].begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void finish(OutputId) override {}

 private:
  std::span<const std::span<std::byte>> outs_;
};

// Returns the files that `plan` reads, with the parts that it reads.
std::map<FileId, std::vector<Extent>> parts_read(const CopyPlan& plan) {
  std::map<FileId, std::vector<Extent>> parts;
  for (const CopyItem& item : plan.items()) {
    plan.for_each_source(item, [&](const Rows& rows, uint64_t count) {
      parts[rows.file].push_back(rows.span(count));
    });
  }
  return parts;
}

// Returns the records that the plan reads whole. It reads some bytes of all `records`.
std::vector<InputRecord> read_whole(const CopyPlan& plan, std::vector<InputRecord> records) {
  std::map<FileId, std::vector<Extent>> parts = parts_read(plan);
  for (auto& [file, extents] : parts) {
    std::sort(extents.begin(), extents.end(),
              [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    std::vector<Extent> joined;
    for (const Extent& part : extents) {
      if (joined.empty() || part.offset > joined.back().end()) joined.push_back(part);
      joined.back().size = std::max(joined.back().end(), part.end()) - joined.back().offset;
    }
    extents = std::move(joined);
  }
  std::erase_if(records, [&](const InputRecord& record) {
    const std::vector<Extent>& extents = parts[record.extent.file];
    const auto part = std::partition_point(extents.begin(), extents.end(), [&](const Extent& each) {
      return each.end() < record.extent.end();
    });
    return part == extents.end() || part->offset > record.extent.offset;
  });
  return records;
}

}  // namespace

std::vector<PlannedInput> planned_inputs(const InputFiles& inputs) {
  std::vector<PlannedInput> planned;
  for (FileId id = 0; id < inputs.size(); ++id) {
    planned.push_back({inputs[id].display(), inputs[id].size()});
  }
  return planned;
}

CopyPlan plan_gather(std::span<const TensorSource> sources) {
  PlanBuilder builder;
  for (const TensorSource& source : sources) {
    const auto index = static_cast<size_t>(&source - sources.data());
    builder.put(builder.add_output(std::to_string(index), source.nbytes()), 0, source);
  }
  return builder.finish();
}

void gather(const CopyPlan& plan, const InputFiles& inputs,
            std::span<const std::span<std::byte>> outs, std::vector<InputRecord> records,
            Progress& progress) {
  plan.validate(planned_inputs(inputs));
  for (size_t i = 0; i < plan.outputs().size(); ++i) {
    if (outs[i].size() == plan.outputs()[i].size) continue;
    throw UsageError("a buffer of " + counted(outs[i].size(), "byte") + " for a tensor of " +
                     std::to_string(plan.outputs()[i].size));
  }
  std::set<FileId> files;
  for (const auto& [file, parts] : parts_read(plan)) files.insert(file);
  for (const InputRecord& record : records) files.insert(record.extent.file);
  MemorySink sink(outs);
  execute(plan, inputs, sink, progress, {.records = std::move(records), .check_all_records = true});
  for (const FileId file : files) inputs[file].check_unchanged();
}

void gather_checked(const CopyPlan& plan, const InputFiles& inputs,
                    std::span<const std::span<std::byte>> outs, bool all, CheckedRecords& checked,
                    Progress& progress) {
  std::vector<InputRecord> records = checked.unchecked(plan, inputs);
  if (!all) records = read_whole(plan, std::move(records));
  gather(plan, inputs, outs, records, progress);
  checked.add(records);
}

void check_records(const InputFiles& inputs, const TensorSource& tensor, Progress& progress) {
  CheckedRecords().check(inputs, tensor, progress);
}

void CheckedRecords::check(const InputFiles& inputs, const TensorSource& tensor,
                           Progress& progress) {
  const std::vector<InputRecord> records = unchecked(plan_gather({&tensor, 1}), inputs);
  gather(CopyPlan(), inputs, {}, records, progress);
  add(records);
}

std::vector<InputRecord> CheckedRecords::unchecked(const CopyPlan& plan, const InputFiles& inputs) {
  std::vector<InputRecord> found;
  const std::lock_guard lock(mutex_);
  for (auto& [file, parts] : parts_read(plan)) {
    auto known = records_.find(file);
    if (known == records_.end()) {
      std::vector<InputRecord> records = all_records(inputs, {file});
      std::sort(records.begin(), records.end(), [](const InputRecord& a, const InputRecord& b) {
        return a.extent.offset < b.extent.offset;
      });
      known = records_.emplace(file, std::move(records)).first;
    }
    std::sort(parts.begin(), parts.end(),
              [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    const std::vector<InputRecord>& records = known->second;
    auto next = records.begin();
    for (const Extent& part : parts) {
      next = std::partition_point(next, records.end(), [&](const InputRecord& record) {
        return record.extent.end() <= part.offset;
      });
      for (; next != records.end() && next->extent.offset < part.end(); ++next) {
        if (!checked_.contains({file, next->extent.offset})) found.push_back(*next);
      }
    }
  }
  return found;
}

void CheckedRecords::add(std::span<const InputRecord> records) {
  const std::lock_guard lock(mutex_);
  for (const InputRecord& record : records) {
    checked_.emplace(record.extent.file, record.extent.offset);
  }
}

}  // namespace dsckpt
