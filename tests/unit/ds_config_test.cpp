// Files of configurations, and the values that Hugging Face fills in.
#include "deepspeed/ds_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "dsckpt/error.h"
#include "support/expect_error.h"
#include "support/saved_config.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using pickle::Document;

class File {
 public:
  explicit File(std::string_view text) : path_(folder_.write("ds_config.json", text)) {}
  ordered_json load() const { return load_ds_config(path_); }

 private:
  test::TempFolder folder_;
  fs::path path_;
};

TEST(DsConfig, FillsHuggingFacesAutosFromTheCheckpoint) {
  const fs::path folder = fs::path(DSCKPT_TESTDATA) / "checkpoints" / "hf_trainer_llama_z1_bf16_w3";
  const test::SavedConfig one(folder);
  const ordered_json& file = one.facts.at("ds_config");
  EXPECT_EQ(engine_config(file).train_batch_size, std::nullopt);
  const ordered_json filled = with_autos_from(file, one.ds_config);
  EXPECT_EQ(engine_config(filled), one.config);
  EXPECT_EQ(filled["optimizer"]["params"]["betas"], ordered_json({0.9, 0.999}));
  EXPECT_EQ(filled.dump().find("auto\""), std::string::npos) << filled;

  EXPECT_EQ(with_autos_from({{"a", "auto"}, {"b", {{"c", "auto"}}}}, {{"b", 1}}),
            ordered_json({{"a", "auto"}, {"b", {{"c", "auto"}}}}));
}

TEST(DsConfig, KeepsAnInfinityInThePickleButWritesNoneIntoAFile) {
  const test::SavedConfig one(fs::path(DSCKPT_TESTDATA) / "checkpoints" /
                              "hf_trainer_gpt2_z2_bf16_w2");
  Document document;
  const pickle::Value back = pickle_of(document, one.ds_config);
  EXPECT_TRUE(std::isinf(back.at("steps_per_print").as_real()));
  EXPECT_EQ(ordered_json::parse(ds_config_text(one.ds_config))["steps_per_print"], nullptr);

  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_ERROR(ds_config_text({{"a", {1, {{"b", -infinity}}}}}), UnsupportedError,
               "a[1].b: is -Infinity");
  EXPECT_ERROR(ds_config_text({{"steps_per_print", std::nan("")}}), UnsupportedError,
               "steps_per_print: is NaN");
  EXPECT_ERROR(ds_config_text({{"a", "\xed\xa0\x80"}}), UnsupportedError, "a: is not UTF-8");
  EXPECT_ERROR(ds_config_text({{"\xff", 1}}), UnsupportedError, "a key that is not UTF-8");
}

TEST(DsConfig, ReadsFilesWithComments) {
  EXPECT_EQ(
      File("{\"b\": 1, // one\n \"a\": {\"x\": [1e9, /* two */ \"t\", [], {}]}}\n").load().dump(),
      R"({"b":1,"a":{"x":[1000000000.0,"t",[],{}]}})");
  EXPECT_EQ(File("\xef\xbb\xbf{}").load(), ordered_json::object());
}

TEST(DsConfig, SaysWhereAFileIsNotJson) {
  EXPECT_ERROR(File("{\"a\": 1,\n \"b\": }").load(), UsageError,
               "ds_config.json: line 2, column 7: syntax error");
  EXPECT_ERROR(File("{\"a\": NaN}").load(), UsageError, "line 1, column 7: ");
  EXPECT_ERROR(File("").load(), UsageError, "line 1, column 1: ");
  EXPECT_ERROR(File("{} {}").load(), UsageError, "line 1, column 4: ");
  EXPECT_ERROR(File("{\"a\": 1e999}").load(), UsageError, "line 1, column ");
  EXPECT_ERROR(File("[1]").load(), UsageError, "is not an object");
  EXPECT_ERROR(File(std::string(200, '[')).load(), UsageError, "nested too deeply");
  EXPECT_ERROR(load_ds_config("/nonexistent/ds_config.json"), IoError, "ds_config.json");
}

TEST(DsConfig, RefusesKeysThatComeTwice) {
  EXPECT_ERROR(File(R"({"a": 1, "b": {"a": 2}, "a": 3})").load(), UsageError,
               "the key a appears twice");
  EXPECT_ERROR(File(R"({"zero_optimization": {"stage": 1, "stage": 2}})").load(), UsageError,
               "the key zero_optimization.stage appears twice");
  EXPECT_ERROR(File(R"({"l": [0, {"x": 1, "x": 2}]})").load(), UsageError,
               "the key l[1].x appears twice");
}

TEST(DsConfig, RefusesFilesThatAreTooLong) {
  EXPECT_ERROR(File("{}" + std::string((16 << 20) - 1, ' ')).load(), UsageError, "too long");
}

}  // namespace
}  // namespace dsckpt
