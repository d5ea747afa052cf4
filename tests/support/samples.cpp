#include "support/samples.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace dsckpt::test {
namespace {

using nlohmann::json;

json read_samples(const std::string& name) {
  const std::string path = std::string(DSCKPT_TESTDATA) + "/samples/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return json::parse(file);
}

std::string text(const json& sample, const char* key) {
  return sample.at(key).get<std::string>();
}

std::string from_hex(const json& value) {
  const auto& digits = value.get_ref<const std::string&>();
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string bytes(const json& sample, const char* key) {
  return from_hex(sample.at(key));
}

std::vector<BadSample> bad_samples(const json& list) {
  std::vector<BadSample> samples;
  for (const json& each : list) {
    samples.push_back({text(each, "python"), bytes(each, "pickle"), text(each, "error"),
                       text(each, "error_text"), text(each, "shape")});
  }
  return samples;
}

std::vector<PickleSample> read_pickle_samples() {
  std::vector<PickleSample> samples;
  for (const json& each : read_samples("pickles.json")) {
    PickleSample& made =
        samples.emplace_back(PickleSample{text(each, "python"), text(each, "shown"), {}});
    for (size_t i = 0; i < made.pickles.size(); ++i) {
      made.pickles[i] = from_hex(each.at("pickles").at(i));
    }
  }
  return samples;
}

TpRuleSamples read_tp_rule_samples() {
  const json all = read_samples("tp_rules.json");
  TpRuleSamples samples;
  for (const json& each : all.at("rules")) {
    samples.rules.push_back({text(each, "title"), bytes(each, "info"), text(each, "name"),
                             text(each, "slices"), text(each, "merged"), text(each, "form"),
                             text(each, "unused"), text(each, "error"), text(each, "error_text")});
  }
  for (const json& each : all.at("placements")) {
    samples.placements.push_back(
        {bytes(each, "placement"), bytes(each, "map"), text(each, "slices"), text(each, "merged")});
  }
  samples.malformed_infos = bad_samples(all.at("malformed_infos"));
  samples.bad_assemblies = bad_samples(all.at("bad_assemblies"));
  samples.bad_placements = bad_samples(all.at("bad_placements"));
  return samples;
}

}  // namespace

const std::vector<PickleSample>& pickle_samples() {
  static const std::vector<PickleSample> kSamples = read_pickle_samples();
  return kSamples;
}

const TpRuleSamples& tp_rule_samples() {
  static const TpRuleSamples kSamples = read_tp_rule_samples();
  return kSamples;
}

}  // namespace dsckpt::test
