#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "dsckpt/error.h"
#include "format/torch_archive.h"
#include "format/zip.h"
#include "fuzz/memory_file.h"
#include "support/defects.h"
#include "support/plan_runner.h"
#include "support/tar_header.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using namespace std::literals;

std::string testdata(const std::string& name) {
  return test::read_all(std::string(DSCKPT_TESTDATA) + "/formats/" + name);
}

// The text of the pickle of {"w": tensor, "n": number}, and the tensor's place.
std::string read_small(const std::string& bytes) {
  const MemoryFile memory(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  InputFiles files;
  const TorchArchive archive = TorchArchive::open(files, files.add(memory.path()));
  const pickle::Value tensor = archive.root().at("w");
  const TensorInfo info = archive.info(tensor);
  const auto view = archive.tensor(tensor).as_strided().value();
  EXPECT_LE(view.extent.end(), bytes.size());
  return std::to_string(archive.root().at("n").as_int()) + " " +
         std::string(torch_name(info.dtype)) + " " + std::to_string(info.shape.at(0)) + " " +
         std::to_string(view.strides.at(0)) + " " + std::to_string(view.extent.offset) + " " +
         std::to_string(view.extent.size);
}

std::optional<Error> error_of(const std::string& bytes) {
  try {
    read_small(bytes);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST(CorruptTorchArchive, TruncatedAtEverySize) {
  for (const char* name : {"small.pt", "small_legacy.pt"}) {
    test::for_each_truncation(testdata(name), [&](const std::string& bytes, size_t size) {
      const auto error = error_of(bytes);
      ASSERT_TRUE(error) << name << " " << size;
      EXPECT_EQ(error->kind(), ErrorKind::corrupt) << error->what();
      EXPECT_FALSE(error->where().file.empty());
    });
  }
}

// The pickle of a zip is under its CRC32, so not one flipped bit of it passes.
TEST(CorruptTorchArchive, EveryFlippedBitOfAZipsPickleIsRefused) {
  const std::string bytes = testdata("small.pt");
  const size_t end = bytes.find("PK\7\b");
  test::for_each_bit_flip(bytes, 64, end, [&](const std::string& damaged, size_t at) {
    const auto error = error_of(damaged);
    ASSERT_TRUE(error) << at;
    EXPECT_NE(std::string(error->what()).find("CRC32"), std::string::npos) << error->what();
  });
}

TEST(CorruptTorchArchive, NoFlippedBitOfAZipChangesWhatIsSaid) {
  const std::string bytes = testdata("small.pt");
  const std::string whole = read_small(bytes);
  test::for_each_bit_flip(bytes, 0, bytes.size(), [&](const std::string& damaged, size_t at) {
    try {
      ASSERT_EQ(read_small(damaged), whole) << at;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::unsupported)
          << error.what();
    }
  });
}

// The legacy form has no checksum: a flip may change a number, but never leaves the file.
TEST(CorruptTorchArchive, FlippedBitsOfALegacyFileNeverLeaveIt) {
  const std::string bytes = testdata("small_legacy.pt");
  size_t refused = 0;
  test::for_each_bit_flip(bytes, 0, bytes.size(), [&](const std::string& damaged, size_t) {
    const auto error = error_of(damaged);
    if (!error) return;
    EXPECT_TRUE(error->kind() == ErrorKind::corrupt || error->kind() == ErrorKind::unsupported)
        << error->what();
    ++refused;
  });
  EXPECT_GT(refused, bytes.size() * 2);
}

// A zip with the given data.pkl and records, made without the archive writer.
std::string archive(std::string pickle,
                    const std::vector<std::pair<std::string, std::string>>& records) {
  ZipLayout zip("p");
  zip.add("data.pkl", std::move(pickle));
  for (const auto& [name, bytes] : records) zip.add(name, bytes);
  PlanBuilder plan;
  std::move(zip).lay_out(plan, "p.pt");
  return test::run_plan(plan.finish(), InputFiles()).at(0);
}

// Protocol 0, the readable one: {"n": 1, "w": a tensor}. `storage` is the class, as "torch\nX".
std::string tensor_pickle(const std::string& storage, const std::string& numel,
                          const std::string& offset, const std::string& sizes,
                          const std::string& strides) {
  return "(S'n'\nI1\nS'w'\nctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nc" + storage +
         "\nS'0'\nS'cpu'\nI" + numel + "\ntQI" + offset + "\n(" + sizes + "t(" + strides +
         "tI00\nNtRd.";
}

struct Defect {
  std::string name;
  std::string bytes;
  ErrorKind kind;
  std::string message;
};

std::vector<Defect> defects() {
  const std::string four = "torch\nFloatStorage";
  const std::vector<std::pair<std::string, std::string>> data = {{"data/0", std::string(16, 'd')}};
  const std::string good = tensor_pickle(four, "4", "0", "I4\n", "I1\n");
  const auto with = [&](const std::string& pickle) { return archive(pickle, data); };
  std::string tar(1024, '\0');
  tar.replace(0, 8, "storages");
  tar.replace(257, 5, "ustar");
  std::string other_tar = tar;
  other_tar.replace(0, 8, "anything");
  std::string legacy = testdata("small_legacy.pt");
  // torch tries the tar first, whatever the pickles are.
  const std::string tar_and_pickles = test::with_tar_checksum(legacy.substr(0, 64));
  std::string outside = archive(good, data);
  for (size_t at = 0; (at = outside.find("p/data/0", at)) != std::string::npos;) outside[at] = 'q';
  std::string long_legacy = legacy + "more";
  std::string big_legacy = legacy;
  big_legacy[big_legacy.find("little_endian") + 13 + 2] = '\x89';
  std::string two_counts = legacy;
  two_counts[two_counts.size() - 24] = 3;
  const auto corrupt = ErrorKind::corrupt;
  const auto unsupported = ErrorKind::unsupported;
  return {
      {"empty", "", corrupt, "the file is empty"},
      {"lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", corrupt, "Git LFS"},
      {"html", "\n <!DOCTYPE html><html></html>", corrupt, "HTML"},
      {"text", "Not Found", corrupt, "text file that starts with \"Not Found\""},
      {"zeros", std::string(5000, '\0'), corrupt, "zeros"},
      {"gzip", "\x1F\x8B\x08 and so on", corrupt, "gzip"},
      {"zstd", "\x28\xB5\x2F\xFD and so on", corrupt, "zstd"},
      {"hdf5", "\x89HDF\r\n\x1A\n and so on", corrupt, "HDF5"},
      {"safetensors", testdata("small.safetensors"), corrupt, "a safetensors file"},
      {"torch 0.1 tar", tar, unsupported, "torch 0.1"},
      {"tar", other_tar, corrupt, "tar archive"},
      {"pickle", "\x80\x02}.", corrupt, "plain pickle"},
      {"noise", "\x01\x02\x03\x04\x05", corrupt, "no known format"},
      {"zip without data.pkl", testdata("stored.zip"), corrupt, "no record data.pkl"},
      {"record outside", outside, corrupt, "lies outside of the folder 'p'"},
      {"tar and pickles", tar_and_pickles, corrupt, "tar archive"},
      {"torchscript", testdata("torchscript.pt"), unsupported, "TorchScript"},
      {"big-endian", archive(good, {{"byteorder", "big"}}), unsupported, "big-endian"},
      {"byte order", archive(good, {{"byteorder", "middle"}}), corrupt, "neither"},
      {"version", archive(good, {{"version", "11\n"}}), unsupported, "format version 11"},
      {"no version", archive(good, {{"version", "x"}}), corrupt, "not a number"},
      {"no storage", archive(good, {}), corrupt, "not in the file"},
      {"short storage", archive(good, {{"data/0", "12345678"}}), corrupt,
       "8 bytes, but the pickle says 16"},
      {"beyond", with(tensor_pickle(four, "4", "1", "I4\n", "I1\n")), corrupt, "ends at byte 20"},
      {"beyond by stride", with(tensor_pickle(four, "4", "0", "I2\n", "I4\n")), corrupt,
       "ends at byte 20"},
      {"negative offset", with(tensor_pickle(four, "4", "-1", "I4\n", "I1\n")), corrupt,
       "starts at element -1"},
      {"negative size", with(tensor_pickle(four, "4", "0", "I-4\n", "I1\n")), corrupt, "negative"},
      {"negative stride", with(tensor_pickle(four, "4", "0", "I4\n", "I-1\n")), corrupt,
       "negative"},
      {"overflow", with(tensor_pickle(four, "4", "0", "I9223372036854775807\nI9\n", "I9\nI1\n")),
       corrupt, ""},
      {"overflowing stride", with(tensor_pickle(four, "4", "0", "I3\n", "I9223372036854775807\n")),
       corrupt, "overflow"},
      {"rank", with(tensor_pickle(four, "4", "0", "I4\n", "I1\nI1\n")), corrupt, "2 strides"},
      {"size is text", with(tensor_pickle(four, "4", "0", "S'4'\n", "I1\n")), corrupt, ""},
      {"negative numel", with(tensor_pickle(four, "-4", "0", "I4\n", "I1\n")), corrupt,
       "elements is -4"},
      {"huge numel", with(tensor_pickle(four, "9223372036854775807", "0", "I4\n", "I1\n")), corrupt,
       "overflow"},
      {"quantised", with(tensor_pickle("torch\nQInt8Storage", "16", "0", "I4\n", "I1\n")),
       unsupported, "torch.qint8"},
      {"foreign class", with(tensor_pickle("os\nsystem", "16", "0", "I4\n", "I1\n")), unsupported,
       "os.system"},
      {"no persistent id",
       with("(S'n'\nI1\nS'w'\nctorch._utils\n_rebuild_tensor_v2\n(I1\nI0\n(t(tI00\nNtRd."), corrupt,
       ""},
      {"few arguments", with("(S'n'\nI1\nS'w'\nctorch._utils\n_rebuild_tensor_v2\n(I1\ntRd."),
       corrupt, "with 1 argument"},
      {"no tensor", with("(S'n'\nI1\nS'w'\ncos\nsystem\n(S'true'\ntRd."), corrupt, "not a tensor"},
      {"legacy tail", long_legacy, corrupt, "4 bytes after the last storage"},
      {"legacy big-endian", big_legacy, unsupported, "big-endian"},
      {"legacy count", two_counts, corrupt, "3 elements, but the object says 4"},
  };
}

TEST(CorruptTorchArchive, EveryDefectIsNamed) {
  const std::string whole = archive(tensor_pickle("torch\nFloatStorage", "4", "0", "I4\n", "I1\n"),
                                    {{"data/0", std::string(16, 'd')}});
  EXPECT_EQ(read_small(whole), "1 float32 4 1 " + std::to_string(whole.find("dddddddd")) + " 16");
  for (const Defect& defect : defects()) {
    SCOPED_TRACE(defect.name);
    const auto error = error_of(defect.bytes);
    ASSERT_TRUE(error) << "was not noticed";
    EXPECT_EQ(error->kind(), defect.kind) << error->what();
    EXPECT_NE(std::string(error->what()).find(defect.message), std::string::npos) << error->what();
    EXPECT_FALSE(error->where().file.empty()) << error->what();
  }
}

}  // namespace
}  // namespace dsckpt
