// Configurations in pickles against Python's json and pickle.
#include "deepspeed/config_pickle.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>

#include "dsckpt/error.h"
#include "support/expect_error.h"
#include "support/saved_config.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using pickle::Document;

Document parse(std::string_view pickle) {
  return Document::parse(as_byte_span(pickle));
}

ordered_json json_of_pickle(std::string_view pickle) {
  const Document document = parse(pickle);
  return json_of(document.root());
}

TEST(ConfigPickle, ReadsThePickledConfigurationAsItWasGiven) {
  size_t compared = 0;
  for (const fs::path& folder : test::cases_in("checkpoints")) {
    SCOPED_TRACE(folder.filename());
    const test::SavedConfig one(folder);
    if (one.facts.at("kind") != "plain") continue;
    EXPECT_EQ(one.ds_config, one.facts.at("ds_config"));
    ++compared;
  }
  EXPECT_GT(compared, 50u);
}

TEST(ConfigPickle, BecomesJsonAsPythonWritesIt) {
  EXPECT_EQ(
      json_of_pickle("(dp0\nVnone\np1\nNsVyes\np2\nI01\nsVno\np3\nI00\nsVint\np4\nI-5\nsVlarge"
                     "\np5\nL4611686018427387904L\nsVreal\np6\nF1.5\nsVtext\np7\nV\\u20ac "
                     "x\np8\nsVtuple\np9\n(I1\nF2.0\ntp10\nsVlist\np11\n(lp12\n(dp13\nVa\np14"
                     "\n(lp15\nsa(tas.")
          .dump(),
      R"({"none":null,"yes":true,"no":false,"int":-5,"large":4611686018427387904,)"
      R"("real":1.5,"text":"€ x","tuple":[1,2.0],"list":[{"a":[]},[]]})");
  // Python's json on keys that are not strings.
  EXPECT_EQ(json_of_pickle(
                "(dp0\nNI0\nsI01\nI1\nsI00\nI2\nsI7\nI3\nsI-8\nI4\nsF1.5\nI5\nsF1e+22\nI6\nsF1e-05"
                "\nI7\nsF1e+16\nI8\nsF1000000000000000.0\nI9\nsF123456789012345.0\nI10\nsF0.0001"
                "\nI11\nsF-2.0\nI12\nsFinf\nI13\nsVs\np1\nI14\nsF9007199254740992.0\nI15\nsF0.1"
                "\nI16\ns.")
                .dump(),
            R"({"null":0,"true":1,"false":2,"7":3,"-8":4,"1.5":5,"1e+22":6,"1e-05":7,"1e+16":8,)"
            R"("1000000000000000.0":9,"123456789012345.0":10,"0.0001":11,"-2.0":12,"Infinity":13,)"
            R"("s":14,"9007199254740992.0":15,"0.1":16})");
}

TEST(ConfigPickle, NamesTheKeyOfWhatJsonCannotHold) {
  EXPECT_ERROR(json_of_pickle("(dp0\nVzero\np1\n(dp2\nVlist\np3\n(lp4\nI1\na(dp5\nVx\np6\n"
                              "L1180591620717411303424L\nsass."),
               UnsupportedError, "zero.list[1].x: is an integer beyond 64 bits");
  EXPECT_ERROR(json_of_pickle("(dp0\nVzero\np1\n(dp2\nVx\np3\nc_codecs\nencode\np4\n(Vab\np5\n"
                              "Vlatin1\np6\ntp7\nRp8\nss."),
               UnsupportedError, "zero.x: is bytes");
  EXPECT_ERROR(
      json_of_pickle("(dp0\nVopt\np1\n(lp2\ncfractions\nFraction\np3\n(I1\nI2\ntp4\nRp5\nas."),
      UnsupportedError, "opt[0]: is object of fractions.Fraction");
  EXPECT_ERROR(json_of_pickle("(dp0\nI1\nI0\nsV1\np1\nI1\ns."), UnsupportedError,
               "1: two keys become this one");
  EXPECT_ERROR(json_of_pickle("(dp0\nVa\np1\n(dp2\n(I1\nI2\ntp3\nI3\nss."), UnsupportedError,
               "a: has a key that is tuple");
}

TEST(ConfigPickle, DoesNotFollowAPickleWithoutEnd) {
  EXPECT_ERROR(json_of_pickle("(dp0\nVa\np1\n(lp2\ng2\nas."), UnsupportedError,
               "nested too deeply");
  // Forty lists, each of which holds the one before twice.
  Document document;
  pickle::Value value = document.list();
  for (int i = 0; i < 40; ++i) value = document.list({value, value});
  EXPECT_ERROR(json_of(value), UnsupportedError, "too many values");
}

TEST(ConfigPickle, GoesBackIntoAPickle) {
  const ordered_json json = ordered_json::parse(
      R"({"b":{"c":[1,-2,2.5,null,true,"x"]},"a":18446744073709551615,"big":9223372036854775807})");
  Document document;
  document.set_root(pickle_of(document, json));
  // pickle.dumps(the same dict, protocol=2) as pickletools shows it, memo left out.
  const pickle::Value root = document.root();
  ASSERT_TRUE(root.is(pickle::Kind::dict));
  EXPECT_EQ(root.as_dict().items.at(0).first.as_string(), "b");
  EXPECT_EQ(root.as_dict().items.at(1).first.as_string(), "a");
  EXPECT_EQ(root.at("a").as_bytes(), std::string(8, '\xff') + '\0');
  EXPECT_TRUE(root.at("big").is(pickle::Kind::integer));
  EXPECT_EQ(root.at("big").as_int(), std::numeric_limits<int64_t>::max());
  const auto list = root.at("b").at("c").as_sequence();
  ASSERT_TRUE(root.at("b").at("c").is(pickle::Kind::list));
  ASSERT_EQ(list.size(), 6u);
  EXPECT_TRUE(list[0].is(pickle::Kind::integer));
  EXPECT_EQ(list[1].as_int(), -2);
  EXPECT_EQ(list[2].as_real(), 2.5);
  EXPECT_TRUE(list[3].is_none());
  EXPECT_TRUE(list[4].is_true());
  EXPECT_EQ(list[5].as_string(), "x");
}

}  // namespace
}  // namespace dsckpt
