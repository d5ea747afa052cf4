#include "support/zero_checkpoint.h"

namespace dsckpt::test {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
namespace {

constexpr int64_t kElements = 12;

ordered_json wrapper(int64_t ranks, int64_t rank, int64_t first) {
  const int64_t length = kElements / ranks;
  const ordered_json state = {{"step", 4},
                              {"exp_avg", numbers({length}, 100 + rank * length)},
                              {"exp_avg_sq", numbers({length}, 200 + rank * length)}};
  return {{"loss_scaler", {{"cur_scale", 1.0}}},
          {"dynamic_loss_scale", false},
          {"overflow", false},
          {"clip_grad", 1.0},
          {"base_optimizer_state",
           {{"state", {{"0", state}}},
            {"param_groups", ordered_json::array({{{"lr", 0.003}, {"params", {0}}}})}}},
          {"single_partition_of_fp32_groups",
           ordered_json::array({numbers({length}, first + rank * length)})},
          {"zero_stage", 1},
          {"group_paddings", {0}},
          {"partition_count", {ranks}},
          {"ds_version", "0.16.4"}};
}

}  // namespace

ordered_json numbers(std::vector<int64_t> shape, int64_t first, const std::string& dtype) {
  return {{"tensor", std::move(shape)}, {"first", first}, {"dtype", dtype}};
}

ZeroCheckpoint::ZeroCheckpoint(int64_t ranks, int64_t first, const std::string& dtype) {
  files[kModelName] = {
      {"module",
       {{"weight", numbers({8}, first, dtype)}, {"bias", numbers({4}, first + 8, dtype)}}},
      {"buffer_names", ordered_json::array()},
      {"optimizer", nullptr},
      {"param_shapes", ordered_json::array({{{"weight", {8}}, {"bias", {4}}}})},
      {"frozen_param_shapes", nullptr},
      {"shared_params", ordered_json::object()},
      {"frozen_param_fragments", nullptr},
      {"skipped_steps", 1},
      {"global_steps", 5},
      {"global_samples", 40},
      {"dp_world_size", ranks},
      {"mp_world_size", 1},
      {"ds_config", {{"zero_optimization", {{"stage", 1}}}}},
      {"ds_version", "0.16.4"}};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    files[optim_name(rank)] = {{"optimizer_state_dict", wrapper(ranks, rank, first)}};
  }
}

std::string ZeroCheckpoint::optim_name(int64_t rank) {
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
}

std::string ZeroCheckpoint::model_name(int64_t rank) {
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt";
}

// partition_parameters.py: each parameter is partitioned by itself, and `module` has only its name.
void ZeroCheckpoint::make_stage_3(int64_t ranks, int64_t first) {
  ordered_json model = this->model();
  const auto nothing = [&] { return numbers({0}, 0, "bfloat16"); };
  model["module"] = {{"weight", nothing()}, {"bias", nothing()}};
  model["param_shapes"] = ordered_json::array({{{"weight", {8}}}, {{"bias", {4}}}});
  model["dp_world_size"] = ranks;
  model["ds_config"]["zero_optimization"]["stage"] = 3;
  files.clear();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t length = 4 / ranks;
    const auto pieces = [&](int64_t from) {
      return ordered_json::array({numbers({2 * length}, from + rank * 2 * length),
                                  numbers({length}, from + 8 + rank * length)});
    };
    ordered_json states;
    for (const int64_t g : {0, 1}) {
      states[std::to_string(g)] = {{"step", 4},
                                   {"exp_avg", pieces(100).at(static_cast<size_t>(g))},
                                   {"exp_avg_sq", pieces(200).at(static_cast<size_t>(g))}};
    }
    files[model_name(rank)] = model;
    files[optim_name(rank)] = {
        {"optimizer_state_dict",
         {{"zero_stage", 3},
          {"loss_scaler", {{"cur_scale", 1.0}}},
          {"dynamic_loss_scale", false},
          {"overflow", false},
          {"partition_count", ranks},
          {"optimizer_state_dict",
           {{"state", states},
            {"param_groups", ordered_json::array({{{"lr", 0.003}, {"params", {0, 1}}}})}}},
          {"fp32_flat_groups", pieces(first)}}}};
  }
}

void ZeroCheckpoint::write() {
  fs::remove_all(folder());
  for (const auto& [name, content] : files) made_.write(display(name), content.dump());
  for (const auto& [name, bytes] : raw) {
    fs::create_directories((folder() / name).parent_path());
    made_.write_raw(display(name), bytes);
  }
}

VerifyReport ZeroCheckpoint::verify_written(const VerifyOptions& options) const {
  InputFiles inputs;
  Progress progress;
  return dsckpt::verify(inputs, folder(), options, progress);
}

VerifyReport ZeroCheckpoint::verify(const VerifyOptions& options) {
  write();
  return verify_written(options);
}

std::vector<std::string> ZeroCheckpoint::findings() {
  return texts_of(verify());
}

std::vector<std::string> texts_of(const VerifyReport& report) {
  std::vector<std::string> texts;
  const std::string prefix = ZeroCheckpoint::display("");
  for (const Finding& finding : report.findings) {
    const bool inside = finding.file.starts_with(prefix);
    std::string text = to_string(finding.check);
    text += " " + (inside ? finding.file.substr(prefix.size()) : finding.file);
    if (!finding.member.empty()) text += " [" + finding.member + "]";
    if (!finding.tensor.empty()) text += " " + finding.tensor;
    texts.push_back(text + ": " + finding.message);
  }
  return texts;
}

}  // namespace dsckpt::test
