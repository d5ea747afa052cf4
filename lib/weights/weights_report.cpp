#include "weights/weights_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "io/content_name.h"
#include "io/input_file.h"
#include "job/next_step.h"
#include "weights/model_config.h"
#include "weights/state_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

json tensors_json(const WeightsSplit::File& file) {
  json tensors = json::array();
  for (const OutputTensor& tensor : file.tensors) {
    json described = {{"name", tensor.name},
                      {"dtype", torch_name(tensor.source.dtype())},
                      {"shape", tensor.source.shape()},
                      {"bytes", tensor.source.nbytes()}};
    if (!tensor.alias_of.empty()) described["alias_of"] = tensor.alias_of;
    tensors.push_back(std::move(described));
  }
  return tensors;
}

}  // namespace

void WeightsReport::add_facts(bool has_masters, std::vector<std::string> valueless) {
  has_masters_ = has_masters;
  valueless_ = std::move(valueless);
}

void WeightsReport::add_salvage(const Checkpoint& checkpoint,
                                const std::vector<IncompleteParam>& incomplete) {
  salvage_ = salvage_json(checkpoint, incomplete);
}

nlohmann::json WeightsReport::json(const Job::Impl& job) const {
  struct Described {
    const WeightsSplit::File* file;
    const std::string* state;  // nullptr for weights
  };
  std::map<std::string, Described> described;
  for (const WeightsSplit::File& file : split_.files) described[file.path] = {&file, nullptr};
  for (const StateFiles& state : states_) {
    for (const WeightsSplit::File& file : state.split.files) {
      described[file.path] = {&file, &state.key};
    }
  }
  nlohmann::json out = plan_json(job.plan);
  for (nlohmann::json& entry : out["files"]) {
    const auto found = described.find(entry["path"].get<std::string>());
    if (found == described.end()) continue;
    entry["tensors"] = tensors_json(*found->second.file);
    if (found->second.state != nullptr) entry["state"] = *found->second.state;
  }
  out["masters"] = has_masters_;
  out["valueless"] = valueless_;
  if (!salvage_) return out;
  out.update(*salvage_);
  return out;
}

Listing WeightsReport::listing(const Job::Impl& job) const {
  Listing listing;
  for (const WeightsSplit::File& file : split_.files) {
    for (const OutputTensor& tensor : file.tensors) {
      listing.rows.push_back({file.path, printable(tensor.name),
                              std::string(torch_name(tensor.source.dtype())),
                              to_text(tensor.source.shape())});
      if (!tensor.alias_of.empty())
        listing.rows.back().push_back("= " + printable(tensor.alias_of));
    }
  }
  for (const StateFiles& state : states_) {
    for (const WeightsSplit::File& file : state.split.files) {
      listing.rows.push_back({file.path, counted(file.tensors.size(), "tensor")});
    }
  }
  for (const PlannedFile& file : job.plan.outputs()) {
    listing.below.push_back(file.path + ": " + human_bytes(file.size));
  }
  listing.below.push_back("reads " + human_bytes(job.plan.bytes_read()) + ", writes " +
                          human_bytes(job.plan.bytes_written()));
  return listing;
}

namespace {

std::set<std::string> paths_of(const CopyPlan& plan) {
  std::set<std::string> paths;
  for (const PlannedFile& file : plan.outputs()) paths.insert(file.path);
  return paths;
}

// Returns files of weights and states in the folder `output` that are not in `written`.
std::vector<std::string> other_weights(const std::set<std::string>& written,
                                       const fs::path& output) {
  std::vector<std::string> names;
  for (const fs::path& folder : {fs::path(), fs::path(kStatesFolder)}) {
    std::error_code failed;
    // The target of a link does not belong to the output.
    if (!folder.empty() && fs::is_symlink(output / folder, failed)) continue;
    fs::directory_iterator it(output / folder, failed);
    for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
      const std::string name = content_path(it->path()).filename().string();
      const std::string path = (folder / name).string();
      if (written.contains(path) || (folder.empty() && !is_weights_file(name))) continue;
      names.push_back(path);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void refuse_other_weights(Job::Impl& job) {
  job.place.others = [named = job.checkpoint->folder().named,
                      written = paths_of(job.plan)](const fs::path& output) {
    std::error_code failed;
    if (fs::equivalent(named, output, failed)) return std::vector<std::string>();
    return other_weights(written, output);
  };
}

std::vector<std::string> WeightsReport::notes_after(const Job::Impl& job,
                                                    const fs::path& output) const {
  std::vector<std::string> notes = missing_;
  for (const std::string& name : other_weights(paths_of(job.plan), output)) {
    notes.push_back(name + " of another run stays in " + output.string() +
                    "; a loader may take it for the new weights");
  }
  return notes;
}

namespace {

// Returns the transformers class that loads the folder, if the folder has a model's configuration.
std::optional<std::string> architecture_of(const fs::path& folder) {
  std::error_code failed;
  const fs::path path = folder / "config.json";
  if (!fs::is_regular_file(path, failed)) return std::nullopt;
  const InputFile config(path);
  if (config.size() > InputFile::kMostAtOnce) return std::nullopt;
  const std::vector<std::byte> bytes = config.read(0, config.size());
  if (!names_model(as_text(bytes))) return std::nullopt;
  return architecture_in_config(as_text(bytes));
}

}  // namespace

std::string WeightsReport::next(const Job::Impl&, const fs::path& output) const {
  const std::string folder = python_text(output.string());
  if (is_adapter_) return "PeftModel.from_pretrained(model, " + folder + ")";
  if (!loads_ || salvage_) return "";
  if (const auto architecture = architecture_of(output); architecture && !renamed_) {
    return *architecture + ".from_pretrained(" + folder + ")";
  }
  if (split_.files.size() > 1) return "accelerate.load_checkpoint_in_model(model, " + folder + ")";
  const std::string file = python_text((output / split_.files.front().path).string());
  if (format_ == &kSafetensors) return "safetensors.torch.load_model(model, " + file + ")";
  return "model.load_state_dict(torch.load(" + file + "))";
}

void WeightsReport::set_kind(const WeightsFormat& format, bool loads, bool is_adapter) {
  format_ = &format;
  loads_ = loads;
  is_adapter_ = is_adapter;
}

void WeightsReport::add_missing(std::vector<std::string> notes) {
  missing_ = std::move(notes);
}

std::string summary_of(const WeightsSplit& split) {
  size_t tensors = 0;
  for (const WeightsSplit::File& file : split.files) tensors += file.tensors.size();
  const size_t files = split.files.size();
  return counted(tensors, "tensor") + " in " + counted(files, "file");
}

}  // namespace dsckpt
