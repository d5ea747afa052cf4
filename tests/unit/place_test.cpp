// Where a job's output may go.
#include "job/place.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

class PlaceTest : public testing::Test {
 protected:
  PlaceTest() {
    for (const char* name : {"ckpt/step1", "full"}) fs::create_directories(at(name));
    folder_.write("ckpt/step1/shard.pt", "");
    folder_.write("full/ours", "");
  }

  Place beside() const {
    Place place;
    for (const char* name : {"ckpt/step1", "node1/step1"}) {
      place.inputs.push_back({at(name), "the folder of the shards"});
    }
    return place;
  }
  Place whole() const {
    Place place = beside();
    place.whole = true;
    place.is_ours = [](const fs::path& path) { return path == "ours"; };
    place.replaced = "what was written there before";
    return place;
  }
  fs::path at(const std::string& name) const { return folder_.path() / name; }

  test::TempFolder folder_;
};

TEST_F(PlaceTest, IsNotAmongTheShards) {
  constexpr const char* kInside = "lies inside the folder of the shards";
  for (const char* name : {"ckpt/step1/out", "ckpt/x/../step1/out", "node1/step1/out"}) {
    EXPECT_ERROR(check_place(beside(), at(name), true), UsageError, kInside);
  }
  for (const char* name : {"ckpt/step1", "ckpt/step1/", "ckpt/x/../step1", "node1/step1"}) {
    EXPECT_ERROR(check_place(beside(), at(name), true), UsageError,
                 ": is the folder of the shards");
  }
  fs::create_directory_symlink(at("ckpt"), at("link"));
  EXPECT_ERROR(check_place(beside(), at("link/step1/out"), false), UsageError, kInside);
  EXPECT_NO_THROW(check_place(beside(), at("ckpt"), false));
  EXPECT_NO_THROW(check_place(beside(), at("ckpt/step10"), false));
  EXPECT_NO_THROW(check_place(beside(), at("full"), false));
}

TEST_F(PlaceTest, HasAName) {
  EXPECT_ERROR(check_place(beside(), "", false), UsageError, "has no name");
}

TEST_F(PlaceTest, OfAWholeFolderDoesNotHoldTheInput) {
  for (const bool force : {false, true}) {
    for (const char* name : {"ckpt", "node1", "."}) {
      EXPECT_ERROR(check_place(whole(), at(name), force), UsageError,
                   ": holds the folder of the shards");
    }
  }
}

TEST_F(PlaceTest, OfAWholeFolderIsReplacedOnlyIfAskedFor) {
  EXPECT_ERROR(check_place(whole(), at("full"), false), UsageError, "exists already");
  EXPECT_NO_THROW(check_place(whole(), at("full"), true));
  EXPECT_NO_THROW(check_place(whole(), at("new"), false));
  fs::create_directory(at("empty"));
  EXPECT_NO_THROW(check_place(whole(), at("empty"), false));
  EXPECT_ERROR(check_place(whole(), at("full/ours"), true), UsageError, "is not a folder");
}

TEST_F(PlaceTest, OfAWholeFolderKeepsWhatOthersWrote) {
  fs::create_directory(at("full/deep"));
  folder_.write("full/deep/theirs", "");
  EXPECT_ERROR(check_place(whole(), at("full"), true), UsageError,
               "holds deep/theirs, which would be lost");
}

TEST_F(PlaceTest, StandsForTheContentOfAPackedFile) {
  fs::rename(at("full/ours"), at("full/ours.dspack"));
  EXPECT_NO_THROW(check_place(whole(), at("full"), true));
}

TEST_F(PlaceTest, WithAPointerHasANameForIt) {
  Place place = whole();
  place.pointer = "latest_universal";
  for (const char* name : {".", "..", "/", "latest_universal"}) {
    EXPECT_ERROR(check_place(place, name, true), UsageError, "that latest_universal can name");
  }
  EXPECT_EQ(pointer_file(place, at("new/")), at("latest_universal"));
  EXPECT_EQ(name_of(at("new/")), "new");
  fs::create_directory(at("latest_universal"));
  EXPECT_ERROR(check_place(place, at("new"), false), UsageError,
               "a folder has the name of an output file");
}

}  // namespace
}  // namespace dsckpt
