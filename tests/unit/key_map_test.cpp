#include "checkpoint/names/key_map.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

TensorSource tensor(Shape shape) {
  return TensorSource::zeros(DType::float32, std::move(shape));
}

// The results of the rules for a tensor called `name`.
std::string renamed_by(KeyMap& map, const std::string& name) {
  const auto changes = map.changes(std::vector{name});
  return changes.at(0).results([](size_t) { return tensor({1}); }).at(0).name;
}

std::string renamed(const std::string& rules, const std::string& name) {
  KeyMap map = KeyMap::parse(rules, "rules");
  return renamed_by(map, name);
}

using Named = std::vector<std::pair<std::string, Shape>>;

// The rules' results for tensors, in the order of their first inputs.
Named made(const std::string& rules, const Named& tensors) {
  KeyMap map = KeyMap::parse(rules, "rules");
  std::vector<std::string> names;
  for (const auto& each : tensors) names.push_back(each.first);
  Named made;
  for (const KeyMap::Change& change : map.changes(names)) {
    for (const ModelTensor& each :
         change.results([&](size_t i) { return tensor(tensors[i].second); })) {
      made.emplace_back(each.name, each.source.shape());
    }
  }
  return made;
}

std::string refusal(const std::string& rules, const Named& tensors) {
  try {
    made(rules, tensors);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(KeyMap, LeavesNamesThatNoRuleFinds) {
  EXPECT_EQ(renamed("^x => y", "a.b"), "a.b");
  EXPECT_EQ(renamed("# nothing\n\n  \t\n", "a"), "a");
}

TEST(KeyMap, ReplacesTheFirstFindOfTheFirstRuleThatFits) {
  EXPECT_EQ(renamed("b => c\nb => d", "abb"), "acb");
  EXPECT_EQ(renamed("^x => y\nb => d\r\n", "ab"), "ad");
  EXPECT_EQ(renamed("^tied_modules\\.embed\\. => embed.", "tied_modules.embed.weight"),
            "embed.weight");
  EXPECT_EQ(renamed("^model\\. =>", "model.a"), "a");
}

TEST(KeyMap, FillsGroupsIn) {
  EXPECT_EQ(renamed("^(\\w+)\\.(\\w+)$ => \\2.\\1", "a.b"), "b.a");
  EXPECT_EQ(renamed("b+ => <\\0>", "abbc"), "a<bb>c");
  EXPECT_EQ(renamed("(x)?b => [\\1]", "ab"), "a[]");
  EXPECT_EQ(renamed("a => \\\\{", "a"), "\\{");
}

TEST(KeyMap, CountsLayersUpAndDown) {
  EXPECT_EQ(renamed("^(\\d+)\\. => layers.{\\1-2}.", "12.w"), "layers.10.w");
  EXPECT_EQ(renamed("^(\\d+)\\. => layers.{\\1+1}.", "9.w"), "layers.10.w");
  EXPECT_EQ(renamed("^(\\d+)\\. => {\\1}", "9.w"), "{9}w");
}

TEST(KeyMap, SaysWhichLineIsWrong) {
  const auto message = [](const std::string& rules) -> std::string {
    try {
      KeyMap::parse(rules, "names.txt");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("a => b\n\noops").find("names.txt:3"), std::string::npos);
  EXPECT_NE(message("( => b").find("names.txt:1"), std::string::npos);
  EXPECT_NE(message("a => \\1").find("\\1"), std::string::npos);
  EXPECT_THROW(renamed("(a) => {\\1-1}", "a"), UsageError);
  EXPECT_THROW(renamed("(\\d) => {\\1-7}", "6"), UsageError);
  EXPECT_THROW(renamed("(\\d+) => {\\1+9}", "9223372036854775807"), UsageError);
}

TEST(KeyMap, NamesRulesThatWereOfNoUse) {
  KeyMap map = KeyMap::parse("a => b\n# c\nx => y\n", "f");
  EXPECT_EQ(renamed_by(map, "a"), "b");
  EXPECT_EQ(map.unused(), std::vector<std::string>{"f:3"});
}

TEST(KeyMap, CutsATensor) {
  const std::string rule = "^(.*)\\.gate_up\\.w$ => \\1.gate.w, \\1.up.w | chunk 0";
  EXPECT_EQ(made(rule, {{"0.gate_up.w", {8, 3}}, {"x", {1}}, {"1.gate_up.w", {4, 3}}}),
            (Named{{"0.gate.w", {4, 3}},
                   {"0.up.w", {4, 3}},
                   {"x", {1}},
                   {"1.gate.w", {2, 3}},
                   {"1.up.w", {2, 3}}}));
  EXPECT_EQ(made("qkv => q, k, v | split 1 4 1 1", {{"a.qkv", {2, 12}}}),
            (Named{{"a.q", {2, 8}}, {"a.k", {2, 2}}, {"a.v", {2, 2}}}));
  EXPECT_EQ(
      made("gate_up => *.gate, *.up | chunk 1 | unstack 0", {{"e.gate_up", {2, 6, 5}}}),
      (Named{{"e.0.gate", {3, 5}}, {"e.1.gate", {3, 5}}, {"e.0.up", {3, 5}}, {"e.1.up", {3, 5}}}));
}

TEST(KeyMap, JoinsTensors) {
  const std::string experts =
      "experts\\.\\d+\\.w1$, experts\\.\\d+\\.w3$ => experts.gate_up | stack 0 | cat 1";
  // Numbers count as such, and patterns in their order.
  Named tensors;
  for (int i = 10; i >= 0; --i) {
    tensors.push_back({"experts." + std::to_string(i) + ".w3", {2, 3}});
    tensors.push_back({"experts." + std::to_string(i) + ".w1", {4, 3}});
  }
  EXPECT_EQ(made(experts, tensors), (Named{{"experts.gate_up", {11, 6, 3}}}));
  EXPECT_EQ(made("q$, k$, v$ => qkv | transpose 0 1 | cat 1",
                 {{"a.k", {1, 2}}, {"a.q", {4, 2}}, {"a.v", {1, 2}}}),
            (Named{{"a.qkv", {2, 6}}}));
}

TEST(KeyMap, RefusesWhatItsOperationsDoNotFit) {
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(refusal("a => b, c | chunk 0", {{"a", {3}}}), "rules:1: of 'b'");
  says(refusal("a => b, c | chunk 1", {{"a", {4}}}), "no dimension 1");
  says(refusal("a => b, c | split 0 1 2", {{"a", {4}}}), "parts of 3 in all");
  says(refusal("w\\d => w | stack 0", {{"w0", {2}}, {"w2", {2}}}), "not numbered from 0 on");
  says(refusal("w\\d => w | stack 0", {{"w1", {2}}, {"w2", {2}}}), "not numbered from 0 on");
  says(refusal("w\\w => w | stack 0", {{"wa", {2}}, {"wb", {2}}}), "not numbered from 0 on");
  says(refusal("w\\d => w | stack 0", {{"w0", {2}}, {"w1", {3}}}), "become one");
  says(refusal("a, b => c | cat 0", {{"a", {2}}}), "there is no 'b' for 'c'");
  says(refusal("a, b => c | stack 0", {{"a", {2}}, {"b", {2}}}), "leave several");
  says(refusal("a => b | halve 0", {}), "'halve 0' is not an operation");
  says(refusal("a => b, c | split 0 1 2 3", {}), "3 parts");
  says(refusal("a => b | unstack 0", {}), "wants a *");
  says(refusal("a => b.* | stack 0", {}), "for the numbers of unstack");
  says(refusal("(a)b, c => \\1 | cat 0", {}), "no group");
}

}  // namespace
}  // namespace dsckpt
