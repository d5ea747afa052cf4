#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dsckpt {
namespace {

using nlohmann::json;

std::string nested(size_t depth, const std::string& open, const std::string& inner,
                   const std::string& close) {
  std::string text;
  for (size_t i = 0; i < depth; ++i) text += open;
  text += inner;
  for (size_t i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(Json, IsReadAsNlohmannReadsIt) {
  for (const std::string text : {"null",
                                 "true",
                                 "-1",
                                 "18446744073709551615",
                                 "18446744073709551616",
                                 "1.5e3",
                                 "1e400",
                                 R"("\ud83d\ude00\n")",
                                 R"("\ud83d")",
                                 "\"\xff\"",
                                 "[]",
                                 "{}",
                                 "[[], {}, [1, [2]], 3]",
                                 R"({"a": {"b": [1, {"c": null}], "d": 2}, "e": [], "f": "x"})",
                                 R"({"a": 1, "a": {}})",
                                 R"({"a": [1], "a": [2, 3], "b": 4})",
                                 "",
                                 " ",
                                 "[",
                                 "[1",
                                 "[1,]",
                                 "{\"a\"}",
                                 "[1] 2",
                                 "]",
                                 "{1: 2}",
                                 "\xef\xbb\xbf[1]",
                                 "nul"}) {
    const json expected = json::parse(text, nullptr, false);
    EXPECT_EQ(parse_json(text).is_discarded(), expected.is_discarded()) << text;
    EXPECT_EQ(parse_json(text).dump(), expected.dump()) << text;
  }
}

TEST(Json, IsReadFromCbor) {
  const json value = json::parse(R"({"a": [1, -2, 1.5, null, "x", {"b": true}], "c": {}})");
  std::string whole;
  json::to_cbor(value, whole);
  EXPECT_EQ(parse_cbor(whole), value);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(parse_cbor(whole.substr(0, size)).is_discarded()) << size;
  }
  EXPECT_TRUE(parse_cbor(whole + "x").is_discarded());
  EXPECT_EQ(parse_cbor("\x43"
                       "abc"),
            json::binary({'a', 'b', 'c'}));
}

TEST(Json, IsRefusedWhereItIsNestedTooDeeply) {
  constexpr size_t kFar = 1'000'000;
  EXPECT_EQ(parse_json(nested(kMaxJsonDepth, "[", "1", "]")).dump(),
            nested(kMaxJsonDepth, "[", "1", "]"));
  EXPECT_FALSE(parse_json(nested(kMaxJsonDepth, R"({"a":)", "1", "}")).is_discarded());
  for (const size_t depth : {kMaxJsonDepth + 1, kFar}) {
    EXPECT_TRUE(parse_json(nested(depth, "[", "1", "]")).is_discarded());
    EXPECT_TRUE(parse_json(nested(depth, R"({"a":)", "1", "}")).is_discarded());
    EXPECT_TRUE(parse_cbor(nested(depth, "\x81", "\x01", "")).is_discarded());
    EXPECT_TRUE(parse_cbor(nested(depth,
                                  "\xa1\x61"
                                  "a",
                                  "\x01", ""))
                    .is_discarded());
    EXPECT_TRUE(parse_cbor(nested(depth, "\x9f", "", "\xff")).is_discarded());
  }
  EXPECT_FALSE(parse_cbor(nested(kMaxJsonDepth, "\x81", "\x01", "")).is_discarded());
}

TEST(Json, OfManyThatAreNotNestedIsRead) {
  EXPECT_EQ(parse_json("[" + nested(10'000, "[],", "[]", "") + "]").size(), 10'001u);
}

}  // namespace
}  // namespace dsckpt
