#include "weights/model_config.h"

#include <gtest/gtest.h>

namespace dsckpt {
namespace {

TEST(ModelConfig, TakesTheTypeOfTheOutermostPartThatNamesOne) {
  EXPECT_EQ(dtype_in_config(R"({"dtype": "bfloat16"})"), DType::bfloat16);
  EXPECT_EQ(dtype_in_config(R"({"torch_dtype": "torch.float16"})"), DType::float16);
  EXPECT_EQ(dtype_in_config(R"({"text_config": {"dtype": "float16"}, "dtype": "float32"})"),
            DType::float32);
  EXPECT_EQ(
      dtype_in_config(R"({"a_config": {"dtype": "float16"}, "b_config": {"dtype": "float32"}})"),
      DType::float16);
}

TEST(ModelConfig, HasNoTypeWhereNoneIsNamed) {
  for (const char* text :
       {"", "{", "null", "[]", R"(["dtype", "float32"])", R"({"dtype": null})",
        R"({"dtype": "auto"})", R"({"dtype": "int"})", R"({"dtype": ["float32"]})",
        R"({"x": {"dtype": "float32"}})", R"([{"dtype": "float32"}])",
        R"({"quantization_config": {"dtype": "float32"}})", R"({"dtype": "float32"} {})",
        "\"float32\""}) {
    EXPECT_EQ(dtype_in_config(text), std::nullopt) << text;
    EXPECT_EQ(config_with_dtype(text, DType::bfloat16), text);
  }
}

TEST(ModelConfig, ChangesTypesAndNoOtherByte) {
  const std::string before =
      "\t{ \"dtype\" :\n\"float32\" ,\"n\":100000000000000000000000,\"f\":1.0e-05, "
      "\"float32\":\"float32\","
      "\"dtype_note\": \"float32\", \"a_config\":{\"torch_dtype\":\"float32\"}, \"dtype\": "
      "\"float16\"}\n";
  const std::string after =
      "\t{ \"dtype\" :\n\"bfloat16\" ,\"n\":100000000000000000000000,\"f\":1.0e-05, "
      "\"float32\":\"float32\",\"dtype_note\": \"float32\", "
      "\"a_config\":{\"torch_dtype\":\"bfloat16\"}, "
      "\"dtype\": \"bfloat16\"}\n";
  EXPECT_EQ(config_with_dtype(before, DType::bfloat16), after);
  EXPECT_EQ(config_with_dtype(after, DType::bfloat16), after);
}

// The place of a type is behind its text. So a text that is written with escapes is not found, and
// nothing before it may be taken for it.
TEST(ModelConfig, LeavesATypeThatIsWrittenWithEscapes) {
  const std::string text = R"({"a": "float32", "dtype": "\u0066loat32"})";
  EXPECT_EQ(dtype_in_config(text), DType::float32);
  EXPECT_EQ(config_with_dtype(text, DType::bfloat16), text);
}

TEST(ModelConfig, SaysThatEmbeddingsAreTiedNoLonger) {
  const ModelChanges untied{.untied = true};
  EXPECT_EQ(config_with_changes(
                R"({"a": {"tie_word_embeddings": true}, "tie_word_embeddings":true})", untied),
            R"({"a": {"tie_word_embeddings": true}, "tie_word_embeddings":false})");
  EXPECT_EQ(config_with_changes(R"({"tie_word_embeddings": false})", untied),
            R"({"tie_word_embeddings": false})");
  EXPECT_EQ(config_with_changes(R"({"text_config": {"n": 1}})", untied),
            "{\n  \"tie_word_embeddings\": false,\"text_config\": "
            "{\n  \"tie_word_embeddings\": false,\"n\": 1}}");
  EXPECT_EQ(config_with_changes("{ }", untied), "{\n  \"tie_word_embeddings\": false }");
  EXPECT_EQ(config_with_changes("[]", untied), std::nullopt);
  EXPECT_EQ(config_with_changes("{", untied), std::nullopt);
}

TEST(ModelConfig, SaysHowManyTokensThereAre) {
  const ModelChanges grown{.vocabulary = ModelChanges::Vocabulary{7, 10}};
  EXPECT_EQ(
      config_with_changes(R"({"x": 7, "vocab_size": 7, "text_config": {"vocab_size": 7}})", grown),
      R"({"x": 7, "vocab_size": 10, "text_config": {"vocab_size": 10}})");
  EXPECT_EQ(config_with_changes(R"({"vocab_size":7})", grown), R"({"vocab_size":10})");
  EXPECT_EQ(config_with_changes(R"({"vocab_size": 8})", grown), std::nullopt);
  EXPECT_EQ(config_with_changes(R"({"vision_config": {"vocab_size": 7}})", grown), std::nullopt);
}

TEST(ModelConfig, OfManyPartsIsChangedInOneGo) {
  const auto config = [](const std::string& type) {
    std::string text = "{";
    for (int i = 0; i < 200'000; ++i) text += R"("_config":{"dtype":")" + type + R"("},)";
    return text + R"("dtype":")" + type + R"("})";
  };
  EXPECT_EQ(config_with_dtype(config("float32"), DType::bfloat16), config("bfloat16"));
}

}  // namespace
}  // namespace dsckpt
