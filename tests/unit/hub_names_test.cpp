#include "checkpoint/names/hub_names.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/names/conversion.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using Json = nlohmann::json;

// A class with a list of experts that is one tensor in the module, and with parts.
// Lines as in rules.jsonl.
const std::string& rules() {
  static const std::string lines = [] {
    const Json rows = Json::parse(R"json([
      ["release", "transformers", "5.0.0"],
      ["rules", "moe", [
        {"save": {"from": ["mlp.experts.fused"],
                  "to": ["mlp.experts.*.gate.weight", "mlp.experts.*.up.weight"],
                  "do": [["chunk", 1], ["unstack", 0]]},
         "load": {"from": ["mlp.experts.*.gate.weight", "mlp.experts.*.up.weight"],
                  "to": ["mlp.experts.fused"], "do": [["stack", 0], ["cat", 1]]}},
        {"save": {"from": [".mlp."], "to": [".block."]},
         "load": {"from": [".block."], "to": [".mlp."]}}]],
      ["rules", "alike", "tower"],
      ["rules", "tower", [
        {"save": {"from": ["(q|k)_proj"], "to": ["attn.\\1"]},
         "load": {"from": ["attn.(q|k)"], "to": ["\\1_proj"]}}]],
      ["rules", "odd", [{"unknown": "Weird"}]],
      ["model", "MoeModel",
       {"type": "moe", "base": "model", "tops": ["model", "head"], "uses": [[null, "moe"]]}],
      ["model", "OneWayModel",
       {"type": "moe", "base": "model", "tops": ["model"], "uses": [[null, "moe"]],
        "one_way": true}],
      ["model", "OddModel",
       {"type": "odd", "base": "model", "tops": ["model"], "uses": [[null, "odd"]]}],
      ["model", "TowerModel",
       {"type": "tower", "base": "", "tops": ["layers", "head"], "nested": ["layers.head"],
        "uses": [[null, "tower"]]}],
      ["model", "PairModel",
       {"type": "pair", "base": "model", "tops": ["model"], "uses": [["tower", "alike"]],
        "parts": {"tower_config": ["model.tower", "tower"]}}],
      ["model", "PlainModel", null],
      ["model", "OtherTower", null],
      ["base", "tower", "TowerModel"],
      ["base", "other_tower", "OtherTower"],
      ["base", "moe", "MoeModel"]])json");
    std::string text = "\n";
    for (const Json& row : rows) {
      text += "[" + row[0].dump() + ", " + row[1].dump() + ", " + row[2].dump() + "]\n";
    }
    return text;
  }();
  return lines;
}

HubNames names_of(const std::string& model, const std::string& more = "") {
  return {
      "{\"architectures\": [\"" + model + "\"], \"transformers_version\": \"5.2.0\"" + more + "}",
      false, rules()};
}

TensorSource tensor(Shape shape, FileId file = 0) {
  const auto bytes = static_cast<uint64_t>(numel(shape)) * 4;
  return TensorSource::stored({file, 0, bytes}, DType::float32, std::move(shape));
}

std::vector<std::string> names_in(const std::vector<RenamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const RenamedTensor& each : tensors) names.push_back(each.name);
  return names;
}

// The bytes of a tensor in file 0, as [begin, end) in order.
std::vector<std::pair<uint64_t, uint64_t>> bytes_of(const TensorSource& source) {
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  source.lower([&](const SourceRun& run) {
    for (uint64_t row = 0; row < run.rows; ++row) {
      const uint64_t begin = run.source.begin_of(row);
      const uint64_t end = begin + run.source.row_bytes;
      if (!runs.empty() && runs.back().second == begin) {
        runs.back().second = end;
      } else {
        runs.emplace_back(begin, end);
      }
    }
  });
  return runs;
}

TEST(HubNames, CutsStackedExpertsAndRenamesWhatComesOut) {
  const HubNames names = names_of("MoeModel");
  ASSERT_EQ(names.known(), HubNames::Known::rules);
  const std::vector<ModelTensor> module{{"model.a.mlp.experts.fused", tensor({2, 4, 3})},
                                        {"model.a.mlp.gate.weight", tensor({5})},
                                        {"head.weight", tensor({1})}};
  const std::vector<RenamedTensor> hub = names.to_hub(module);
  EXPECT_EQ(names_in(hub),
            (std::vector<std::string>{
                "model.a.block.experts.0.gate.weight", "model.a.block.experts.1.gate.weight",
                "model.a.block.experts.0.up.weight", "model.a.block.experts.1.up.weight",
                "model.a.block.gate.weight", "head.weight"}));
  EXPECT_EQ(hub[1].source.shape(), (Shape{2, 3}));
  EXPECT_EQ(bytes_of(hub[1].source), (std::vector<std::pair<uint64_t, uint64_t>>{{48, 72}}));
  EXPECT_EQ(bytes_of(hub[2].source), (std::vector<std::pair<uint64_t, uint64_t>>{{24, 48}}));
  EXPECT_EQ(hub[2].inputs, (std::vector<size_t>{0}));
  EXPECT_EQ(hub[2].part, 2U);
}

TEST(HubNames, StacksMoreThanTenExpertsByTheirNumbers) {
  std::vector<ModelTensor> hub;
  for (FileId i = 0; i < 11; ++i) {
    for (const char* half : {"gate", "up"}) {
      hub.push_back({"model.a.block.experts." + std::to_string(i) + "." + half + ".weight",
                     tensor({1, 2}, i * 2 + (half[0] == 'u'))});
    }
  }
  const auto module = names_of("MoeModel").to_module(hub, {});
  ASSERT_TRUE(module);
  ASSERT_EQ(names_in(*module), (std::vector<std::string>{"model.a.mlp.experts.fused"}));
  EXPECT_EQ(module->front().source.shape(), (Shape{11, 2, 2}));
  std::vector<FileId> order;
  module->front().source.lower([&](const SourceRun& run) {
    for (const Rows& rows : run.sources()) order.push_back(rows.file);
  });
  for (FileId i = 0; i < 22; ++i) EXPECT_EQ(order.at(i), i);
}

TEST(HubNames, LeavesNamesOfTheModuleAndWhatDoesNotComeBack) {
  const HubNames names = names_of("MoeModel");
  const std::vector<ModelTensor> module{{"model.a.mlp.experts.fused", tensor({2, 4, 3})}};
  EXPECT_FALSE(names.to_module(module, {}));
  // The second of three experts is not there: they would come back by other numbers.
  std::vector<ModelTensor> lacking;
  for (const char* number : {"0", "2"}) {
    for (const char* half : {"gate", "up"}) {
      lacking.push_back({std::string("model.a.block.experts.") + number + "." + half + ".weight",
                         tensor({1, 2})});
    }
  }
  EXPECT_FALSE(names.to_module(lacking, {}));
}

TEST(HubNames, KeepsANameThatTheModuleHas) {
  const HubNames names = names_of("OneWayModel");
  const std::vector<ModelTensor> hub{{"model.block.a", tensor({1})},
                                     {"model.x.block.a", tensor({1})}};
  EXPECT_FALSE(names.to_module(hub, {}));
  const Shape shape{1};
  const std::set<std::string> has{"model.block.a", "model.x.mlp.a"};
  const auto module = names.to_module(
      hub, [&](const std::string& name) { return has.contains(name) ? &shape : nullptr; });
  ASSERT_TRUE(module);
  EXPECT_EQ(names_in(*module), (std::vector<std::string>{"model.block.a", "model.x.mlp.a"}));
}

TEST(HubNames, RefusesWhatTheRulesDoNotFit) {
  const HubNames names = names_of("MoeModel");
  const auto message_of = [&](const std::vector<ModelTensor>& tensors, bool to_hub) {
    try {
      to_hub ? (void)names.to_hub(tensors) : (void)names.to_module(tensors, {});
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message_of({{"m.mlp.experts.fused", tensor({2, 3, 4})}}, true)
                .find("m.mlp.experts.fused: the rule of its name does not fit: dimension 1 of "),
            std::string::npos);
  EXPECT_NE(message_of({{"m.mlp.experts.fused", tensor({4})}}, true).find("no dimension 1"),
            std::string::npos);
  const TensorSource repeated =
      TensorSource::stored({0, 0, 4}, DType::float32, {int64_t{1} << 40, 2}, {0, 0});
  EXPECT_NE(message_of({{"m.mlp.experts.fused", repeated}}, true).find("it is a list of "),
            std::string::npos);
  EXPECT_NE(message_of({{"m.block.experts.0.gate.weight", tensor({1, 2})}}, false)
                .find("is not among the tensors"),
            std::string::npos);
  EXPECT_NE(message_of({{"m.block.experts.0.gate.weight", tensor({1, 2})},
                        {"m.block.experts.1.gate.weight", tensor({1, 3})},
                        {"m.block.experts.0.up.weight", tensor({1, 2})}},
                       false)
                .find("become one"),
            std::string::npos);
  EXPECT_NE(message_of({{"m.mlp.a", tensor({1})}, {"m.block.a", tensor({1})}}, true)
                .find("would be called 'm.block.a', as "),
            std::string::npos);
}

TEST(HubNames, KnowsWhatThereIsToKnow) {
  EXPECT_EQ(names_of("PlainModel").known(), HubNames::Known::same);
  EXPECT_EQ(names_of("Unheard").known(), HubNames::Known::unknown);
  EXPECT_EQ(names_of("OddModel").known(), HubNames::Known::no);
  EXPECT_NE(names_of("OddModel").why_not().find("Weird"), std::string::npos);
  EXPECT_EQ(names_of("MoeModel", ", \"auto_map\": {}").known(), HubNames::Known::no);
  const std::string old = R"({"architectures": ["MoeModel"], "transformers_version": "4.57.1"})";
  EXPECT_EQ(HubNames(old, false, rules()).known(), HubNames::Known::older);
  EXPECT_EQ(HubNames(old, true, rules()).known(), HubNames::Known::rules);
  for (const char* text : {"", "[]", "{", "{\"architectures\": []}", "{\"architectures\": 3}"}) {
    EXPECT_EQ(HubNames(text, true, rules()).known(), HubNames::Known::no) << text;
  }
  const HubNames names = names_of("MoeModel");
  EXPECT_EQ(names.foreign_name(std::vector<ModelTensor>{{"model.a", tensor({1})}}), nullptr);
  const std::vector<ModelTensor> wrapped{{"base_model.model.a", tensor({1})}};
  EXPECT_EQ(*names.foreign_name(wrapped), "base_model.model.a");
  const std::vector<ModelTensor> inner{{"model.a", tensor({1})}, {"model.head.a", tensor({1})}};
  EXPECT_EQ(*names.foreign_name(inner), "model.head.a");
  const std::vector<ModelTensor> nested{{"layers.head", tensor({1})}, {"head", tensor({1})}};
  EXPECT_EQ(names_of("TowerModel").foreign_name(nested), nullptr);
}

TEST(HubNames, RulesOfAPartCountBelowItAndAreThoseOfItsType) {
  const std::vector<ModelTensor> module{{"model.tower.q_proj", tensor({1})},
                                        {"model.other.q_proj", tensor({1})}};
  EXPECT_EQ(names_in(names_of("PairModel").to_hub(module)),
            (std::vector<std::string>{"model.tower.attn.q", "model.other.q_proj"}));
  const auto with_part = [](const std::string& type) {
    return names_of("PairModel", ", \"tower_config\": {\"model_type\": \"" + type + "\"}");
  };
  EXPECT_EQ(with_part("other_tower").known(), HubNames::Known::same);
  EXPECT_EQ(with_part("unheard").known(), HubNames::Known::no);
  const std::vector<ModelTensor> other{{"model.tower.mlp.a", tensor({1})}};
  EXPECT_EQ(names_in(with_part("moe").to_hub(other)),
            (std::vector<std::string>{"model.tower.mlp.a"}));
  const std::vector<ModelTensor> deeper{{"model.tower.x.mlp.a", tensor({1})}};
  EXPECT_EQ(names_in(with_part("moe").to_hub(deeper)),
            (std::vector<std::string>{"model.tower.x.block.a"}));
}

// The numbers of a tensor's elements, in order, for one in a single piece.
std::vector<uint64_t> elements_of(const TensorSource& source) {
  std::vector<uint64_t> elements;
  source.lower([&](const SourceRun& run) {
    for (uint64_t row = 0; row < run.rows; ++row) {
      if (run.combine == Combine::interleave) {
        for (const Rows& column : run.operands) {
          for (uint64_t at = 0; at < column.row_bytes; at += 4) {
            elements.push_back((column.begin_of(row) + at) / 4);
          }
        }
        continue;
      }
      for (uint64_t at = 0; at < run.source.row_bytes; at += 4) {
        elements.push_back((run.source.begin_of(row) + at) / 4);
      }
    }
  });
  return elements;
}

// The same elements in pieces.
TensorSource in_pieces(const Shape& shape) {
  const int64_t count = numel(shape);
  const TensorSource whole = tensor({count + 1});
  // A gap behind the first half, so that it is not a single run.
  return TensorSource::cat(
             0, {whole.narrow(0, 0, count / 2), whole.narrow(0, count / 2 + 1, count - count / 2)})
      .view(shape);
}

TEST(HubNames, PermutesWhatLiesInOnePieceAndWhatLiesInFew) {
  const std::vector<std::string> one{"a"};
  const Json config{{"num_attention_heads", 2}};
  const ConversionContext context{.from = one, .to = one, .config = config};
  const auto result = [&](const Json& operation, const TensorSource& source) {
    return elements_of(convert(operation, {{"a", {source}}}, context).front().second.front());
  };
  const Json rope{"rope", "", false, Json::array()};
  // torch: arange(8).view(2, 2, 2, 1).transpose(1, 2).reshape(8)
  const std::vector<uint64_t> permuted{0, 2, 1, 3, 4, 6, 5, 7};
  EXPECT_EQ(result(rope, tensor({8, 1})), permuted);
  std::vector<uint64_t> shifted = permuted;
  for (uint64_t& element : shifted) element += element >= 4 ? 1 : 0;
  EXPECT_EQ(result(rope, in_pieces({8, 1})), shifted);
  // torch: arange(6).view(3, 2).T
  EXPECT_EQ(result({"transpose", 0, 1}, tensor({3, 2})), (std::vector<uint64_t>{0, 2, 4, 1, 3, 5}));
  // torch: arange(6).reshape(3, 2).transpose(0, 1).reshape(6), and back
  EXPECT_EQ(result({"interleave", 0, false}, tensor({6})),
            (std::vector<uint64_t>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(result({"interleave", 0, true}, tensor({6})),
            (std::vector<uint64_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_THROW(result({"transpose", 0, 1}, in_pieces({128, 64})), UnsupportedError);
}

}  // namespace
}  // namespace dsckpt
