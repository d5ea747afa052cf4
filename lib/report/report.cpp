#include "report/report.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace dsckpt {
using nlohmann::json;
namespace {

json files_json(const CopyPlan& plan) {
  json files = json::array();
  for (const PlannedFile& file : plan.outputs()) {
    files.push_back({{"path", file.path}, {"bytes", file.size}});
  }
  return files;
}

json kinds_json(const std::vector<BytesOfKind>& kinds) {
  json out = json::array();
  for (const BytesOfKind& kind : kinds) {
    out.push_back({{"kind", kind.kind}, {"bytes", kind.bytes}, {"stored", kind.stored}});
  }
  return out;
}

}  // namespace

std::string printable(const std::string& text, Newlines newlines) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte >= 0x20 && byte != 0x7f) || (c == '\n' && newlines == Newlines::keep)) {
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += std::string("\\x") + kHex[byte >> 4] + kHex[byte & 15];
    }
  }
  return out;
}

std::string human_bytes(uint64_t bytes) {
  constexpr std::array kUnits{"B", "KB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text.data();
}

std::string human_percent(double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", part * 100);
  return text;
}

std::string human_seconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f s", seconds);
  return text.data();
}

json facts_json(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  json out = {{"layout", facts.layout},
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
  out["global_steps"] = facts.global_steps ? json(*facts.global_steps) : json();
  return out;
}

json tensor_json(const InputFiles& inputs, const Contents& contents, const NamedTensor& tensor) {
  const std::vector<FileId> files = files_with(tensor.value);
  json out = {{"name", tensor.name},
              {"dtype", torch_name(tensor.value.dtype())},
              {"shape", tensor.value.shape()},
              {"bytes", tensor.value.nbytes()},
              {"files", json::array()}};
  for (const FileId file : files) out["files"].push_back(inputs[file].display());
  for (const ShardName& rank : ranks_of(inputs, contents, files)) {
    out["ranks"].push_back({{"dp_rank", rank.dp_rank}, {"mp_rank", rank.mp_rank}});
  }
  if (!tensor.state.empty()) out["state"] = tensor.state;
  if (tensor.kind) out["kind"] = to_string(*tensor.kind);
  if (!tensor.alias_of.empty()) out["alias_of"] = tensor.alias_of;
  return out;
}

json extent_json(const InputFiles& inputs, const TensorExtent& extent) {
  json out = {{"file", inputs[extent.file].display()},
              {"offset", extent.offset},
              {"row_bytes", extent.row_bytes},
              {"rows", extent.rows},
              {"stride", extent.stride},
              {"first", extent.first},
              {"row_elements", extent.row_elements},
              {"step", extent.step},
              {"dtype", torch_name(extent.stored)},
              {"copy", extent.copy},
              {"mean", extent.mean}};
  if (!extent.record.empty()) out["record"] = extent.record;
  if (extent.rank && extent.rank->kind != ShardName::Kind::universal) {
    out["dp_rank"] = extent.rank->dp_rank;
    out["mp_rank"] = extent.rank->mp_rank;
  }
  return out;
}

json summary_json(const Summary& summary) {
  json counts = json::object();
  for (const auto& [kind, count] : summary.counts) {
    counts[kind] = {{"tensors", count.tensors}, {"elements", count.elements}};
  }
  json ranks = json::array();
  for (const RankShare& share : summary.ranks) {
    ranks.push_back({{"dp_rank", share.dp},
                     {"mp_rank", share.mp},
                     {"bytes", share.bytes},
                     {"kinds", kinds_json(share.kinds)}});
  }
  json others = json::array();
  for (const auto& [file, bytes] : summary.other_files) {
    others.push_back({{"file", file}, {"bytes", bytes}});
  }
  return {{"precision", summary.precision},
          {"optimizer", summary.optimizer},
          {"counts", std::move(counts)},
          {"tied", summary.tied},
          {"parameters", summary.parameters()},
          {"largest_layer", summary.largest_layer},
          {"files", summary.files},
          {"bytes", summary.bytes},
          {"stored", summary.stored},
          {"kinds", kinds_json(summary.kinds)},
          {"ranks", std::move(ranks)},
          {"other_files", std::move(others)}};
}

json memory_json(const Hardware& hardware, const std::vector<MemoryEstimate>& estimates) {
  json out = {{"gpus", hardware.nodes * hardware.gpus_per_node},
              {"gpus_per_node", hardware.gpus_per_node},
              {"estimates", json::array()}};
  for (const MemoryEstimate& estimate : estimates) {
    json entry = {{"stage", estimate.stage},
                  {"offload", estimate.offload},
                  {"gpu_bytes", estimate.gpu_bytes},
                  {"gpu_formula", estimate.gpu_formula}};
    if (!estimate.cpu_formula.empty()) {
      entry["cpu_bytes"] = estimate.cpu_bytes;
      entry["cpu_formula"] = estimate.cpu_formula;
    }
    out["estimates"].push_back(std::move(entry));
  }
  return out;
}

namespace {

// Adds the tensors of the file in question, if it is one of `split`.
void describe_tensors(json& entry, const WeightsSplit& split, const std::string& path) {
  for (const WeightsSplit::File& weights : split.files) {
    if (weights.path != path) continue;
    json tensors = json::array();
    for (const OutputTensor& tensor : weights.tensors) {
      json described = {{"name", tensor.name},
                        {"dtype", torch_name(tensor.source.dtype())},
                        {"shape", tensor.source.shape()},
                        {"bytes", tensor.source.nbytes()}};
      if (!tensor.alias_of.empty()) described["alias_of"] = tensor.alias_of;
      tensors.push_back(std::move(described));
    }
    entry["tensors"] = std::move(tensors);
  }
}

}  // namespace

json plan_json(const WeightsPlan& plan) {
  json files = json::array();
  for (const PlannedFile& file : plan.plan.outputs()) {
    json entry = {{"path", file.path}, {"bytes", file.size}};
    describe_tensors(entry, plan.split, file.path);
    for (const WeightsPlan::State& state : plan.states) {
      const bool is_in = entry.contains("tensors");
      describe_tensors(entry, state.split, file.path);
      if (!is_in && entry.contains("tensors")) entry["state"] = state.key;
    }
    files.push_back(std::move(entry));
  }
  return {{"files", std::move(files)},
          {"bytes_read", plan.plan.bytes_read()},
          {"bytes_written", plan.plan.bytes_written()}};
}

json salvage_json(const Checkpoint& checkpoint, const WeightsPlan& plan) {
  json lost = json::array();
  for (const LostFile& file : checkpoint.lost_files()) {
    lost.push_back({{"file", file.display},
                    {"dp_rank", file.name.dp_rank},
                    {"mp_rank", file.name.mp_rank},
                    {"why", file.why}});
  }
  json incomplete = json::array();
  for (const IncompleteParam& param : plan.incomplete) {
    json files = json::array();
    for (const size_t file : param.lost) files.push_back(checkpoint.lost_files()[file].display);
    incomplete.push_back({{"name", param.name},
                          {"kind", to_string(param.kind)},
                          {"shape", param.shape},
                          {"files", std::move(files)}});
  }
  return {{"lost_files", std::move(lost)}, {"incomplete", std::move(incomplete)}};
}

json plan_json(const UniversalPlan& plan) {
  json parameters = json::array();
  for (const UniversalPlan::Entry& entry : plan.entries) {
    parameters.push_back({{"name", entry.name}, {"shape", entry.shape}, {"files", entry.files}});
  }
  return {{"parameters", std::move(parameters)},
          {"files", files_json(plan.plan)},
          {"bytes_read", plan.plan.bytes_read()},
          {"bytes_written", plan.plan.bytes_written()}};
}

json plan_json(const ReshardPlan& plan) {
  json groups = json::array();
  for (const ReshardedGroup& group : plan.groups) {
    groups.push_back({{"mp_rank", group.mp_rank},
                      {"ep", group.ep},
                      {"params", group.params},
                      {"numel", group.numel},
                      {"partition", group.partition},
                      {"sub_groups", group.sub_groups}});
  }
  json out = {{"dp", plan.target.dp},
              {"ep", plan.target.ep},
              {"zero_stage", plan.target.stage},
              {"optimizer_wrapper", std::string(to_string(plan.target.wrapper))},
              {"tag", plan.tag},
              {"groups", std::move(groups)},
              {"files", files_json(plan.plan)},
              {"bytes_read", plan.plan.bytes_read()},
              {"bytes_written", plan.plan.bytes_written()}};
  if (plan.batch) out["batch"] = json_of(*plan.batch);
  return out;
}

json plan_json(const StripPlan& plan) {
  json files = json::array();
  for (const StrippedFile& file : plan.files) {
    files.push_back({{"path", file.path}, {"before", file.before}, {"after", file.after}});
  }
  return {{"keep", to_string(plan.keep)},
          {"tag", plan.tag},
          {"files", std::move(files)},
          {"bytes_before", plan.bytes_before()},
          {"bytes_after", plan.bytes_after()},
          {"bytes_read", plan.plan.bytes_read()},
          {"bytes_written", plan.plan.bytes_written()}};
}

json done_json(json plan, const std::string& output, const ExecStats& stats) {
  plan["output"] = output;
  plan["seconds"] = stats.seconds;
  plan["bytes_read"] = stats.bytes_read;
  plan["bytes_stored"] = stats.bytes_stored;
  plan["records_checked"] = stats.records_checked;
  return plan;
}

json error_json(const Error& error) {
  json out = {{"kind", to_string(error.kind())}, {"message", error.message()}};
  const Where& where = error.where();
  if (!where.file.empty()) out["file"] = where.file;
  if (!where.member.empty()) out["member"] = where.member;
  if (!where.tensor.empty()) out["tensor"] = where.tensor;
  if (where.offset) out["offset"] = *where.offset;
  if (error.errno_value() != 0) out["errno"] = error.errno_value();
  if (!error.hint().empty()) out["hint"] = error.hint();
  return out;
}

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace dsckpt
