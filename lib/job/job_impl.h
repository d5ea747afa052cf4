// The inside of a Job: the plan, the parts of the input that are checked, and the output's place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/job.h"
#include "io/input_file.h"
#include "job/listing.h"
#include "job/place.h"
#include "job/source.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// A job's report on itself, made on request: a plan may have a million lines.
class JobReport {
 public:
  virtual ~JobReport() = default;
  // Members of the JSON object that a dry run shows; a run adds its results to them.
  virtual nlohmann::json json(const Job::Impl& job) const = 0;
  // The listing that a dry run prints.
  virtual Listing listing(const Job::Impl& job) const = 0;
  // The text that is printed before either, or "".
  virtual std::string preface() const { return ""; }
  // Notes on the output folder, after a run.
  virtual std::vector<std::string> notes_after(const Job::Impl& job,
                                               const std::filesystem::path& output) const;
  // The user's next step after a run into a local folder: a command, or a line of Python. "" if
  // unknown.
  virtual std::string next(const Job::Impl& job, const std::filesystem::path& output) const;
};

// The SHA-256 of each packable file's content: not looked at, kept in the packed files, or compared
// with what packed input files have kept. Takes a pass of its own over the input.
enum class ContentHash : uint8_t { none, keep, check };

struct Job::Impl {
  std::shared_ptr<const InputFiles> inputs;
  CopyPlan plan;  // valid against `inputs`
  // The checkpoint that the input was opened as; nullptr if it is none.
  std::shared_ptr<const Checkpoint> checkpoint = {};
  // Files whose contents do not matter: those that are unpacked, and unreadable ones that are
  // packed, which a note says. Their records are not checked.
  std::set<FileId> as_they_are = {};

  Place place = {};
  std::vector<std::string> notes = {};
  std::vector<std::string> left_out = {};  // a line each
  std::string what = {};                   // of the summary: "12 tensors in 1 file"
  std::shared_ptr<const JobReport> report = {};

  // For jobs that copy files: the input that each output is a copy of.
  std::vector<FileId> copied = {};
  ContentHash hash = ContentHash::none;
};

// A job of `source`: its inputs and checkpoint are set, and the checkpoint's notes.
Job::Impl job_of(const Source& source);

// Takes the finished plan, which is validated against the job's inputs.
void set_plan(Job::Impl& job, PlanBuilder& plan);

// A file of a few bytes.
void put_text(PlanBuilder& plan, std::string path, std::string_view text);

// {"files": [{"path", "bytes"}], "bytes_read", "bytes_written"}
nlohmann::json plan_json(const CopyPlan& plan);
// "3 files, reads 1.00 GB, writes 1.00 GB"
std::string plan_totals(const CopyPlan& plan);

// {"layout", "zero_stage", "dp", ...}
nlohmann::json facts_json(const Checkpoint& checkpoint);
// {"lost_files": [{"file", "dp_rank", "mp_rank", "why"}], "incomplete": [{"name", "kind", "shape",
// "files"}]} of those of `incomplete`, which `checkpoint` has.
nlohmann::json salvage_json(const Checkpoint& checkpoint,
                            const std::vector<IncompleteParam>& incomplete);
// JobReport::json() with the checkpoint's facts.
nlohmann::json job_json(const Job::Impl& job);

}  // namespace dsckpt
