#include "io/folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "io/text_file.h"
#include "support/expect_error.h"
#include "support/own_folder.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::read_all;
using test::TempFolder;

constexpr uid_t kOther = 12345;

// Entries that only root can plant.
bool give_away(const fs::path& path) {
  return ::lchown(path.c_str(), kOther, kOther) == 0;
}

TEST(Folder, FollowsLinksOfThisUserAlone) {
  const TempFolder folder;
  fs::create_directories(folder.path() / "real/sub");
  fs::create_directory_symlink("real", folder.path() / "link");
  fs::create_directory_symlink(folder.path() / "link", folder.path() / "absolute");
  for (const char* way : {"link/sub", "absolute/sub", "link/./sub/../sub/"}) {
    EXPECT_TRUE(Folder::at(folder.path() / way).names().empty()) << way;
    EXPECT_EQ(resolved_path(folder.path() / way), fs::canonical(folder.path()) / "real/sub") << way;
  }
  EXPECT_EQ(resolved_path(folder.path() / "link/new/one"),
            fs::canonical(folder.path()) / "real/new/one");
  if (!give_away(folder.path() / "link")) GTEST_SKIP() << "only root can make others' links";
  for (const char* way : {"link", "link/sub", "absolute/sub"}) {
    EXPECT_ERROR(Folder::at(folder.path() / way), UsageError, "is a link that user 12345 has made");
    EXPECT_ERROR(resolved_path(folder.path() / way), UsageError, "has made");
  }
}

TEST(Folder, EndsALoopOfLinks) {
  const TempFolder folder;
  fs::create_symlink("b", folder.path() / "a");
  fs::create_symlink("a", folder.path() / "b");
  EXPECT_ERROR(Folder::at(folder.path() / "a"), IoError, "Too many levels");
}

TEST(Folder, MakesWhatIsMissingAndSaysWhat) {
  const TempFolder folder;
  std::vector<fs::path> made;
  Folder::make(folder.path() / "a/b", made);
  const fs::path real = fs::canonical(folder.path());
  EXPECT_EQ(made, (std::vector<fs::path>{real / "a", real / "a/b"}));
  made.clear();
  Folder::at(folder.path()).below("a/c/d", &made);
  EXPECT_EQ(made.size(), 2u);
  EXPECT_TRUE(fs::is_directory(folder.path() / "a/c/d"));
}

TEST(Folder, FollowsNoLinkBelowIt) {
  const TempFolder folder;
  fs::create_directory(folder.path() / "real");
  fs::create_directory_symlink("real", folder.path() / "link");
  folder.write("precious", "precious");
  fs::create_symlink("precious", folder.path() / "file");
  const Folder at = Folder::at(folder.path());
  EXPECT_ERROR(at.below("link"), UsageError, "is a link of user");
  EXPECT_LT(at.create("file"), 0);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_ERROR(at.open_ours("file", {}), UsageError, "is a link of user");
  EXPECT_ERROR(at.open_ours("file", {.may_be_new = true}), UsageError, "is a link of user");
  EXPECT_LT(at.open_to_read("file"), 0);
  EXPECT_EQ(at.remove_all("file"), 0);
  EXPECT_EQ(at.remove_all("link"), 0);
  EXPECT_EQ(read_all(folder.path() / "precious"), "precious");
  EXPECT_TRUE(fs::exists(folder.path() / "real"));
}

TEST(Folder, IsThisUsersAlone) {
  const TempFolder folder;
  const Folder at = Folder::at(folder.path());
  EXPECT_FALSE(at.own("missing"));
  at.make_own("made");
  struct stat about {};
  ASSERT_EQ(::stat((folder.path() / "made").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0700u);
  EXPECT_TRUE(at.own("made"));
  EXPECT_ERROR(at.make_own("made"), IoError, "File exists");
  for (const mode_t mode : {0777u, 0755u, 0710u, 0701u, 0770u}) {
    ASSERT_EQ(::chmod((folder.path() / "made").c_str(), mode), 0);
    EXPECT_ERROR(at.own("made"), UsageError, "others may enter it");
  }
  fs::create_directory_symlink("made", folder.path() / "link");
  EXPECT_ERROR(at.own("link"), UsageError, "is a link of user");
  folder.write("file", "");
  EXPECT_ERROR(at.own("file"), UsageError, "is a file of user");
  ASSERT_EQ(::chmod((folder.path() / "made").c_str(), 0700), 0);
  if (!give_away(folder.path() / "made")) GTEST_SKIP() << "only root can give folders away";
  EXPECT_ERROR(at.own("made"), UsageError, "belongs to user 12345, and not to user 0");
  // A file system that gave what root makes to another user would give a new file to it, too.
  EXPECT_ERROR(at.own("made", true), UsageError, "belongs to user 12345, and not to user 0");
  EXPECT_TRUE(fs::is_empty(folder.path() / "made"));
}

// A rename around it does not change where it goes on.
TEST(Folder, IsWhatWasOpened) {
  const TempFolder folder;
  const Folder at = Folder::at(folder.path());
  const Folder made = at.make_own("made");
  fs::rename(folder.path() / "made", folder.path() / "away");
  fs::create_directory(folder.path() / "victim");
  fs::create_directory_symlink("victim", folder.path() / "made");
  ::close(made.create("file"));
  EXPECT_TRUE(fs::exists(folder.path() / "away/file"));
  EXPECT_TRUE(fs::is_empty(folder.path() / "victim"));
}

TEST(Folder, ChecksAllThatIsInIt) {
  const TempFolder folder;
  const Folder at = test::make_own(folder.path() / "own");
  fs::create_directories(at.path() / "files/sub");
  const fs::path file = folder.write("own/files/sub/a", "a");
  EXPECT_NO_THROW(at.check_is_ours("files"));
  EXPECT_NO_THROW(at.check_is_ours("missing"));
  fs::create_hard_link(file, folder.path() / "other");
  EXPECT_ERROR(at.check_is_ours("files"), UsageError, "sub/a: has 2 names");
  fs::remove(folder.path() / "other");
  fs::create_symlink("a", at.path() / "files/sub/b");
  EXPECT_ERROR(at.check_is_ours("files"), UsageError, "sub/b: is a link of user");
  fs::remove(at.path() / "files/sub/b");
  ASSERT_EQ(::mkfifo((at.path() / "files/fifo").c_str(), 0600), 0);
  EXPECT_ERROR(at.check_is_ours("files"), UsageError, "files/fifo: is a FIFO of user");
  fs::remove(at.path() / "files/fifo");
  if (!give_away(file)) GTEST_SKIP() << "only root can give files away";
  EXPECT_ERROR(at.check_is_ours("files"), UsageError, "sub/a: belongs to user 12345");
  ASSERT_EQ(::lchown(file.c_str(), 0, 0), 0);
  ASSERT_TRUE(give_away(file.parent_path()));
  EXPECT_ERROR(at.check_is_ours("files"), UsageError, "files/sub: belongs to user 12345");
}

TEST(TextFile, TakesThePlaceOfALink) {
  const TempFolder folder;
  folder.write("precious", "precious");
  fs::create_symlink("precious", folder.path() / "latest");
  replace_text_file(folder.path() / "latest", "step1", true);
  EXPECT_EQ(read_all(folder.path() / "precious"), "precious");
  EXPECT_EQ(read_all(folder.path() / "latest"), "step1");
  EXPECT_FALSE(fs::is_symlink(folder.path() / "latest"));
}

TEST(TextFile, IsStagedElsewhereAndLeavesNothing) {
  const TempFolder folder;
  const Folder staging = test::make_own(folder.path() / "staging");
  { const TextFile given_up(folder.path() / "latest", "step1", false, staging); }
  TextFile file(folder.path() / "latest", "step1", false, staging);
  EXPECT_EQ(staging.names().size(), 1u);
  EXPECT_FALSE(fs::exists(folder.path() / "latest"));
  file.publish();
  EXPECT_EQ(read_all(folder.path() / "latest"), "step1");
  EXPECT_TRUE(staging.names().empty());
}

TEST(TextFile, ReplacesNothingUnasked) {
  const TempFolder folder;
  folder.write("there", "precious");
  TextFile file(folder.path() / "there", "new", false);
  EXPECT_FALSE(file.publish_new());
  EXPECT_EQ(read_all(folder.path() / "there"), "precious");
  TextFile other(folder.path() / "new", "new", false);
  EXPECT_TRUE(other.publish_new());
  EXPECT_EQ(read_all(folder.path() / "new"), "new");
}

}  // namespace
}  // namespace dsckpt
