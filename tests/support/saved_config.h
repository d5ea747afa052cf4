// The configurations of the test checkpoints, with what their writer noted of the live engine.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "deepspeed/config_pickle.h"
#include "deepspeed/engine_config.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "format/torch_archive.h"

namespace dsckpt::test {

// Those in a folder of the test data, by name.
inline std::vector<std::filesystem::path> cases_in(const char* folder) {
  std::vector<std::filesystem::path> cases;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(DSCKPT_TESTDATA) / folder)) {
    if (std::filesystem::exists(entry.path() / "case.json")) cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// One of them.
struct SavedConfig {
  explicit SavedConfig(const std::filesystem::path& folder)
      : facts(nlohmann::ordered_json::parse(std::ifstream(folder / "case.json"))),
        load_dir(folder / facts.at("load_dir").get<std::string>()),
        ds_config(read_ds_config()),
        config(engine_config(ds_config)) {}

  std::string class_of(const char* which) const {
    const std::string name = facts.at("optimizer_classes").at(which);
    return name.substr(name.rfind('.') + 1);
  }

  nlohmann::ordered_json facts;
  std::filesystem::path load_dir;
  nlohmann::ordered_json ds_config;
  EngineConfig config;

 private:
  nlohmann::ordered_json read_ds_config() const {
    for (const auto& entry :
         std::filesystem::directory_iterator(load_dir / facts.at("tag").get<std::string>())) {
      const auto name = parse_shard_name(entry.path().filename().string());
      if (!name || (name->kind != ShardName::Kind::model_states &&
                    name->kind != ShardName::Kind::zero_model_states)) {
        continue;
      }
      InputFiles inputs;
      const TorchArchive archive = TorchArchive::open(inputs, inputs.add(entry.path()));
      return json_of(archive.root().at(keys::kDsConfig));
    }
    throw std::runtime_error("there is no model-states file");
  }
};

}  // namespace dsckpt::test
