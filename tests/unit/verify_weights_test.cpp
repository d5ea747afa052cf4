// Weights in several files: huggingface_hub's index says which tensor is in which file, and how
// many bytes all of them have.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::HandMade;
using test::numbers;
using Texts = std::vector<std::string>;

constexpr const char* kFile1 = "model-00001-of-00002.safetensors";
constexpr const char* kFile2 = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// a [2] and b [3] of float32 in the first file, c [4] in the second one.
class VerifyWeights : public testing::Test {
 protected:
  VerifyReport verify() {
    for (const auto& [name, content] : files_) made_.write_safetensors(name, content.dump());
    if (!index_.is_null()) made_.write_raw(kIndex, index_.dump());
    InputFiles inputs;
    Progress progress;
    return dsckpt::verify(inputs, made_.folder(), {}, progress);
  }
  Texts findings() { return test::texts_of(verify()); }
  CheckDone done() { return verify().checks[static_cast<size_t>(Check::index)]; }

  HandMade made_;
  std::map<std::string, ordered_json> files_{
      {kFile1, {{"a", numbers({2}, 1)}, {"b", numbers({3}, 3)}}},
      {kFile2, {{"c", numbers({4}, 6)}}}};
  ordered_json index_{{"metadata", {{"total_size", 36}}},
                      {"weight_map", {{"a", kFile1}, {"b", kFile1}, {"c", kFile2}}}};
};

TEST_F(VerifyWeights, NothingIsWrongWithAnIndexOfItsFiles) {
  const VerifyReport report = verify();
  EXPECT_EQ(report.form, "weights");
  EXPECT_EQ(test::texts_of(report), Texts());
  EXPECT_TRUE(report.checks[static_cast<size_t>(Check::index)].done);
}

TEST_F(VerifyWeights, WithoutAnIndexThereIsNothingToCompare) {
  index_ = nullptr;
  EXPECT_EQ(findings(), Texts());
  EXPECT_FALSE(done().done);
  EXPECT_EQ(done().why, "there is none");
}

// The size is that of what is not there, too.
TEST_F(VerifyWeights, AFileThatTheIndexNamesIsThere) {
  files_.erase(kFile2);
  EXPECT_EQ(findings(), (Texts{std::string("missing ") + kFile2 +
                               " c: is not there, but the index has tensors in it"}));
  EXPECT_TRUE(done().done);
  EXPECT_EQ(done().why, "total_size, since the files lack tensors of the index");
}

TEST_F(VerifyWeights, AFileThatTheIndexDoesNotNameIsLeftOfAnotherExport) {
  files_["model-00003-of-00003.safetensors"] = {{"a", numbers({2}, 1)}};
  files_["adapter_model.safetensors"] = {
      {"a", numbers({2}, 1)}};  // no file of a model that was split
  EXPECT_EQ(findings(), (Texts{"extra model-00003-of-00003.safetensors: is not in the index; "
                               "perhaps it is left over from another export"}));
}

TEST_F(VerifyWeights, ATensorIsInTheFileThatTheIndexSays) {
  index_["weight_map"]["b"] = kFile2;
  EXPECT_EQ(findings(), (Texts{std::string("index ") + kIndex + " b: is in " + kFile1 +
                               ", not in " + kFile2 + ", where the index has it"}));
}

TEST_F(VerifyWeights, ATensorThatTheIndexHasIsThere) {
  files_[kFile1].erase("b");
  EXPECT_EQ(findings(), (Texts{std::string("index ") + kIndex + " b: is not in " + kFile1 +
                               ", where the index has it"}));
}

TEST_F(VerifyWeights, ATensorThatIsThereIsInTheIndex) {
  index_["weight_map"].erase("b");
  EXPECT_EQ(findings(), (Texts{std::string("index ") + kIndex + " b: is in " + kFile1 +
                               ", but not in the index"}));
}

TEST_F(VerifyWeights, ATensorIsInOneFileOnly) {
  files_[kFile2]["a"] = numbers({2}, 1);
  index_["metadata"]["total_size"] = 44;
  EXPECT_EQ(findings(), (Texts{std::string("index ") + kFile2 + " a: is in " + kFile1 + " too"}));
}

TEST_F(VerifyWeights, TheTensorsHaveTheSizeThatTheIndexSaysIfItDoes) {
  index_["metadata"]["total_size"] = 35;
  EXPECT_EQ(findings(), (Texts{std::string("index ") + kIndex +
                               " [metadata.total_size]: total_size is 35, the tensors have 36 "
                               "bytes"}));
  index_.erase("metadata");
  EXPECT_EQ(findings(), Texts());
}

// Writers of indices do the one or the other.
TEST_F(VerifyWeights, TiedTensorsCountOnceOrEach) {
  constexpr const char* kBin = "model-00001-of-00001.bin";
  files_.clear();
  made_.write(kBin, R"({"a": {"tensor": [3], "storage": "s"}, "b": {"tensor": [3], "storage": "s"},
                        "c": {"tensor": [2]}})");
  index_["weight_map"] = {{"a", kBin}, {"b", kBin}, {"c", kBin}};
  for (const int64_t size : {20, 32}) {
    index_["metadata"]["total_size"] = size;
    EXPECT_EQ(findings(), Texts());
  }
  index_["metadata"]["total_size"] = 24;
  EXPECT_EQ(findings(), (Texts{std::string("index ") + kIndex +
                               " [metadata.total_size]: total_size is 24, the tensors have 20 "
                               "bytes"}));
}

TEST_F(VerifyWeights, OfAFileThatCannotBeReadNothingElseIsSaid) {
  files_.erase(kFile2);
  made_.write_raw(kFile2, "no tensors");
  const Texts texts = findings();
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_TRUE(texts[0].starts_with(std::string("unreadable ") + kFile2)) << texts[0];
}

TEST_F(VerifyWeights, AnIndexHasAMap) {
  index_ = {{"metadata", {{"total_size", 36}}}};
  EXPECT_EQ(findings(), (Texts{std::string("index ") + kIndex +
                               ": is not an index: it has no object \"weight_map\""}));
}

}  // namespace
}  // namespace dsckpt
