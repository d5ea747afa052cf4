#include "job/key_map.h"

#include <gtest/gtest.h>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

std::string renamed(const std::string& rules, const std::string& name) {
  return KeyMap::parse(rules, "rules").rename(name);
}

TEST(KeyMap, LeavesNamesThatNoRuleFinds) {
  EXPECT_EQ(KeyMap().rename("a.b"), "a.b");
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
  EXPECT_EQ(map.rename("a"), "b");
  EXPECT_EQ(map.unused(), std::vector<std::string>{"f:3"});
}

}  // namespace
}  // namespace dsckpt
