#include "report/report.h"

#include <nlohmann/json.hpp>

namespace dsckpt {
using nlohmann::json;
namespace {

json kinds_json(const std::vector<BytesOfKind>& kinds) {
  json out = json::array();
  for (const BytesOfKind& kind : kinds) {
    out.push_back({{"kind", kind.kind}, {"bytes", kind.bytes}, {"stored", kind.stored}});
  }
  return out;
}

}  // namespace

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
  if (!tensor.lost.empty()) out["lost_in_part"] = true;
  if (tensor.state.empty() && contents.checkpoint() != nullptr) {
    const Param* const param = contents.checkpoint()->find(tensor.name);
    if (param != nullptr && !param->states.empty()) {
      if (const std::optional<double> step = step_of(*param)) out["step"] = *step;
    }
  }
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
  json grid = json::array();
  for (const GridRank& rank : summary.grid) {
    grid.push_back({{"pp_rank", rank.stage},
                    {"tp_rank", rank.tp_rank},
                    {"params", rank.params},
                    {"elements", rank.elements},
                    {"layers", rank.layers}});
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
          {"grid", std::move(grid)},
          {"other_files", std::move(others)}};
}

json memory_json(const Hardware& hardware, const std::vector<MemoryEstimate>& estimates,
                 const Checkpoint* checkpoint) {
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
    if (checkpoint != nullptr && is_of_run(estimate, *checkpoint)) entry["of_this_run"] = true;
    out["estimates"].push_back(std::move(entry));
  }
  return out;
}

json done_json(json plan, const std::string& output, const RunStats& stats) {
  plan["output"] = output;
  plan["seconds"] = stats.seconds;
  plan["bytes_read"] = stats.bytes_read;
  plan["bytes_stored"] = stats.bytes_stored;
  plan["bytes_verified"] = stats.bytes_verified;
  plan["bytes_kept"] = stats.bytes_kept;
  plan["records_checked"] = stats.records_checked;
  plan["records_unchecked"] = stats.records_unchecked;
  plan["bytes_without_checksum"] = stats.bytes_without_checksum;
  for (const RankStats& rank : stats.ranks) {
    plan["ranks"].push_back(
        {{"host", rank.host}, {"bytes_read", rank.bytes_read}, {"bytes_done", rank.bytes_done}});
  }
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

}  // namespace dsckpt
