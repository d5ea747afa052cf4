// The report of a job that writes weights.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "job/job_impl.h"
#include "weights/state_files.h"
#include "weights/weights_format.h"

namespace dsckpt {

// {"files": [{"path", "bytes", "state"?, "tensors"?: [{"name", "dtype", "shape", "bytes",
// "alias_of"?}]}], "bytes_read", "bytes_written", "masters": whether there were any (a bool),
// "valueless": [names that no file has values of]}; with SourceOptions::allow_missing also
// {"lost_files": [{"file", "dp_rank", "mp_rank", "why"}], "incomplete": [{"name", "kind", "shape",
// "files": [...]}]}.
class WeightsReport : public JobReport {
 public:
  WeightsReport(WeightsSplit split, std::vector<StateFiles> states)
      : split_(std::move(split)), states_(std::move(states)) {}

  // Adds whether there were masters, and the parameters without values (Checkpoint::valueless).
  void add_facts(bool has_masters, std::vector<std::string> valueless);
  // Adds the lost files, and the parameters that are not written for that reason.
  void add_salvage(const Checkpoint& checkpoint, const std::vector<IncompleteParam>& incomplete);

  // `loads`: the files hold a whole model. `is_adapter`: they hold an adapter. The last words of a
  // run depend on both.
  void set_kind(const WeightsFormat& format, bool loads, bool is_adapter);
  // Rules of the user renamed the tensors, so their model is unknown.
  void set_renamed() { renamed_ = true; }
  // Adds notes on files that transformers will miss.
  void add_missing(std::vector<std::string> notes);

  nlohmann::json json(const Job::Impl& job) const override;
  Listing listing(const Job::Impl& job) const override;
  // The notes of add_missing(), and files of weights that the job has not written. A loader of the
  // folder may take them for the new ones.
  std::vector<std::string> notes_after(const Job::Impl& job,
                                       const std::filesystem::path& output) const override;
  // Reads the config.json in the output.
  std::string next(const Job::Impl& job, const std::filesystem::path& output) const override;

 private:
  WeightsSplit split_;
  std::vector<StateFiles> states_;
  bool has_masters_ = true;
  std::vector<std::string> valueless_;
  std::vector<std::string> missing_;
  std::optional<nlohmann::json> salvage_;  // salvage_json()
  const WeightsFormat* format_ = nullptr;
  bool loads_ = false;
  bool is_adapter_ = false;
  bool renamed_ = false;
};

// Makes the job, whose plan is set, refuse output folders with other weights. The checkpoint's own
// weights of the same run are accepted.
void refuse_other_weights(Job::Impl& job);

// "12 tensors in 1 file"
std::string summary_of(const WeightsSplit& split);

}  // namespace dsckpt
