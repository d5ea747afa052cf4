// The search for a checkpoint's folder, and the list of its shards: zero_to_fp32.py
// get_fp32_state_dict_from_zero_checkpoint, engine.py _get_zero_ckpt_name.
#include "checkpoint/find/tag_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "support/expect_error.h"
#include "support/hand_made.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

using Names = std::vector<std::string>;

class TagFolders : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text = "x") {
    fs::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, text);
  }

  TagFolder find(const std::string& tag = {}) {
    return find_tag_folder(folder_.path(), {.tag = tag});
  }

  static Names files_of(const TagFolder& folder) {
    Names names;
    for (const ShardFile& shard : folder.shards) names.push_back(shard.path.filename());
    return names;
  }

  test::TempFolder folder_;
};

// Ranks are not padded, so that names do not sort as they do.
TEST_F(TagFolders, AreListedByRankAndNotByName) {
  for (const char* name :
       {"zero_pp_rank_10_mp_rank_00_optim_states.pt", "zero_pp_rank_9_mp_rank_00_optim_states.pt",
        "zero_pp_rank_0_mp_rank_01_optim_states.pt", "mp_rank_01_model_states.pt",
        "mp_rank_00_model_states.pt"}) {
    write(std::string("step/") + name);
  }
  const TagFolder folder = find_tag_folder(folder_.path() / "step");
  EXPECT_EQ(folder.tag, "step");
  EXPECT_EQ(files_of(folder), (Names{"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt",
                                     "zero_pp_rank_9_mp_rank_00_optim_states.pt",
                                     "zero_pp_rank_10_mp_rank_00_optim_states.pt",
                                     "zero_pp_rank_0_mp_rank_01_optim_states.pt"}));
  EXPECT_EQ(folder.of_kind(ShardName::Kind::model_states).size(), 2u);
  EXPECT_FALSE(folder.has(ShardName::Kind::zero_model_states));
}

TEST_F(TagFolders, LeaveOutWhatIsNoShard) {
  for (const char* name :
       {"step/mp_rank_00_model_states.pt", "step/notes.txt", "step/zero_to_fp32.py",
        "step/mp_rank_00_model_states.pt.bak", "step/offloaded_tensors/x.swp"}) {
    write(name);
  }
  EXPECT_EQ(files_of(find("step")), Names{"mp_rank_00_model_states.pt"});
}

TEST_F(TagFolders, AreNamedByLatest) {
  write("step1/mp_rank_00_model_states.pt");
  write("step2/mp_rank_00_model_states.pt");
  write("latest_universal", "step2");
  EXPECT_EQ(find().tag, "step2");
  write("latest", " step1/\n");
  EXPECT_EQ(find().tag, "step1");
  EXPECT_EQ(find("step2").tag, "step2");
}

TEST_F(TagFolders, LieInsideOfTheFolderThatLatestIsIn) {
  for (const char* tag : {"..", "a/../../b", "/tmp", "", " \n"}) {
    SCOPED_TRACE(tag);
    write("latest", tag);
    EXPECT_ERROR(find(), CorruptError, "does not hold the name of a tag");
  }
  write("latest", std::string(5000, 'a'));
  EXPECT_ERROR(find(), CorruptError, "too long to be the name of a tag");
}

TEST_F(TagFolders, ThatAreMissingAreToldFromThoseThatAreThere) {
  write("step1/mp_rank_00_model_states.pt");
  EXPECT_ERROR(find("step2"), InconsistentError, "(folders there: step1)");
  write("latest", "step3");
  EXPECT_ERROR(find(), InconsistentError, "names the tag 'step3', which is not there");
  EXPECT_ERROR(find_tag_folder(folder_.path() / "nowhere"), UsageError, "no such folder");
  write("notes.txt");
  EXPECT_ERROR(find_tag_folder(folder_.path() / "notes.txt"), InconsistentError, "is a file");
}

// The possible meanings of a path that is not the folder with `latest`.
TEST_F(TagFolders, AreFoundByAFileOfTheirs) {
  write("step1/mp_rank_00_model_states.pt");
  write("step2/mp_rank_00_model_states.pt");
  write("latest", "step1");
  write("latest_universal", "step2");
  const auto found = [&](const char* path) { return find_tag_folder(folder_.path() / path); };
  EXPECT_EQ(found("latest").tag, "step1");
  EXPECT_EQ(found("latest_universal").tag, "step2");
  EXPECT_EQ(found("step2/mp_rank_00_model_states.pt").tag, "step2");
  EXPECT_EQ(find_tag_folder(folder_.path() / "step2", {.tag = "step2"}).tag, "step2");
  EXPECT_EQ(found("latest").note, "");
}

class StepFolders : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((made_.folder() / name).parent_path());
    made_.write_raw(name, text);
  }
  // A tag's folder whose model-states file says its step.
  void write_step(const std::string& tag, int64_t step) {
    fs::create_directories(made_.folder() / tag);
    made_.write(tag + "/mp_rank_00_model_states.pt",
                R"({"global_steps": )" + std::to_string(step) + "}");
  }
  TagFolder find(const std::string& tag = {}) {
    return find_tag_folder(made_.folder(), {.tag = tag});
  }

  test::HandMade made_;
};

TEST_F(StepFolders, BelowAreFoundByTheStepsInTheirFiles) {
  write_step("checkpoint-9/step", 9);
  write("checkpoint-9/latest", "step");
  write_step("checkpoint-10/step", 4);
  write("checkpoint-10/latest", "step");
  write("runs/events.1", "x");
  write(".git/step/mp_rank_00_model_states.pt", "x");
  const TagFolder newest = find();
  EXPECT_EQ(newest.path, made_.folder() / "checkpoint-9" / "step");
  EXPECT_EQ(newest.named, made_.folder() / "checkpoint-9");
  EXPECT_NE(newest.note.find("checkpoint-9, the newest of 2 checkpoints"), std::string::npos);
  EXPECT_EQ(find("checkpoint-10").path, made_.folder() / "checkpoint-10" / "step");
  EXPECT_ERROR(find("step"), InconsistentError, "several checkpoints of the tag 'step'");
  // A user who has `latest` has said which.
  write_step("step", 1);
  write("latest", "step");
  EXPECT_EQ(find().path, made_.folder() / "step");
}

TEST_F(StepFolders, BelowOfSeveralRunsAreListed) {
  write_step("a/epoch=0-step=9.ckpt/step", 9);
  write("a/epoch=0-step=9.ckpt/latest", "step");
  EXPECT_EQ(find().path, made_.folder() / "a" / "epoch=0-step=9.ckpt" / "step");
  write_step("b/step", 10);
  EXPECT_ERROR(find(), InconsistentError, "which may be several models");
}

class Roots : public TagFolders {
 protected:
  TagFolder find_both() {
    return find_tag_folder(folder_.path() / "a", {.tag = "step", .roots = {folder_.path() / "b"}});
  }
};

// checkpoint.use_node_local_storage: each node keeps the files of its ranks, and some of all.
TEST_F(Roots, AreListedTogetherAndEqualCopiesOnce) {
  write("a/step/mp_rank_00_model_states.pt");
  write("a/step/zero_pp_rank_0_mp_rank_00_optim_states.pt");
  write("b/step/mp_rank_00_model_states.pt");
  write("b/step/zero_pp_rank_1_mp_rank_00_optim_states.pt");
  const TagFolder folder = find_both();
  EXPECT_EQ(files_of(folder),
            (Names{"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                   "zero_pp_rank_1_mp_rank_00_optim_states.pt"}));
  EXPECT_EQ(folder.other_roots, std::vector<fs::path>{folder_.path() / "b" / "step"});
  EXPECT_EQ(folder.display(folder.shards[2].path), folder.shards[2].path.string());
}

TEST_F(Roots, WithTwoFilesOfARankAreRefused) {
  write("a/step/mp_rank_00_model_states.pt", "one");
  write("b/step/mp_rank_00_model_states.pt", "two");
  EXPECT_ERROR(find_both(), InconsistentError, "two files of one rank");
}

TEST_F(Roots, OfOtherTagsAreRefused) {
  write("a/step/mp_rank_00_model_states.pt");
  write("a/latest", "step");
  write("b/other/mp_rank_00_model_states.pt");
  write("b/latest", "other");
  EXPECT_ERROR(find_tag_folder(folder_.path() / "a", {.roots = {folder_.path() / "b"}}),
               InconsistentError, "names the tag 'other', in the first root it is 'step'");
  EXPECT_ERROR(find_both(), InconsistentError, "has no folder of the tag 'step'");
}

TEST_F(Roots, AreGivenOnce) {
  write("a/step/mp_rank_00_model_states.pt");
  EXPECT_ERROR(
      find_tag_folder(folder_.path() / "a", {.tag = "step", .roots = {folder_.path() / "a"}}),
      UsageError, "is given twice");
}

}  // namespace
}  // namespace dsckpt
