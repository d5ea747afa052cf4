#include "job/job_impl.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/text.h"

namespace dsckpt {

std::string JobReport::next(const Job::Impl&, const std::filesystem::path&) const {
  return "";
}

std::vector<std::string> JobReport::notes_after(const Job::Impl&,
                                                const std::filesystem::path&) const {
  return {};
}

Job::Job(Impl impl) : impl_(std::make_shared<const Impl>(std::move(impl))) {}

const std::vector<std::string>& Job::notes() const {
  return impl_->notes;
}

const std::vector<std::string>& Job::left_out() const {
  return impl_->left_out;
}

std::vector<JobFile> Job::files() const {
  std::vector<JobFile> files;
  for (const PlannedFile& file : impl_->plan.outputs()) files.push_back({file.path, file.size});
  return files;
}

uint64_t Job::bytes_read() const {
  return impl_->plan.bytes_read();
}

uint64_t Job::bytes_written() const {
  return impl_->plan.bytes_written();
}

std::string Job::json() const {
  return dump(job_json(*impl_));
}

Job::Impl job_of(const Source& source) {
  const Checkpoint& checkpoint = *source->checkpoint;
  Job::Impl job{.inputs = source->inputs,
                .plan = {},
                .checkpoint = source->checkpoint,
                .place = place_beside(source)};
  for (const LostFile& file : checkpoint.lost_files()) {
    job.notes.push_back(file.display + ": " + file.why);
  }
  job.notes.insert(job.notes.end(), source->notes.begin(), source->notes.end());
  job.notes.insert(job.notes.end(), checkpoint.notes().begin(), checkpoint.notes().end());
  return job;
}

void set_plan(Job::Impl& job, PlanBuilder& plan) {
  job.plan = plan.finish();
  job.plan.validate(planned_inputs(*job.inputs));
}

void put_text(PlanBuilder& plan, std::string path, std::string_view text) {
  const OutputId out = plan.add_output(std::move(path), text.size());
  plan.put_literal(out, 0, text);
}

nlohmann::json plan_json(const CopyPlan& plan) {
  nlohmann::json files = nlohmann::json::array();
  for (const PlannedFile& file : plan.outputs()) {
    files.push_back({{"path", file.path}, {"bytes", file.size}});
  }
  return {{"files", std::move(files)},
          {"bytes_read", plan.bytes_read()},
          {"bytes_written", plan.bytes_written()}};
}

std::string plan_totals(const CopyPlan& plan) {
  return counted(plan.outputs().size(), "file") + ", reads " + human_bytes(plan.bytes_read()) +
         ", writes " + human_bytes(plan.bytes_written());
}

nlohmann::json facts_json(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  nlohmann::json out = {{"layout", facts.layout},
                        {"zero_stage", facts.zero_stage},
                        {"tag", facts.tag},
                        {"folder", checkpoint.tag_folder().string()},
                        {"optimizer_wrapper", std::string(to_string(facts.optimizer_wrapper))},
                        {"ds_version", facts.ds_version},
                        {"mesh",
                         {{"pp", facts.mesh.pp},
                          {"tp", facts.mesh.tp},
                          {"dp", facts.mesh.dp},
                          {"ep", facts.mesh.ep}}}};
  for (const AveragedCheckpoint& part : checkpoint.averaged()) {
    const CheckpointFacts& its = part.checkpoint->facts();
    out["averaged"].push_back(
        {{"folder", part.checkpoint->tag_folder().string()},
         {"tag", its.tag},
         {"global_steps", its.global_steps ? nlohmann::json(*its.global_steps) : nlohmann::json()},
         {"weight", part.weight}});
  }
  out["global_steps"] = facts.global_steps ? nlohmann::json(*facts.global_steps) : nlohmann::json();
  return out;
}

nlohmann::json salvage_json(const Checkpoint& checkpoint,
                            const std::vector<IncompleteParam>& incomplete) {
  nlohmann::json out = {{"lost_files", nlohmann::json::array()},
                        {"incomplete", nlohmann::json::array()}};
  for (const LostFile& file : checkpoint.lost_files()) {
    out["lost_files"].push_back({{"file", file.display},
                                 {"dp_rank", file.name.dp_rank},
                                 {"mp_rank", file.name.mp_rank},
                                 {"why", file.why}});
  }
  for (const IncompleteParam& param : incomplete) {
    nlohmann::json files = nlohmann::json::array();
    for (const size_t file : param.lost) files.push_back(checkpoint.lost_files()[file].display);
    out["incomplete"].push_back({{"name", param.name},
                                 {"kind", to_string(param.kind)},
                                 {"shape", param.shape},
                                 {"files", std::move(files)}});
  }
  return out;
}

nlohmann::json job_json(const Job::Impl& job) {
  nlohmann::json data = job.report->json(job);
  if (job.checkpoint != nullptr) data["checkpoint"] = facts_json(*job.checkpoint);
  return data;
}

}  // namespace dsckpt
