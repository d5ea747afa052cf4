// Manifests: what is read of them, and what is found of files that are no longer those in one.
#include <gtest/gtest.h>

#include <filesystem>

#include "inspect/verify/manifest.h"
#include "support/expect_error.h"
#include "support/temp_file.h"
#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::json;
using test::numbers;
using test::TempFolder;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

// FIPS 180-2, appendix B.1: the SHA-256 of "abc".
constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

json good() {
  const json record = {{"name", "data.pkl"}, {"offset", 64}, {"size", 3}, {"sha256", kAbc}};
  const json file = {{"path", "a.pt"}, {"size", 100}, {"sha256", kAbc}, {"records", {record}}};
  return {{"schema", 1}, {"type", "manifest"}, {"hash", "sha256"}, {"files", {file}}};
}

Manifest read(const std::string& text) {
  const TempFolder folder;
  return read_manifest(folder.write("manifest.json", text));
}

TEST(Manifest, IsReadAsItIsWritten) {
  const Manifest manifest = read(good().dump());
  ASSERT_EQ(manifest.size(), 1u);
  EXPECT_EQ(manifest[0].path, "a.pt");
  EXPECT_EQ(manifest[0].size, 100u);
  EXPECT_EQ(manifest[0].sha256, kAbc);
  ASSERT_EQ(manifest[0].records.size(), 1u);
  EXPECT_EQ(manifest[0].records[0].name, "data.pkl");
  EXPECT_EQ(manifest[0].records[0].offset, 64u);
  EXPECT_EQ(manifest[0].records[0].size, 3u);
  EXPECT_EQ(manifest[0].records[0].sha256, kAbc);
  const std::string text = manifest_text(manifest);
  EXPECT_EQ(json::parse(text), good());
  EXPECT_EQ(text.back(), '\n');
}

TEST(Manifest, OtherFilesAreNone) {
  EXPECT_ERROR(read("{"), CorruptError, "is not a manifest");
  EXPECT_ERROR(read("[]"), CorruptError, "is not a manifest");
  EXPECT_ERROR(read(R"({"type": "report"})"), CorruptError, "is not a manifest");
}

TEST(Manifest, AnotherSchemaOrHashIsNotSupported) {
  json root = good();
  root["schema"] = 2;
  EXPECT_ERROR(read(root.dump()), UnsupportedError, "another schema or hash");
  root = good();
  root["hash"] = "md5";
  EXPECT_ERROR(read(root.dump()), UnsupportedError, "another schema or hash");
}

TEST(Manifest, EveryFieldIsThereAndOfItsKind) {
  for (const char* key : {"path", "size", "sha256", "records"}) {
    json root = good();
    root["files"][0].erase(key);
    EXPECT_ERROR(read(root.dump()), CorruptError, key);
  }
  for (const char* key : {"name", "offset", "size", "sha256"}) {
    json root = good();
    root["files"][0]["records"][0][key] = json::array();
    EXPECT_ERROR(read(root.dump()), CorruptError, key);
  }
  json root = good();
  root["files"][0]["size"] = -1;
  EXPECT_ERROR(read(root.dump()), CorruptError, "is not a size");
}

TEST(Manifest, AHashHas64HexadecimalDigits) {
  for (const std::string& wrong :
       {std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'A'), std::string(64, 'g')}) {
    json root = good();
    root["files"][0]["sha256"] = wrong;
    EXPECT_ERROR(read(root.dump()), CorruptError, "is not a SHA-256 hash");
  }
}

TEST(Manifest, IsNotReplacedUnlessForced) {
  const TempFolder folder;
  const auto path = folder.write("manifest.json", "mine");
  EXPECT_ERROR(write_manifest({}, path, false), UsageError, "already exists");
  EXPECT_EQ(test::read_all(path), "mine");
  write_manifest({}, path, true);
  EXPECT_EQ(read_manifest(path).size(), 0u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

class ManifestOfACheckpoint : public testing::Test {
 protected:
  ManifestOfACheckpoint() {
    checkpoint_.write();
    add("notes.txt", "abc");
    VerifyOptions options;
    options.new_manifest = manifest_.path() / "manifest.json";
    was_ = checkpoint_.verify_written(options).manifest.value();
    write_manifest(was_, options.new_manifest, false);
  }

  void add(const std::string& name, const std::string& bytes) const {
    std::ofstream(checkpoint_.folder() / name, std::ios::binary) << bytes;
  }

  Texts findings() const {
    VerifyOptions options;
    options.manifest = manifest_.path() / "manifest.json";
    return test::texts_of(checkpoint_.verify_written(options));
  }

  const ManifestFile& entry(const std::string& path) const {
    for (const ManifestFile& file : was_) {
      if (file.path == path) return file;
    }
    throw std::out_of_range(path);
  }

  ZeroCheckpoint checkpoint_{2};
  TempFolder manifest_;
  Manifest was_;
};

TEST_F(ManifestOfACheckpoint, HasEveryFileByPathAndTheRecordsOfZips) {
  Texts paths;
  for (const ManifestFile& file : was_) paths.push_back(file.path);
  EXPECT_EQ(paths, (Texts{"mp_rank_00_model_states.pt", "notes.txt", ZeroCheckpoint::optim_name(0),
                          ZeroCheckpoint::optim_name(1)}));
  EXPECT_EQ(entry("notes.txt").sha256, kAbc);
  EXPECT_EQ(entry("notes.txt").size, 3u);
  EXPECT_TRUE(entry("notes.txt").records.empty());
  const auto& records = entry(ZeroCheckpoint::optim_name(0)).records;
  ASSERT_FALSE(records.empty());
  EXPECT_TRUE(records.front().name.ends_with("data.pkl")) << records.front().name;
}

TEST_F(ManifestOfACheckpoint, FindsNothingInTheSameFiles) {
  EXPECT_EQ(findings(), Texts());
}

TEST_F(ManifestOfACheckpoint, NamesFilesThatAreNewMissingChangedOrOfAnotherSize) {
  add("more.txt", "");
  EXPECT_EQ(findings(), (Texts{"manifest more.txt: is new"}));
  std::filesystem::remove(checkpoint_.folder() / "more.txt");
  add("notes.txt", "abd");
  EXPECT_EQ(findings(), (Texts{"manifest notes.txt: has changed"}));
  add("notes.txt", "abcd");
  EXPECT_EQ(findings(), (Texts{"manifest notes.txt: has 4 bytes, had 3"}));
  std::filesystem::remove(checkpoint_.folder() / "notes.txt");
  EXPECT_EQ(findings(), (Texts{"manifest notes.txt: is missing"}));
}

// Other momenta, which nothing else can know to be wrong: the first tensor that is met is
// exp_avg, in record 0.
TEST_F(ManifestOfACheckpoint, NamesTheRecordThatHasChanged) {
  checkpoint_.optim(1)["base_optimizer_state"]["state"]["0"]["exp_avg"] = numbers({6}, 300);
  checkpoint_.write();
  add("notes.txt", "abc");
  const Texts texts = findings();
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0], "manifest " + ZeroCheckpoint::optim_name(1) +
                          " [zero_pp_rank_1_mp_rank_00_optim_states/data/0]: the record has "
                          "changed");
}

// A record with a wrong CRC32 is not reported again.
TEST_F(ManifestOfACheckpoint, IsSilentWhereTheChecksumSaysIt) {
  const auto path = checkpoint_.folder() / ZeroCheckpoint::optim_name(1);
  std::string bytes = test::read_all(path);
  const auto& records = entry(ZeroCheckpoint::optim_name(1)).records;
  for (const ManifestRecord& record : records) {
    if (record.name.ends_with("data/0")) bytes[record.offset] ^= 1;
  }
  std::ofstream(path, std::ios::binary) << bytes;
  const Texts texts = findings();
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].rfind("crc " + ZeroCheckpoint::optim_name(1), 0), 0u) << texts[0];
}

}  // namespace
}  // namespace dsckpt
