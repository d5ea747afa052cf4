// The entries of `module`: torch's flat dicts, and Megatron's nested ones
// (state_dict_for_save_checkpoint).
#include "checkpoint/module_entries.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "format/meta_tensor.h"

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::Value;

class ModuleEntriesTest : public testing::Test {
 protected:
  // A tensor without a storage, which is enough of one here.
  Value tensor() { return make_meta_tensor(document_, {DType::float32, {2}, {1}, false}); }

  Value dict(std::vector<std::pair<std::string, Value>> items) {
    const Value made = document_.dict();
    for (auto& [key, value] : items) document_.set_item(made, document_.string(key), value);
    return made;
  }

  static std::vector<std::string> names(const Value& module) {
    std::vector<std::string> found;
    const ModuleEntries entries(module);
    for (const auto& entry : entries.all()) found.push_back(entry.first);
    return found;
  }

  using Names = std::vector<std::string>;
  Document document_;
};

TEST_F(ModuleEntriesTest, AFlatDictIsItsOwn) {
  EXPECT_EQ(names(dict({{"a.b", tensor()}, {"a", tensor()}})), (Names{"a.b", "a"}));
  EXPECT_EQ(names(Value()), Names{});
}

TEST_F(ModuleEntriesTest, DictsOfTensorsAndSuchDictsAreNames) {
  const Value encoder = dict({{"layers.0.weight", tensor()}, {"norm", dict({{"bias", tensor()}})}});
  const Value module = dict({{"model", dict({{"encoder", encoder}})}, {"head", tensor()}});
  EXPECT_EQ(names(module),
            (Names{"model.encoder.layers.0.weight", "model.encoder.norm.bias", "head"}));
  const ModuleEntries entries(module);
  EXPECT_TRUE(entries.is_nested(encoder));
  EXPECT_FALSE(entries.is_nested(module));
  EXPECT_EQ(entries.find("model.encoder.norm.bias").identity(),
            encoder.at("norm").at("bias").identity());
  EXPECT_TRUE(entries.find("model.encoder").is_none());
}

TEST_F(ModuleEntriesTest, OthersStayAsTheyAre) {
  const Value state = dict({{"absmax", tensor()}, {"blocksize", Document::integer(64)}});
  EXPECT_EQ(names(dict({{"w.quant_state", state}})), Names{"w.quant_state"});
  EXPECT_EQ(names(dict({{"a", dict({{"b", dict({{"c", Document::integer(1)}})}})}})), Names{"a"});
  EXPECT_EQ(names(dict({{"m._extra_state", dict({{"x", tensor()}})}})), Names{"m._extra_state"});
}

TEST_F(ModuleEntriesTest, WhatIsThereTwiceOrInItselfIsAnEntry) {
  const Value shared = dict({{"w", tensor()}});
  EXPECT_EQ(names(dict({{"a", shared}, {"b", shared}})), (Names{"a", "b"}));
  const Value circle = dict({{"w", tensor()}});
  document_.set_item(circle, document_.string("again"), circle);
  EXPECT_EQ(names(dict({{"a", circle}})), Names{"a"});
  // 2^60 names, if each dict were looked into as often as it is there.
  Value deep = dict({{"w", tensor()}});
  for (int i = 0; i < 60; ++i) deep = dict({{"l", deep}, {"r", deep}});
  EXPECT_EQ(names(dict({{"a", deep}})), Names{"a"});
}

}  // namespace
}  // namespace dsckpt
