#include "exec/staged_output.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/journal.h"
#include "exec/staging_owner.h"
#include "io/text_file.h"
#include "support/expect_error.h"
#include "support/own_folder.h"
#include "support/plan_runner.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::own;
using test::read_all;
using test::TempFolder;

// Outputs a, sub/deep/b and z.json, which hold their own paths.
CopyPlan three_files() {
  PlanBuilder builder;
  for (const std::string path : {"a", "sub/deep/b", "z.json"}) {
    const OutputId out = builder.add_output(path, path.size());
    builder.put_literal(out, 0, path);
  }
  return builder.finish();
}

// Outputs b, a, c and index, each an "x".
CopyPlan four_files() {
  PlanBuilder builder;
  for (const std::string path : {"b", "a", "c", "index"}) {
    builder.put_literal(builder.add_output(path, 1), 0, "x");
  }
  return builder.finish();
}

void run(const CopyPlan& plan, Sink& sink) {
  const InputFiles none;
  Progress progress;
  execute(plan, none, sink, progress);
}

// Everything below `folder`, as relative paths; folders end in '/'.
std::set<std::string> listing(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.insert(entry.path().lexically_relative(folder).string() +
                 (entry.is_directory() ? "/" : ""));
  }
  return names;
}

const std::set<std::string> kCommitted{"a", "sub/", "sub/deep/", "sub/deep/b", "z.json"};

TEST(StagedOutput, ShowsNothingUnderFinalNamesUntilCommit) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  const fs::path target = folder.path() / "out";
  StagedOutput output(plan, target);
  output.prepare();
  run(plan, output);
  EXPECT_FALSE(fs::exists(target));
  output.commit();
  EXPECT_EQ(listing(target), kCommitted);
  EXPECT_EQ(listing(folder.path()).size(), kCommitted.size() + 1);  // and nothing beside it
  EXPECT_EQ(read_all(target / "a"), "a");
  EXPECT_EQ(read_all(target / "sub/deep/b"), "sub/deep/b");
  EXPECT_EQ(read_all(target / "z.json"), "z.json");
}

TEST(StagedOutput, ShowsNothingUnderFinalNamesInAFolderThatIsThere) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  folder.write("theirs", "");
  StagedOutput output(plan, folder.path());
  output.prepare();
  run(plan, output);
  for (const std::string& name : listing(folder.path())) {
    EXPECT_TRUE(name == "theirs" || name.starts_with(".dsckpt-staging-")) << name;
  }
  output.commit();
  std::set<std::string> expected = kCommitted;
  expected.insert("theirs");
  EXPECT_EQ(listing(folder.path()), expected);
}

TEST(StagedOutput, ReplacesAFolderAsAWholeOnlyIfForced) {
  for (const bool durable : {false, true}) {
    const TempFolder folder;
    const CopyPlan plan = three_files();
    fs::create_directories(folder.path() / "out/sub/old");
    folder.write("out/sub/old/stale", "stale");
    const fs::path target = folder.path() / "out/";
    StageOptions options{.force = false, .durable = durable, .whole_folder = true};
    EXPECT_ERROR(StagedOutput(plan, target, options).prepare(), UsageError, "exists already");
    options.force = true;
    {
      StagedOutput given_up(plan, target, options);
      given_up.prepare();
      run(plan, given_up);
    }
    EXPECT_EQ(listing(folder.path()),
              (std::set<std::string>{"out/", "out/sub/", "out/sub/old/", "out/sub/old/stale"}));
    StagedOutput output(plan, target, options);
    output.prepare();
    run(plan, output);
    EXPECT_TRUE(fs::exists(folder.path() / "out/sub/old/stale"));
    output.commit();
    EXPECT_EQ(listing(folder.path() / "out"), kCommitted);
    EXPECT_EQ(listing(folder.path()).size(), kCommitted.size() + 1);
  }
}

TEST(StagedOutput, FillsAnEmptyFolderAsAWholeUnasked) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  fs::create_directory(folder.path() / "out");
  StagedOutput output(plan, folder.path() / "out", {.whole_folder = true});
  output.prepare();
  run(plan, output);
  output.commit();
  EXPECT_EQ(listing(folder.path() / "out"), kCommitted);
}

TEST(StagedOutput, LeavesAloneAFolderThatAppearsBeforeTheCommit) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  {
    StagedOutput output(plan, folder.path() / "out", {.whole_folder = true});
    output.prepare();
    run(plan, output);
    fs::create_directory(folder.path() / "out");
    folder.write("out/theirs", "");
    EXPECT_ERROR(output.commit(), UsageError, "exists already");
  }
  EXPECT_EQ(listing(folder.path()), (std::set<std::string>{"out/", "out/theirs"}));
}

TEST(ReplaceTextFile, MakesReplacesAndLeavesNothingElse) {
  const TempFolder folder;
  const mode_t old = ::umask(022);
  replace_text_file(folder.path() / "latest", "step1", false);
  EXPECT_EQ(read_all(folder.path() / "latest"), "step1");
  replace_text_file(folder.path() / "latest", "step2", true);
  ::umask(old);
  EXPECT_EQ(read_all(folder.path() / "latest"), "step2");
  EXPECT_EQ(listing(folder.path()), std::set<std::string>{"latest"});
  struct stat s {};
  ASSERT_EQ(::stat((folder.path() / "latest").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0644u);
  EXPECT_ERROR(replace_text_file(folder.path() / "no/latest", "x", false), IoError, "cannot write");
  fs::create_directory(folder.path() / "dir");
  EXPECT_ERROR(replace_text_file(folder.path() / "dir", "x", false), IoError, "cannot write");
  EXPECT_EQ(listing(folder.path()), (std::set<std::string>{"dir/", "latest"}));
}

TEST(StagedOutput, CommitsDurablyToo) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  {
    StagedOutput output(plan, folder.path() / "new/out/", {.force = false, .durable = true});
    output.prepare();
    run(plan, output);
    output.commit();
  }
  EXPECT_EQ(listing(folder.path() / "new/out"), kCommitted);
}

TEST(StagedOutput, CommitsManyFilesDurablyToo) {
  const TempFolder folder;
  PlanBuilder builder;
  std::set<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    const std::string sub = "sub" + std::to_string(i);
    const OutputId out = builder.add_output(sub + "/file", 3);
    builder.put_literal(out, 0, "abc");
    expected.insert({sub + "/", sub + "/file"});
  }
  const CopyPlan plan = builder.finish();
  fs::create_directory(folder.path() / "old");
  folder.write("old/mine", "mine");
  for (const std::string name : {"new", "old"}) {
    StagedOutput output(plan, folder.path() / name, {.durable = true});
    output.prepare();
    run(plan, output);
    output.commit();
    EXPECT_EQ(read_all(folder.path() / name / "sub39/file"), "abc");
  }
  EXPECT_EQ(listing(folder.path() / "new"), expected);
  expected.insert("mine");
  EXPECT_EQ(listing(folder.path() / "old"), expected);
}

TEST(StagedOutput, RemovesStagingAndTheFoldersItMadeWithoutACommit) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  {
    StagedOutput output(plan, folder.path() / "x/y/out");
    output.prepare();
    run(plan, output);
    EXPECT_TRUE(fs::exists(folder.path() / "x/y"));
  }
  EXPECT_TRUE(listing(folder.path()).empty());

  fs::create_directory(folder.path() / "kept");
  folder.write("kept/mine", "mine");
  {
    StagedOutput output(plan, folder.path() / "kept");
    output.prepare();
    output.write_at(0, 0, as_byte_span("a"));
  }
  EXPECT_EQ(listing(folder.path()), (std::set<std::string>{"kept/", "kept/mine"}));
}

TEST(StagedOutput, KeepsFoldersItMadeIfSomebodyElsePutAFileThere) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  {
    StagedOutput output(plan, folder.path() / "x/out");
    output.prepare();
    folder.write("x/theirs", "");
  }
  EXPECT_EQ(listing(folder.path()), (std::set<std::string>{"x/", "x/theirs"}));
}

TEST(StagedOutput, RefusesExistingFilesUnlessForced) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  fs::create_directories(folder.path() / "sub/deep");
  folder.write("sub/deep/b", "old");
  folder.write("z.json", "old index");
  folder.write("other", "untouched");
  const std::set<std::string> before = listing(folder.path());
  try {
    StagedOutput output(plan, folder.path());
    output.prepare();
    FAIL() << "nothing thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("sub/deep/b: exists already"), std::string::npos);
    EXPECT_EQ(error.hint(), "--force replaces it");
  }
  EXPECT_EQ(listing(folder.path()), before);

  StagedOutput output(plan, folder.path(), {.force = true, .durable = false});
  output.prepare();
  run(plan, output);
  EXPECT_EQ(read_all(folder.path() / "sub/deep/b"), "old");
  EXPECT_EQ(read_all(folder.path() / "z.json"), "old index");
  output.commit();
  EXPECT_EQ(read_all(folder.path() / "sub/deep/b"), "sub/deep/b");
  EXPECT_EQ(read_all(folder.path() / "z.json"), "z.json");
  EXPECT_EQ(read_all(folder.path() / "other"), "untouched");
  EXPECT_EQ(read_all(folder.path() / "a"), "a");
}

TEST(StagedOutput, LeavesOldFilesAloneWhenAForcedRunIsGivenUp) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  folder.write("z.json", "old index");
  {
    StagedOutput output(plan, folder.path(), {.force = true, .durable = false});
    output.prepare();
    run(plan, output);
  }
  EXPECT_EQ(listing(folder.path()), std::set<std::string>{"z.json"});
  EXPECT_EQ(read_all(folder.path() / "z.json"), "old index");
}

TEST(StagedOutput, ReplacesASymbolicLinkAndNotWhatItPointsAt) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  folder.write("precious", "precious");
  fs::create_symlink("precious", folder.path() / "a");
  EXPECT_ERROR(StagedOutput(plan, folder.path()).prepare(), UsageError, "a: exists already");
  StagedOutput output(plan, folder.path(), {.force = true, .durable = false});
  output.prepare();
  run(plan, output);
  output.commit();
  EXPECT_EQ(read_all(folder.path() / "precious"), "precious");
  EXPECT_FALSE(fs::is_symlink(folder.path() / "a"));
}

TEST(StagedOutput, RefusesFoldersAndFilesInTheWayEvenIfForced) {
  const CopyPlan plan = three_files();
  const StageOptions force{.force = true, .durable = false};
  {
    const TempFolder folder;
    fs::create_directory(folder.path() / "a");
    EXPECT_ERROR(StagedOutput(plan, folder.path(), force).prepare(), UsageError,
                 "a folder has the name of an output file");
    EXPECT_EQ(listing(folder.path()), std::set<std::string>{"a/"});
  }
  {
    const TempFolder folder;
    folder.write("sub", "a file where a folder must be");
    EXPECT_ERROR(StagedOutput(plan, folder.path(), force).prepare(), UsageError,
                 "sub: is not a folder");
    EXPECT_EQ(listing(folder.path()), std::set<std::string>{"sub"});
  }
  {
    const TempFolder folder;
    const fs::path file = folder.write("file", "");
    EXPECT_ERROR(StagedOutput(plan, file, force).prepare(), UsageError, "file: is not a folder");
    EXPECT_ERROR(StagedOutput(plan, file / "below/it", force).prepare(), IoError,
                 "cannot make the folder");
    EXPECT_EQ(listing(folder.path()), std::set<std::string>{"file"});
  }
}

TEST(StagedOutput, NeedsTheRightToWriteIntoTheFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TempFolder folder;
  const CopyPlan plan = three_files();
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_ERROR(StagedOutput(plan, folder.path()).prepare(), IoError,
               "cannot write into the folder");
  EXPECT_ERROR(StagedOutput(plan, folder.path() / "out").prepare(), IoError,
               "cannot make the folder");
  fs::permissions(folder.path(), fs::perms::owner_all);
}

TEST(StagedOutput, RefusesAPlanLargerThanTheFreeSpaceBeforeMakingAnything) {
  const TempFolder folder;
  PlanBuilder builder;
  builder.add_output("a", uint64_t{1} << 60);
  const CopyPlan plan = builder.finish();
  try {
    StagedOutput output(plan, folder.path() / "out");
    output.prepare();
    FAIL() << "nothing thrown";
  } catch (const IoError& error) {
    EXPECT_EQ(error.errno_value(), ENOSPC);
    EXPECT_NE(std::string(error.what()).find("needs " + human_bytes(uint64_t{1} << 60)),
              std::string::npos);
  }
  EXPECT_TRUE(listing(folder.path()).empty());
}

TEST(StagedOutput, MovesTheLastFileLastAndRemovesItsOldVersionFirst) {
  const TempFolder folder;
  const CopyPlan plan = four_files();
  for (const char* name : {"a", "b", "c", "index"}) folder.write(name, "old");
  StagedOutput output(plan, folder.path(), {.force = true, .durable = false});
  output.prepare();
  run(plan, output);

  const int watch = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(watch, 0);
  ASSERT_GE(::inotify_add_watch(watch, folder.path().c_str(), IN_MOVED_TO | IN_DELETE), 0);
  output.commit();
  std::vector<std::string> events;
  alignas(inotify_event) std::array<char, 8192> buffer;
  for (ssize_t got; (got = ::read(watch, buffer.data(), buffer.size())) > 0;) {
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
      if ((event->mask & IN_ISDIR) == 0) {
        events.emplace_back((event->mask & IN_DELETE) != 0 ? "-" : "+");
        events.back() += event->name;
      }
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
  }
  ::close(watch);
  EXPECT_EQ(events, (std::vector<std::string>{"-index", "+b", "+a", "+c", "+index"}));
}

// A user who may rename beside the target puts another folder there.
TEST(StagedOutput, ReplacesNoOtherFolderThatHasItsNameMeanwhile) {
  for (const bool is_output : {false, true}) {
    const TempFolder folder;
    const CopyPlan plan = three_files();
    const fs::path target = folder.path() / "out";
    fs::create_directory(target);
    folder.write("out/old", "old");
    StageOptions options{.force = true, .whole_folder = true};
    options.may_replace = [](const fs::path& path) { return path == "sub/mine"; };
    StagedOutput output(plan, target, options);
    output.prepare();
    run(plan, output);
    fs::rename(target, folder.path() / "away");
    fs::create_directories(target / "sub");
    folder.write(is_output ? "out/sub/mine" : "out/sub/precious", "precious");
    if (is_output) {
      output.commit();
      EXPECT_EQ(listing(target), kCommitted);
    } else {
      EXPECT_ERROR(output.commit(), UsageError,
                   "is not the folder that was there when this run began");
      output.give_up();
      EXPECT_EQ(read_all(target / "sub/precious"), "precious");
    }
    EXPECT_EQ(read_all(folder.path() / "away/old"), "old");
    EXPECT_EQ(listing(folder.path()).size(), is_output ? kCommitted.size() + 3 : 5u);
  }
}

TEST(StagedOutput, TakesBackWhatItRenamedWhenAFileAppearsMeanwhile) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  fs::create_directory(folder.path() / "out");
  {
    StagedOutput output(plan, folder.path() / "out");
    output.prepare();
    run(plan, output);
    const fs::path last = folder.path() / "out" / plan.outputs().back().path;
    fs::create_directories(last.parent_path());
    std::ofstream(last) << "precious";
    EXPECT_ERROR(output.commit(), UsageError, "exists already");
  }
  EXPECT_EQ(listing(folder.path() / "out").size(), 1u);
  EXPECT_EQ(test::read_all(folder.path() / "out" / plan.outputs().back().path), "precious");
}

// The staging folder in `place`.
fs::path staging_in(const fs::path& place) {
  for (const auto& entry : fs::directory_iterator(place)) {
    if (entry.path().filename().string().starts_with(kStagingPrefix)) return entry.path();
  }
  return {};
}

// A file that cannot be renamed is not there.
TEST(StagedOutput, PutsOldFilesBackWhenNotAllCanBeRenamed) {
  for (const std::string lost : {"b", "a", "c", "index"}) {
    const TempFolder folder;
    const CopyPlan plan = four_files();
    folder.write("a", "old a");
    folder.write("b.zst", "old b");
    fs::create_symlink("elsewhere", folder.path() / "c");
    folder.write("index", "old index");
    const std::set<std::string> before = listing(folder.path());
    StagedOutput output(plan, folder.path(), {.force = true});
    output.prepare();
    run(plan, output);
    fs::remove(staging_in(folder.path()) / "files" / lost);
    EXPECT_ERROR(output.commit(), IoError, "cannot move into place");
    output.give_up();
    EXPECT_EQ(output.notes(), std::vector<std::string>());
    EXPECT_EQ(listing(folder.path()), before) << lost;
    EXPECT_EQ(read_all(folder.path() / "a"), "old a");
    EXPECT_EQ(read_all(folder.path() / "b.zst"), "old b");
    EXPECT_EQ(fs::read_symlink(folder.path() / "c"), "elsewhere");
    EXPECT_EQ(read_all(folder.path() / "index"), "old index");
  }
}

TEST(StagedOutput, PutsOldFilesBackWhenOneCannotBeKept) {
  const TempFolder folder;
  const CopyPlan plan = four_files();
  for (const char* name : {"a", "index"}) folder.write(name, "old");
  fs::path staging;
  {
    StagedOutput output(plan, folder.path(), {.force = true});
    output.prepare();
    run(plan, output);
    staging = staging_in(folder.path());
    fs::remove(staging / "files/c");
    // A folder in the place of what is to be kept: neither a link nor a rename gets there.
    fs::create_directories(staging / "old/1/x");
    try {
      output.commit();
      FAIL() << "nothing thrown";
    } catch (const IoError& error) {
      EXPECT_NE(std::string(error.what()).find("a: cannot replace"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(read_all(folder.path() / "a"), "old");
    EXPECT_EQ(read_all(folder.path() / "index"), "old");
    EXPECT_FALSE(fs::exists(folder.path() / "b"));
  }
  EXPECT_FALSE(fs::exists(staging));
}

TEST(StagedOutput, TakesAFolderBackIfItsPointerCannotBeWritten) {
  for (const bool forced : {false, true}) {
    const TempFolder folder;
    const CopyPlan plan = three_files();
    if (forced) {
      fs::create_directory(folder.path() / "out");
      folder.write("out/mine", "mine");
    }
    fs::create_directory(folder.path() / "latest");
    const std::set<std::string> before = listing(folder.path());
    StagedOutput output(plan, folder.path() / "out", {.force = forced, .whole_folder = true});
    output.prepare();
    run(plan, output);
    EXPECT_ERROR(output.commit({folder.path() / "latest", "out"}), IoError, "latest: cannot write");
    output.give_up();
    EXPECT_EQ(listing(folder.path()), before);
  }
}

TEST(StagedOutput, WritesThePointerLast) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  StagedOutput output(plan, folder.path() / "out", {.durable = true});
  output.prepare();
  run(plan, output);
  output.commit({folder.path() / "latest", "out"});
  EXPECT_EQ(read_all(folder.path() / "latest"), "out");
  EXPECT_EQ(listing(folder.path()).size(), kCommitted.size() + 2);
}

// A rank that was suspended has the sink of a run that others have resumed.
class SleepingRank : public testing::TestWithParam<bool> {
 protected:
  // Runs that commit a whole folder, or file by file.
  SleepingRank() {
    if (!GetParam()) fs::create_directory(target_);
  }

  StageOptions options(bool packed) const {
    return {.shared = true, .packed = packed, .job = &job_};
  }

  // Stops as a process that is killed: this one's signature would say that it is at work.
  void stop(StagedOutput& output) const {
    const fs::path owner = output.folder()->path() / "owner";
    output.give_up();
    fs::remove(owner);
  }

  const TempFolder folder_;
  const fs::path target_ = folder_.path() / "out";
  const JobIdentity job_{.plan = "1"};
};

TEST_P(SleepingRank, FindsNoFileThatItHasNotOpen) {
  const CopyPlan plan = four_files();
  StagedOutput before(plan, target_, options(false));
  before.prepare();
  StagedFiles sleeper(plan, before.place());
  sleeper.write_at(0, 0, as_byte_span("x"));
  stop(before);

  StagedOutput after(plan, target_, options(false));
  after.prepare();
  const auto wake = [&] {
    // The files that it has open have, or will have, the same bytes.
    sleeper.write_at(0, 0, as_byte_span("x"));
    EXPECT_ERROR(sleeper.write_at(1, 0, as_byte_span("y")), IoError, "cannot create");
  };
  wake();
  run(plan, after);
  wake();
  after.commit();
  const std::set<std::string> committed = listing(folder_.path());
  wake();
  sleeper.finish(0);
  EXPECT_EQ(listing(folder_.path()), committed);
  EXPECT_EQ(listing(target_), (std::set<std::string>{"a", "b", "c", "index"}));
  for (const char* name : {"a", "b", "c", "index"}) EXPECT_EQ(read_all(target_ / name), "x");
}

TEST_P(SleepingRank, CannotTouchAPackedFileThatOthersHaveDone) {
  PlanBuilder builder;
  for (const std::string path : {"a.bin", "b.bin"}) {
    builder.put_literal(builder.add_output(path, 1), 0, "x");
  }
  const CopyPlan plan = builder.finish();
  StagedOutput before(plan, target_, options(true));
  before.prepare();
  StagedFiles sleeper(plan, before.place());
  sleeper.write_at(0, 0, as_byte_span("half of it"));
  // Whole, before the run has stopped: others write it once more.
  sleeper.write_at(1, 0, as_byte_span("all of it"));
  sleeper.finish(1);
  stop(before);

  StagedOutput after(plan, target_, options(true));
  after.prepare();
  for (OutputId out : {0u, 1u}) {
    after.write_at(out, 0, as_byte_span("packed"));
    after.finish(out);
  }
  sleeper.write_at(0, 0, as_byte_span("late"));
  EXPECT_ERROR(sleeper.finish(0), IoError, "cannot be given its name");
  EXPECT_EQ(read_all(after.staged_path(0)), "packed");
  EXPECT_EQ(read_all(after.staged_path(1)), "packed");
  after.commit();
  EXPECT_ERROR(StagedFiles(plan, before.place()).write_at(0, 0, as_byte_span("late")), IoError,
               "cannot create");
  EXPECT_EQ(listing(target_), (std::set<std::string>{"a.bin.dspack", "b.bin.dspack"}));
  for (const char* name : {"a.bin.dspack", "b.bin.dspack"}) {
    EXPECT_EQ(read_all(target_ / name), "packed");
  }
}

// The folder for a run with --resume is called after its output.
TEST_P(SleepingRank, FindsNothingOfAnotherJobThatWritesToTheSamePlace) {
  const CopyPlan plan = four_files();
  StagedOutput before(plan, target_, options(false));
  before.prepare();
  StagedFiles sleeper(plan, before.place());
  before.give_up(true);
  const JobIdentity other{.plan = "2"};
  StagedOutput after(plan, target_, {.shared = true, .job = &other});
  after.prepare();
  EXPECT_ERROR(sleeper.write_at(0, 0, as_byte_span("y")), IoError, "cannot create");
  run(plan, after);
  EXPECT_ERROR(sleeper.write_at(1, 0, as_byte_span("y")), IoError, "cannot create");
  after.commit();
  EXPECT_EQ(read_all(target_ / "a"), "x");
}

INSTANTIATE_TEST_SUITE_P(Commits, SleepingRank, testing::Bool());

// As a process that is killed.
void sign_and_die(const fs::path& staging) {
  if (!fs::exists(staging)) test::make_own(staging);
  fs::create_directory(staging / "files");
  const pid_t child = ::fork();
  if (child == 0) {
    const StagingOwner owner(own(staging));
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
}

TEST(StagingOwner, IsDeadWhenItsProcessIs) {
  const TempFolder folder;
  const fs::path staging = folder.path() / ".dsckpt-staging-abc";
  sign_and_die(staging);
  EXPECT_EQ(owner_of(own(staging)).state, OwnerState::dead);
  const std::string who = owner_of(own(staging)).who;
  EXPECT_TRUE(who.starts_with("process ")) << who;
  const StagingOwner again(own(staging));
  EXPECT_EQ(owner_of(own(staging)).state, OwnerState::alive);
}

TEST(StagingOwner, IsAliveWithoutALockWhileItsProcessRuns) {
  const TempFolder folder;
  int signed_it[2];
  int may_end[2];
  ASSERT_EQ(::pipe(signed_it), 0);
  ASSERT_EQ(::pipe(may_end), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    { const StagingOwner owner(own(folder.path())); }
    char byte = 0;
    static_cast<void>(::write(signed_it[1], &byte, 1) + ::read(may_end[0], &byte, 1));
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(signed_it[0], &byte, 1), 1);
  EXPECT_EQ(owner_of(own(folder.path())).state, OwnerState::alive);
  ASSERT_EQ(::write(may_end[1], &byte, 1), 1);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(owner_of(own(folder.path())).state, OwnerState::dead);
  for (const int fd : {signed_it[0], signed_it[1], may_end[0], may_end[1]}) ::close(fd);
}

TEST(StagingOwner, IsDeadWhenThisProcessHasGivenItUp) {
  const TempFolder folder;
  {
    const StagingOwner owner(own(folder.path()));
    EXPECT_EQ(owner_of(own(folder.path())).state, OwnerState::alive);
  }
  EXPECT_EQ(owner_of(own(folder.path())).state, OwnerState::dead);
}

TEST(StagingOwner, IsUnknownOnAnotherHostOrInAnotherContainer) {
  const TempFolder folder;
  sign_and_die(folder.path());
  const auto signed_by = nlohmann::json::parse(read_all(folder.path() / "owner"));
  for (const char* key : {"host", "pid_namespace"}) {
    auto other = signed_by;
    other[key] = "another";
    folder.write("owner", other.dump());
    EXPECT_EQ(owner_of(own(folder.path())).state, OwnerState::unknown) << key;
  }
  auto before = signed_by;
  before["boot"] = "the one before";
  folder.write("owner", before.dump());
  EXPECT_EQ(owner_of(own(folder.path())).state, OwnerState::dead);
  for (const std::string text : {"", "{", "[]", "{}", R"({"host": 1})"}) {
    folder.write("owner", text);
    EXPECT_NE(owner_of(own(folder.path())).state, OwnerState::dead) << text;
  }
}

TEST(StagedOutput, RemovesWhatAKilledRunLeftAndNamesWhatMayStillBeWritten) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  const auto staging = [&](const std::string& name) {
    return folder.path() / (".dsckpt-staging-" + name);
  };
  for (const char* name : {"dead", "alive", "far"}) sign_and_die(staging(name));
  const StagingOwner alive(own(staging("alive")));
  auto far = nlohmann::json::parse(read_all(staging("far") / "owner"));
  far["host"] = "node7";
  far["job"] = "17.0";
  folder.write(".dsckpt-staging-far/owner", far.dump());
  folder.write(".dsckpt-staging-file", "no folder");
  fs::create_directory_symlink(staging("dead"), staging("link"));

  StagedOutput output(plan, folder.path() / "out");
  output.prepare();
  run(plan, output);
  output.commit();
  EXPECT_EQ(listing(folder.path() / "out"), kCommitted);
  EXPECT_FALSE(fs::exists(staging("dead")));
  for (const char* name : {"alive", "far", "file", "link"}) {
    EXPECT_TRUE(fs::exists(fs::symlink_status(staging(name)))) << name;
  }
  std::vector<std::string> notes = output.notes();
  std::sort(notes.begin(), notes.end());
  const std::string process = std::to_string(far["pid"].get<int>());
  EXPECT_EQ(notes,
            (std::vector<std::string>{
                staging("far").string() + " is an unfinished output of process " + process +
                    " on node7, job 17.0; if that no longer runs, remove it",
                "removed " + staging("dead").string() + ", which a run that was killed had left"}));
}

TEST(StagedOutput, GivesFilesTheRightsTheUmaskLeaves) {
  const TempFolder folder;
  const CopyPlan plan = three_files();
  const mode_t old = ::umask(022);
  StagedOutput output(plan, folder.path() / "out");
  output.prepare();
  run(plan, output);
  output.commit();
  ::umask(old);
  struct stat s {};
  ASSERT_EQ(::stat((folder.path() / "out/sub/deep/b").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0644u);
  ASSERT_EQ(::stat((folder.path() / "out/sub/deep").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0755u);
}

TEST(StagedOutput, LeavesNothingBehindWhenAWriteFailsMidway) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TempFolder folder;
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = 2'500'000;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        PlanBuilder builder;
        const std::string text = test::random_bytes(4'000'000, 1);
        builder.put_literal(builder.add_output("small", 5), 0, "small");
        builder.put_literal(builder.add_output("sub/large", text.size()), 0, text);
        const CopyPlan plan = builder.finish();
        bool good = false;
        try {
          StagedOutput output(plan, folder.path() / "out");
          output.prepare();
          run(plan, output);
          output.commit();
        } catch (const IoError& error) {
          // The message names the file the user asked for, not the staged one.
          good = error.errno_value() == EFBIG &&
                 error.where().file == (folder.path() / "out/sub/large").string();
        }
        good = good && listing(folder.path()).empty();
        fs::remove_all(folder.path());
        std::exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StagedOutput, WritesDirectlyWhatIsWrittenThroughThePageCacheOtherwise) {
  // Two digests, with patches in front of their ranges and far behind, in a file that is large.
  constexpr uint64_t kRecord = 5 << 20;
  const std::string head(100, 'h');
  const TempFolder folder;
  InputFiles inputs;
  const std::string bytes = test::random_bytes(2 * kRecord, 7);
  const FileId in = inputs.add(folder.write("in", bytes));
  PlanBuilder builder;
  const uint64_t size = 2 * (head.size() + kRecord) + head.size();
  builder.add_output("large", size);
  builder.add_output("small", 10);
  builder.put_literal(1, 0, "0123456789");
  uint64_t at = 0;
  for (uint64_t i = 0; i < 2; ++i) {
    builder.put_literal(0, at, head);
    const uint64_t begin = at + head.size();
    builder.put(0, begin,
                TensorSource::stored({in, i * kRecord, kRecord}, DType::uint8,
                                     {static_cast<int64_t>(kRecord)}));
    builder.add_digest({0, begin, begin + kRecord, {at + 4, size - 50 + 10 * i}});
    at = begin + kRecord;
  }
  builder.put_literal(0, at, head);
  const CopyPlan plan = builder.finish();
  const std::vector<std::string> expected = test::run_plan(plan, inputs);
  for (const bool direct : {false, true}) {
    for (const uint64_t unit : {uint64_t{256} << 10, uint64_t{4} << 20}) {
      const fs::path target = folder.path() / ("out" + std::to_string(unit) + (direct ? "d" : ""));
      StagedOutput staged(plan, target, {.direct = direct});
      staged.prepare();
      Progress progress;
      ExecOptions options;
      options.threads = 3;
      options.unit_bytes = unit;
      execute(plan, inputs, staged, progress, options);
      staged.commit();
      EXPECT_TRUE(read_all(target / "large") == expected[0]) << direct << unit;
      EXPECT_EQ(read_all(target / "small"), expected[1]);
    }
  }
}

TEST(StagedOutput, HandlesMoreOutputsThanDescriptors) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TempFolder folder;
        rlimit limit{};
        ::getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = 40;
        ::setrlimit(RLIMIT_NOFILE, &limit);
        PlanBuilder builder;
        for (int i = 0; i < 400; ++i) {
          const std::string path = std::to_string(i);
          builder.put_literal(builder.add_output(path, path.size()), 0, path);
        }
        const CopyPlan plan = builder.finish();
        StagedOutput output(plan, folder.path());
        output.prepare();
        run(plan, output);
        output.commit();
        const bool good =
            listing(folder.path()).size() == 400 && read_all(folder.path() / "399") == "399";
        fs::remove_all(folder.path());
        std::exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StagingOwner, IsTheOnlyOne) {
  const TempFolder folder;
  {
    const StagingOwner owner(own(folder.path()));
    EXPECT_ERROR(StagingOwner(own(folder.path())), UsageError, "another process writes there");
    EXPECT_EQ(owner_of(own(folder.path())).state, OwnerState::alive);
  }
  EXPECT_NO_THROW(StagingOwner(own(folder.path())));
}

}  // namespace
}  // namespace dsckpt
