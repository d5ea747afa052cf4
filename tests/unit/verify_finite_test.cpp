// NaN and Inf, which are looked for in every copy of weights, states and buffers, and only if
// asked.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "support/temp_file.h"
#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::HandMade;
using test::numbers;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

const VerifyOptions kFinite{.tag = {}, .finite = true, .manifest = {}, .new_manifest = {}};

ordered_json values(const ordered_json& elements, const std::string& dtype = "float32") {
  return {{"tensor", {elements.size()}}, {"values", elements}, {"dtype", dtype}};
}

// All findings but those of roundings: NaN is not that of a master either.
Texts found(const VerifyReport& report) {
  Texts texts = test::texts_of(report);
  std::erase_if(texts, [](const std::string& text) { return text.starts_with("rounding "); });
  return texts;
}

VerifyReport verify_weights(const HandMade& made) {
  InputFiles inputs;
  Progress progress;
  return verify(inputs, made.folder(), kFinite, progress);
}

float float_at(const std::filesystem::path& path, uint64_t offset) {
  float value = 0;
  std::memcpy(&value, test::read_all(path).data() + offset, sizeof(value));
  return value;
}

// Rank 1 has two of the 12 elements of weight, then bias.
TEST(VerifyFinite, AnElementIsNamedByItsParameterRankAndPlace) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.states(1)["exp_avg"] = values({1, 2, 3, 4, "nan", 6});
  const VerifyReport report = checkpoint.verify(kFinite);
  EXPECT_EQ(test::texts_of(report),
            (Texts{"nonfinite zero_pp_rank_1_mp_rank_00_optim_states.pt "
                   "[zero_pp_rank_1_mp_rank_00_optim_states/data/0] bias: 1 NaN and 0 Inf among 4 "
                   "elements"}));
  const Finding& finding = report.findings.at(0);
  EXPECT_EQ(finding.rank.value().dp, 1u);
  const auto path = checkpoint.folder() / ZeroCheckpoint::optim_name(1);
  EXPECT_TRUE(std::isnan(float_at(path, finding.offset.value())));
  EXPECT_EQ(float_at(path, *finding.offset - 4), 4);
}

TEST(VerifyFinite, IsNotLookedForUnlessAskedFor) {
  ZeroCheckpoint checkpoint(1);
  checkpoint.states(0)["exp_avg"] = values({1, 2, 3, 4, "nan", 6, 7, 8, 9, 10, 11, 12});
  const VerifyReport report = checkpoint.verify();
  EXPECT_EQ(test::texts_of(report), Texts());
  const CheckDone& check = report.checks[static_cast<size_t>(Check::nonfinite)];
  EXPECT_FALSE(check.done);
  EXPECT_EQ(check.why, "not asked for (--finite)");
}

// weight lies in both ranks' files; its first element that is not finite is in the first one's.
TEST(VerifyFinite, AParameterIsCountedAcrossTheRanks) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.states(0)["exp_avg_sq"] = values({1, 2, "inf", 4, "nan", "-inf"});
  checkpoint.states(1)["exp_avg_sq"] = values({"nan", "nan", 3, 4, 5, 6});
  const VerifyReport report = checkpoint.verify(kFinite);
  EXPECT_EQ(test::texts_of(report),
            (Texts{"nonfinite zero_pp_rank_0_mp_rank_00_optim_states.pt "
                   "[zero_pp_rank_0_mp_rank_00_optim_states/data/1] weight: 3 NaN and 2 Inf among "
                   "8 elements"}));
  EXPECT_EQ(float_at(checkpoint.folder() / ZeroCheckpoint::optim_name(0),
                     report.findings.at(0).offset.value()),
            INFINITY);
}

TEST(VerifyFinite, WeightsOf16BitAreLookedAtBesideTheirMasters) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    ZeroCheckpoint checkpoint(2, 10, dtype);
    checkpoint.model()["module"]["bias"] = values({18, 19, "inf", 21}, dtype);
    EXPECT_EQ(found(checkpoint.verify(kFinite)),
              (Texts{"nonfinite mp_rank_00_model_states.pt [mp_rank_00_model_states/data/1] bias: "
                     "0 NaN and 1 Inf among 4 elements"}));
  }
}

// Masks of attention are -Inf where nothing is to be seen.
TEST(VerifyFinite, BuffersMayBeInfiniteButNotNaN) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["buffer_names"] = {"mask"};
  checkpoint.model()["module"]["mask"] = values({0, "-inf", "-inf"});
  EXPECT_EQ(test::texts_of(checkpoint.verify(kFinite)), Texts());
  checkpoint.model()["module"]["mask"] = values({0, "-inf", "nan"});
  EXPECT_EQ(test::texts_of(checkpoint.verify(kFinite)),
            (Texts{"nonfinite mp_rank_00_model_states.pt [mp_rank_00_model_states/data/2] mask: 1 "
                   "NaN and 0 Inf among 3 elements"}));
}

// Tensor-parallel ranks that hold the same each have a copy.
TEST(VerifyFinite, EveryCopyIsLookedAt) {
  ZeroCheckpoint checkpoint(1);
  checkpoint.model()["mp_world_size"] = 2;
  checkpoint.model()["universal_checkpoint_info"] = {
      {"tp_replicated_parameter_patterns", {"weight", "bias"}}};
  checkpoint.states(0)["exp_avg"] = values({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "nan", 12});
  checkpoint.files["mp_rank_01_model_states.pt"] = checkpoint.model();
  checkpoint.files["zero_pp_rank_0_mp_rank_01_optim_states.pt"] =
      checkpoint.files[ZeroCheckpoint::optim_name(0)];
  const std::string what = "/data/0] bias: 1 NaN and 0 Inf among 4 elements";
  EXPECT_EQ(test::texts_of(checkpoint.verify(kFinite)),
            (Texts{"nonfinite zero_pp_rank_0_mp_rank_00_optim_states.pt "
                   "[zero_pp_rank_0_mp_rank_00_optim_states" +
                       what,
                   "nonfinite zero_pp_rank_0_mp_rank_01_optim_states.pt "
                   "[zero_pp_rank_0_mp_rank_01_optim_states" +
                       what}));
}

TEST(VerifyFinite, WhatIsKnownToBeDamagedIsNotLookedAt) {
  ZeroCheckpoint checkpoint(1);
  checkpoint.model()["buffer_names"] = {"table"};
  checkpoint.model()["module"]["table"] = values({1, "nan"});
  const uint64_t offset = checkpoint.verify(kFinite).findings.at(0).offset.value();
  const auto path = checkpoint.folder() / ZeroCheckpoint::kModelName;
  std::string bytes = test::read_all(path);
  bytes[offset - 1] = static_cast<char>(bytes[offset - 1] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(test::texts_of(checkpoint.verify_written(kFinite)),
            (Texts{"crc mp_rank_00_model_states.pt [mp_rank_00_model_states/data/2]: CRC32 "
                   "mismatch: the data has changed since it was saved"}));
}

TEST(VerifyFinite, ViewsOfOneStorageAreOneFinding) {
  HandMade made;
  made.write("pytorch_model.bin",
             R"({"a": {"tensor": [2], "values": [1, "nan"], "storage": "s"},
                 "b": {"tensor": [2], "storage": "s"}})");
  EXPECT_EQ(test::texts_of(verify_weights(made)),
            (Texts{"nonfinite pytorch_model.bin [pytorch_model/data/0] a: 1 NaN "
                   "and 0 Inf among 2 elements"}));
}

TEST(VerifyFinite, AComplexElementIsOneAndNaNIfAPartIs) {
  HandMade made;
  made.write_safetensors("model.safetensors", R"({
      "double": {"tensor": [2], "dtype": "float64", "values": [1e300, "inf"]},
      "wave": {"tensor": [4], "dtype": "complex64",
               "values": [1, 2, "nan", "inf", "nan", "nan", 0, "-inf"]}})");
  const VerifyReport report = verify_weights(made);
  EXPECT_EQ(test::texts_of(report),
            (Texts{"nonfinite model.safetensors double: 0 NaN and 1 Inf among 2 elements",
                   "nonfinite model.safetensors wave: 2 NaN and 1 Inf among 4 elements"}));
  // The second one of (1, 2) and (NaN, Inf).
  const auto path = made.folder() / "model.safetensors";
  EXPECT_EQ(float_at(path, report.findings.at(1).offset.value() - 4), 2);
}

// Blocks of 256 KiB are counted each by itself.
TEST(VerifyFinite, TheFirstOfALargeTensorIsNamed) {
  std::vector<double> elements(100000, 1);
  elements[4] = 7;
  ordered_json tensor = values(elements);
  tensor["values"][5] = "nan";
  tensor["values"][99999] = "inf";
  HandMade made;
  made.write_safetensors("model.safetensors", ordered_json{{"a", tensor}}.dump());
  const VerifyReport report = verify_weights(made);
  EXPECT_EQ(test::texts_of(report),
            Texts{"nonfinite model.safetensors a: 1 NaN and 1 Inf among 100000 elements"});
  EXPECT_EQ(float_at(made.folder() / "model.safetensors", report.findings.at(0).offset.value() - 4),
            7);
}

// Without values of its own in `module`.
TEST(VerifyFinite, LayersOfAPipelineAreLookedAt) {
  ZeroCheckpoint checkpoint(1);
  checkpoint.model()["module"] = nullptr;
  checkpoint.model()["param_shapes"] = ordered_json::array({{{"0.w", {8}}, {"0.b", {4}}}});
  checkpoint.files["layer_00-model_states.pt"] = {{"w", numbers({8}, 10, "bfloat16")},
                                                  {"b", values({18, 19, 20, "nan"}, "bfloat16")}};
  EXPECT_EQ(found(checkpoint.verify(kFinite)),
            (Texts{"nonfinite layer_00-model_states.pt [layer_00-model_states/data/1] b: 1 NaN and "
                   "0 Inf among 4 elements"}));
}

}  // namespace
}  // namespace dsckpt
