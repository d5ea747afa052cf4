#include "dsckpt/pack.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "codec/frame.h"
#include "dsckpt/error.h"
#include "format/typed_extents.h"
#include "job/content_hash.h"
#include "job/job_impl.h"
#include "pack/estimate.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::Content;
using test::make_content;
using test::read_all;
using test::TempFolder;

const fs::path kFormats = fs::path(DSCKPT_TESTDATA) / "formats";

// Every file below `folder` and what it holds.
std::map<std::string, std::string> tree(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files[entry.path().lexically_relative(folder).string()] = read_all(entry.path());
    }
  }
  return files;
}

std::vector<std::string> pack(const fs::path& from, const fs::path& to, bool sha256 = false) {
  const Job job = plan_pack(from, sha256);
  run(job, to, {.pack = kDefaultPackLevel});
  return job.notes();
}

void unpack(const fs::path& from, const fs::path& to) {
  run(plan_unpack(from), to);
}

// A folder of files in all formats, and of what is none.
class PackTest : public testing::Test {
 protected:
  PackTest() {
    fs::create_directories(in_ / "a/b");
    for (const auto& entry : fs::directory_iterator(kFormats)) {
      fs::copy(entry.path(), in_ / entry.path().filename());
    }
    folder_.write("in/a/empty.pt", "");
    folder_.write("in/a/foreign.bin", make_content(Content::random, 100001));
    folder_.write("in/a/b/moment.swp", make_content(Content::normal_floats, 300000));
    folder_.write("in/a/b/odd.swp", make_content(Content::normal_floats, 30003));
    folder_.write("in/a/b/latest", "global_step1");
    folder_.write("in/a/b/config.json", "{}");
  }

  TempFolder folder_;
  const fs::path in_ = folder_.path() / "in";
  const fs::path packed_ = folder_.path() / "packed";
  const fs::path out_ = folder_.path() / "out";
};

TEST_F(PackTest, AndUnpackGiveBackEveryByte) {
  pack(in_, packed_);
  unpack(packed_, out_);
  EXPECT_TRUE(tree(out_) == tree(in_));
  // Only files of tensors are packed, and each under its name.
  const auto before = tree(in_);
  const auto after = tree(packed_);
  EXPECT_EQ(after.size(), before.size());
  for (const auto& [name, content] : before) {
    const std::string ending = fs::path(name).extension();
    const bool packable =
        ending == ".pt" || ending == ".bin" || ending == ".swp" || ending == ".safetensors";
    EXPECT_EQ(after.contains(name), !packable) << name;
    EXPECT_EQ(after.contains(name + ".dspack"), packable) << name;
    if (!packable) {
      EXPECT_EQ(after.at(name), content);
    }
  }
}

TEST_F(PackTest, OfWhatIsPackedIsTheSame) {
  pack(in_, packed_);
  pack(packed_, out_);
  EXPECT_TRUE(tree(out_) == tree(packed_));
}

TEST_F(PackTest, SaysWhatIsPackedAsPlainBytes) {
  const auto notes = pack(in_, packed_);
  const auto says = [&](const std::string& text) {
    return std::any_of(notes.begin(), notes.end(), [&](const std::string& note) {
      return note.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(says("a/foreign.bin is packed as plain bytes"));
  EXPECT_TRUE(says("a/empty.pt is packed as plain bytes"));
  EXPECT_FALSE(says("swp"));
  EXPECT_FALSE(says("small"));
}

TEST_F(PackTest, SeesTheTypesInAFile) {
  const Job job = plan_pack(in_ / "a/b/moment.swp");
  ASSERT_EQ(job->plan.outputs().size(), 1u);
  EXPECT_EQ(job->plan.outputs()[0].path, "moment.swp");
  ASSERT_EQ(job->plan.items().size(), 1u);
  EXPECT_EQ(job->plan.items()[0].to, DType::float32);
  EXPECT_EQ(bytes_packable(job->plan), 300000u);
}

TEST_F(PackTest, TakesOneFile) {
  pack(in_ / "small.pt", packed_);
  EXPECT_EQ(tree(packed_).size(), 1u);
  unpack(packed_ / "small.pt.dspack", out_);
  EXPECT_EQ(read_all(out_ / "small.pt"), read_all(in_ / "small.pt"));
}

TEST_F(PackTest, LeavesOutWhatIsNoFile) {
  fs::create_symlink("nowhere", in_ / "broken");
  fs::create_directory_symlink(in_ / "a", in_ / "folder");
  fs::create_directory_symlink(in_, in_ / "a" / "above");
  fs::create_symlink(in_ / "small.pt", in_ / "link.pt");
  ASSERT_EQ(::mkfifo((in_ / "pipe").c_str(), 0600), 0);
  fs::create_directory(in_ / ".dsckpt-staging-XYZ");
  folder_.write("in/.dsckpt-staging-XYZ/half.pt", "half");
  auto notes = pack(in_, packed_);
  unpack(packed_, out_);
  auto expected = tree(in_);
  expected.erase(".dsckpt-staging-XYZ/half.pt");
  expected["link.pt"] = expected["small.pt"];
  for (const auto& [name, content] : tree(in_ / "a")) expected["folder/" + name] = content;
  EXPECT_TRUE(tree(out_) == expected);
  std::sort(notes.begin(), notes.end());
  for (const char* note : {".dsckpt-staging-XYZ is unfinished and is left out",
                           "broken is a broken link and is left out",
                           "a/above is a link to a folder that it is in and is left out",
                           "folder/above is a link to a folder that it is in and is left out",
                           "pipe is neither file nor folder and is left out"}) {
    EXPECT_TRUE(std::binary_search(notes.begin(), notes.end(), note)) << note;
  }
}

TEST_F(PackTest, RefusesAContentInTwoForms) {
  pack(in_, packed_);
  fs::copy(in_ / "small.pt", packed_ / "small.pt");
  EXPECT_ERROR(plan_unpack(packed_), InconsistentError, "has the same content as");
}

TEST_F(PackTest, TakesLinksOutOfTheFolderOnlyWhereItIsAskedTo) {
  const TempFolder elsewhere;
  const fs::path secret = elsewhere.write("secret", "elsewhere");
  fs::create_symlink("small.pt", in_ / "inside.pt");
  EXPECT_NO_THROW(plan_pack(in_));
  fs::create_symlink(secret, in_ / "a" / "out.txt");
  EXPECT_ERROR(plan_pack(in_), UsageError, "a/out.txt: is a link out of the folder");
  EXPECT_ERROR(plan_unpack(in_), UsageError, "a/out.txt: is a link out of the folder");
  run(plan_unpack(in_, false, true), out_);
  EXPECT_EQ(tree(out_)["a/out.txt"], "elsewhere");
}

TEST_F(PackTest, RefusesNothing) {
  fs::create_directory(out_);
  EXPECT_ERROR(plan_pack(out_), UsageError, "holds no files");
  EXPECT_ERROR(plan_pack(in_ / "missing"), UsageError, "there is no such file or folder");
}

TEST_F(PackTest, RefusesAnOutputInTheInputAndTheOtherWayRound) {
  const Job job = plan_pack(in_);
  const auto check = [&](const fs::path& output) { check_place(job->place, output, false); };
  EXPECT_ERROR(check(in_), UsageError, "is the input folder");
  EXPECT_ERROR(check(in_ / "packed"), UsageError, "lies inside the input folder");
  EXPECT_ERROR(check(in_ / "new/../packed/"), UsageError, "lies inside the input folder");
  EXPECT_ERROR(check(folder_.path()), UsageError, "holds the input");
  EXPECT_ERROR(check(""), UsageError, "no name");
  fs::create_directory_symlink(in_, folder_.path() / "link");
  EXPECT_ERROR(check(folder_.path() / "link/packed"), UsageError, "lies inside the input folder");
  EXPECT_NO_THROW(check(folder_.path() / "in2"));
  EXPECT_NO_THROW(check(packed_));
}

TEST_F(PackTest, ComparesTheDigestsOfWholeFiles) {
  pack(in_, packed_, true);
  const Job job = plan_unpack(packed_);
  Progress progress;
  auto digests = content_hashes(*job, {}, {2, progress});
  EXPECT_NO_THROW(check_content_hashes(*job, digests));
  const auto is_known = [](const auto& digest) { return digest.has_value(); };
  EXPECT_TRUE(std::any_of(digests.begin(), digests.end(), is_known));
  const auto of_none = content_hashes(*job, std::vector<bool>(digests.size(), true), {2, progress});
  EXPECT_TRUE(std::none_of(of_none.begin(), of_none.end(), is_known));
  for (auto& digest : digests) {
    if (digest) digest->at(0) ^= std::byte{1};
  }
  EXPECT_ERROR(check_content_hashes(*job, digests), CorruptError, "has the SHA-256");
}

TEST_F(PackTest, HasNothingToCompareWhereNoDigestWasKept) {
  pack(in_, packed_);
  const Job job = plan_unpack(packed_, true);
  EXPECT_ERROR(run(job, out_), UsageError, "nothing to compare");
}

// SHA-256 of "abc", FIPS 180-2 appendix B.1.
TEST_F(PackTest, KeepsTheSha256OfTheContent) {
  folder_.write("in/abc.pt", "abc");
  pack(in_ / "abc.pt", packed_, true);
  InputFiles inputs;
  const FileId id = inputs.add(packed_ / "abc.pt");
  ASSERT_TRUE(inputs[id].sha256());
  EXPECT_EQ(hex_digits(*inputs[id].sha256()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(PackTest, RefusesADamagedArchiveAndLeavesNothing) {
  // In the data of a tensor, whose CRC32 the zip has.
  std::string bytes = read_all(in_ / "small.pt");
  InputFiles inputs;
  const auto extents = typed_extents(inputs, inputs.add(kFormats / "small.pt"));
  bytes.at(extents.at(0).extent.offset) ^= 1;
  folder_.write("in/small.pt", bytes);
  EXPECT_ERROR(pack(in_, packed_), CorruptError, "small.pt");
  EXPECT_FALSE(fs::exists(packed_));
}

TEST_F(PackTest, EstimatesWhatItComesTo) {
  const TempFolder folder;
  folder.write("f.swp", make_content(Content::normal_floats, 8 << 20));
  folder.write("notes.txt", std::string(1000, 'n'));
  const Job job = plan_pack(folder.path());
  Progress progress;
  for (const uint64_t sample : {uint64_t{1}, uint64_t{2} << 20, uint64_t{1} << 40}) {
    const PackEstimate estimate = estimate_pack(job, kDefaultPackLevel, sample, progress, 2);
    EXPECT_EQ(estimate.files, 1u);
    EXPECT_EQ(estimate.bytes, 8u << 20);
    EXPECT_EQ(estimate.threads, 2u);
    EXPECT_GT(estimate.seconds, 0);
    ASSERT_EQ(estimate.kinds.size(), 1u);
    EXPECT_EQ(estimate.kinds[0].kind, "float32");
    EXPECT_GE(estimate.kinds[0].sampled, std::min<uint64_t>(sample, 8 << 20));
    fs::remove_all(packed_);
    pack(folder.path(), packed_);
    const auto stored = static_cast<double>(fs::file_size(packed_ / "f.swp.dspack"));
    EXPECT_NEAR(estimate.stored() / stored, 1, 0.01);
  }
}

TEST(TypedExtent, AreTheStoragesAndTheirTypes) {
  InputFiles inputs;
  const auto of = [&](const char* name) {
    return typed_extents(inputs, inputs.add(kFormats / name));
  };
  for (const char* name : {"rich.pt", "rich_legacy.pt", "types.safetensors", "small_legacy.pt"}) {
    const auto extents = of(name);
    EXPECT_FALSE(extents.empty()) << name;
    uint64_t end = 0;
    for (const TypedExtent& typed : extents) {
      EXPECT_GE(typed.extent.offset, end) << name;
      EXPECT_GT(typed.extent.size, 0u) << name;
      end = typed.extent.end();
    }
    EXPECT_LE(end, fs::file_size(kFormats / name));
  }
  const auto small = of("small.pt");  // four float32 numbers
  ASSERT_EQ(small.size(), 1u);
  EXPECT_EQ(small[0].extent.size, 16u);
  EXPECT_EQ(small[0].dtype, DType::float32);
  const auto types = of("types.safetensors");  // a header of 2792 bytes
  ASSERT_GT(types.size(), 13u);
  EXPECT_EQ(types[0].extent.offset, 2800u);
  EXPECT_EQ(types[0].dtype, DType::uint64);
  EXPECT_EQ(types[7].extent.offset, 2800u + 136);
  EXPECT_EQ(types[7].extent.size, 24u);
  EXPECT_EQ(types[7].dtype, DType::complex64);
  EXPECT_EQ(types.back().extent.end(), 2800u + 308);
  EXPECT_EQ(types.back().dtype, DType::boolean);
}

}  // namespace
}  // namespace dsckpt
