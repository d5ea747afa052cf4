// Names of random states after transformers/trainer.py _save_rng_state and accelerate's
// checkpointing.py save_accelerator_state.
#include "job/neighbours.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "job/job_impl.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;
using Copies = std::map<std::string, std::string>;

// A folder with a tag in it.
class TaggedFolder {
 public:
  explicit TaggedFolder(const Names& files) {
    fs::create_directory(path() / "tag");
    write("latest", "tag");
    write("tag/zero_pp_rank_0_mp_rank_00_optim_states.pt", "shard");
    write("tag/mp_rank_00_model_states.pt", "shard");
    for (const std::string& file : files) write(file, "the bytes of " + file);
  }

  const fs::path& path() const { return folder_.path(); }
  void write(const std::string& name, std::string_view bytes) const {
    fs::create_directories((path() / name).parent_path());
    folder_.write(name, bytes);
  }

  Neighbours find(uint32_t old_ranks, uint32_t new_ranks) const {
    return find_neighbours({path(), path() / "tag", "tag"}, old_ranks, new_ranks);
  }

 private:
  test::TempFolder folder_;
};

Names destinations(const Neighbours& neighbours) {
  Names names;
  for (const Neighbour& file : neighbours.files) names.push_back(file.destination);
  return names;
}

// From destination to the source's name in `folder`.
Copies copies(const Neighbours& neighbours, const fs::path& folder) {
  Copies result;
  for (const Neighbour& file : neighbours.files) {
    result[file.destination] = file.source.lexically_relative(folder).string();
  }
  return result;
}

TEST(Neighbours, AreTheFilesThatFrameworksKeepBesideTheShards) {
  const TaggedFolder folder({"config.json", "zero_to_fp32.py", "model.safetensors",
                             "trainer_state.json", "latest_universal", "logs/run/events.1",
                             "logs/latest", "tag/notes.txt", "tag/layer_notes.pt"});
  const Neighbours found = folder.find(2, 3);
  EXPECT_EQ(destinations(found), (Names{"config.json", "logs/latest", "logs/run/events.1",
                                        "model.safetensors", "tag/layer_notes.pt", "tag/notes.txt",
                                        "trainer_state.json", "zero_to_fp32.py"}));
  for (const Neighbour& file : found.files) {
    EXPECT_EQ(file.source, folder.path() / file.destination);
  }
  EXPECT_EQ(found.notes, Names());
}

TEST(Neighbours, AreNotOtherCheckpoints) {
  const TaggedFolder folder(
      {"global_step2/mp_rank_00_model_states.pt", "global_step2/notes.txt",
       "global_step2_universal/zero/w/fp32.pt", "global_step2_universal/mp_rank_00_model_states.pt",
       "zero/w/fp32.pt", ".dsckpt-staging-abc123/config.json", "tag/zero/w/fp32.pt",
       "older/checkpoint-1/global_step1/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt",
       "older/config.json", "kept/config.json"});
  const Neighbours found = folder.find(2, 3);
  EXPECT_EQ(destinations(found), (Names{"kept/config.json"}));
  EXPECT_EQ(found.notes,
            (Names{"older is a folder with another checkpoint in it and is left out"}));
}

TEST(Neighbours, OfANamedTagFolderAreInThatFolderOnly) {
  const TaggedFolder folder({"config.json", "rng_state_0.pth", "tag/notes.txt"});
  const fs::path tag = folder.path() / "tag";
  for (const fs::path& named : {tag, tag / "", tag / "."}) {
    const Neighbours found = find_neighbours({named, tag, "tag"}, 2, 3);
    EXPECT_EQ(destinations(found), (Names{"tag/notes.txt"}));
    EXPECT_EQ(found.notes, Names());
  }
}

TEST(Neighbours, OfATagInsideFoldersKeepItsPath) {
  const TaggedFolder folder(
      {"config.json", "runs/a/mp_rank_00_model_states.pt", "runs/a/notes.txt"});
  EXPECT_EQ(copies(find_neighbours({folder.path(), folder.path() / "runs/a", "runs/a"}, 2, 3),
                   folder.path()),
            (Copies{{"config.json", "config.json"}, {"runs/a/notes.txt", "runs/a/notes.txt"}}));
}

TEST(Neighbours, FollowLinksToFilesOfTheCheckpointOnly) {
  const std::string kLeftOut =
      " is a link out of the checkpoint and is left out; --follow-links copies it";
  const TaggedFolder folder({"config.json"});
  const test::TempFolder elsewhere;
  elsewhere.write("file", "elsewhere");
  fs::create_symlink(folder.path() / "config.json", folder.path() / "link.json");
  fs::create_symlink(elsewhere.path() / "file", folder.path() / "out.json");
  fs::create_symlink("out.json", folder.path() / "tag" / "twice.json");
  fs::create_symlink("../out.json", folder.path() / "tag" / "out.json");
  fs::create_symlink("config.json",
                     folder.path() / "tag" / "up.json");  // broken: no tag/config.json
  fs::create_symlink("nowhere", folder.path() / "broken");
  fs::create_directory_symlink(elsewhere.path(), folder.path() / "folder");
  fs::create_directory_symlink("tag", folder.path() / "tag_link");
  fs::create_directory(folder.path() / "empty");
  ASSERT_EQ(::mkfifo((folder.path() / "fifo").c_str(), 0600), 0);

  const Neighbours found = folder.find(1, 1);
  EXPECT_EQ(copies(found, folder.path()),
            (Copies{{"config.json", "config.json"}, {"link.json", "link.json"}}));
  EXPECT_EQ(found.notes,
            (Names{"broken is a broken link and is left out",
                   "fifo is neither file nor folder and is left out",
                   "folder is a link to a folder and is left out", "out.json" + kLeftOut,
                   "tag/out.json" + kLeftOut, "tag/twice.json" + kLeftOut,
                   "tag/up.json is a broken link and is left out"}));

  const Neighbours followed =
      find_neighbours({folder.path(), folder.path() / "tag", "tag", {}, true}, 1, 1);
  EXPECT_EQ(destinations(followed),
            (Names{"config.json", "link.json", "out.json", "tag/out.json", "tag/twice.json"}));
}

TEST(Neighbours, MayLieBesideALinkedTag) {
  const TaggedFolder shards({"tag/notes.txt"});
  const test::TempFolder folder;
  folder.write("latest", "tag");
  folder.write("config.json", "{}");
  fs::create_directory_symlink(shards.path() / "tag", folder.path() / "tag");
  const Neighbours found = find_neighbours({folder.path(), folder.path() / "tag", "tag"}, 1, 2);
  EXPECT_EQ(destinations(found), (Names{"config.json", "tag/notes.txt"}));
  EXPECT_EQ(found.notes, Names());
}

TEST(Neighbours, DoNotIncludeFoldersOfTheTag) {
  const TaggedFolder folder({"tag/logs/a.txt", "tag/offloaded_tensors/rank00/0_1.tensor.swp"});
  const Neighbours found = folder.find(1, 2);
  EXPECT_EQ(found.files, std::vector<Neighbour>());
  EXPECT_EQ(found.notes, (Names{"tag/logs is a folder beside the shards and is left out"}));
}

TEST(Neighbours, KeepTheTrainersRandomStatesOfRanksThatStay) {
  const TaggedFolder folder({"rng_state_0.pth", "rng_state_1.pth"});
  const Neighbours more = folder.find(2, 8);
  EXPECT_EQ(destinations(more), (Names{"rng_state_0.pth", "rng_state_1.pth"}));
  EXPECT_EQ(more.notes, (Names{"ranks 2 to 7 have no RNG state and start with a fresh one"}));

  EXPECT_EQ(folder.find(2, 3).notes,
            (Names{"rank 2 has no RNG state and starts with a fresh one"}));
  EXPECT_EQ(folder.find(2, 2).notes, Names());

  const TaggedFolder four(
      {"rng_state_0.pth", "rng_state_1.pth", "rng_state_2.pth", "rng_state_3.pth"});
  const Neighbours fewer = four.find(4, 2);
  EXPECT_EQ(destinations(fewer), (Names{"rng_state_0.pth", "rng_state_1.pth"}));
  EXPECT_EQ(fewer.notes, (Names{"the RNG states of ranks 2 to 3 are left out"}));
  EXPECT_EQ(four.find(4, 3).notes, (Names{"the RNG state of rank 3 is left out"}));
}

TEST(Neighbours, RenameTheTrainersRandomStateOfOneRank) {
  const TaggedFolder one({"rng_state.pth"});
  const Neighbours more = one.find(1, 3);
  EXPECT_EQ(copies(more, one.path()), (Copies{{"rng_state_0.pth", "rng_state.pth"}}));
  EXPECT_EQ(more.notes, (Names{"ranks 1 to 2 have no RNG state and start with a fresh one"}));
  EXPECT_EQ(copies(one.find(1, 1), one.path()), (Copies{{"rng_state.pth", "rng_state.pth"}}));

  const TaggedFolder two({"rng_state_0.pth", "rng_state_1.pth"});
  const Neighbours fewer = two.find(2, 1);
  EXPECT_EQ(copies(fewer, two.path()), (Copies{{"rng_state.pth", "rng_state_0.pth"}}));
  EXPECT_EQ(fewer.notes, (Names{"the RNG state of rank 1 is left out"}));
}

TEST(Neighbours, KeepAcceleratesRandomStates) {
  const TaggedFolder one({"random_states_0.pkl"});
  const Neighbours more = one.find(1, 2);
  EXPECT_EQ(destinations(more), (Names{"random_states_0.pkl"}));
  EXPECT_EQ(more.notes, (Names{"rank 1 has no RNG state and starts with a fresh one"}));

  const TaggedFolder three({"random_states_0.pkl", "random_states_1.pkl", "random_states_2.pkl"});
  const Neighbours fewer = three.find(3, 1);
  EXPECT_EQ(destinations(fewer), (Names{"random_states_0.pkl"}));
  EXPECT_EQ(fewer.notes, (Names{"the RNG states of ranks 1 to 2 are left out"}));
}

TEST(Neighbours, NameEveryRankWithoutRandomState) {
  const TaggedFolder folder({"rng_state_1.pth", "rng_state_3.pth"});
  EXPECT_EQ(folder.find(4, 7).notes,
            (Names{"ranks 0, 2, 4 to 6 have no RNG state and start with a fresh one"}));
}

TEST(Neighbours, DoNotTakeRandomStatesOfAnotherRun) {
  const TaggedFolder folder(
      {"rng_state.pth", "rng_state_0.pth", "rng_state_1.pth", "rng_state_5.pth"});
  const Neighbours found = folder.find(2, 8);
  EXPECT_EQ(destinations(found), (Names{"rng_state_0.pth", "rng_state_1.pth"}));
  EXPECT_EQ(found.notes,
            (Names{"rng_state.pth does not belong to a run on 2 ranks and is left out",
                   "rng_state_5.pth does not belong to a run on 2 ranks and is left out",
                   "ranks 2 to 7 have no RNG state and start with a fresh one"}));
  EXPECT_EQ(copies(folder.find(1, 2), folder.path()),
            (Copies{{"rng_state_0.pth", "rng_state.pth"}}));
}

TEST(Neighbours, TakeOnlyNumbersForRanks) {
  const Names files{"random_states_.pkl", "rng_state_-1.pth",          "rng_state_0.pt",
                    "rng_state_00.pth",   "rng_state_99999999999.pth", "rng_state_x.pth"};
  EXPECT_EQ(destinations(TaggedFolder(files).find(2, 2)), files);
}

TEST(Neighbours, OfHuggingFaceCheckpoints) {
  const fs::path checkpoints = fs::path(DSCKPT_TESTDATA) / "checkpoints";
  const fs::path trainer = checkpoints / "hf_trainer_llama_z1_bf16_w3" / "ckpt" / "checkpoint-3";
  const Neighbours of_trainer =
      find_neighbours({trainer, trainer / "global_step3", "global_step3"}, 3, 2);
  EXPECT_EQ(destinations(of_trainer),
            (Names{"config.json", "generation_config.json", "model.safetensors", "rng_state_0.pth",
                   "rng_state_1.pth", "trainer_state.json"}));
  EXPECT_EQ(of_trainer.notes, (Names{"the RNG state of rank 2 is left out"}));

  const fs::path accelerate = checkpoints / "hf_accelerate_gpt2_z2_fp32_w2" / "ckpt";
  const Neighbours of_accelerate =
      find_neighbours({accelerate, accelerate / "pytorch_model", "pytorch_model"}, 2, 4);
  EXPECT_EQ(destinations(of_accelerate), (Names{"random_states_0.pkl", "random_states_1.pkl"}));
  EXPECT_EQ(of_accelerate.notes,
            (Names{"ranks 2 to 3 have no RNG state and start with a fresh one"}));
}

TEST(Neighbours, AreCopiedByteForByte) {
  const TaggedFolder folder({"config.json", "rng_state.pth", "logs/run/events.1"});
  folder.write("empty.txt", "");
  const auto inputs = std::make_shared<InputFiles>();
  PlanBuilder plan;
  lay_out_neighbours(*inputs, folder.find(1, 2).files, plan);
  Job::Impl job{.inputs = inputs, .plan = {}};
  set_plan(job, plan);
  const test::TempFolder output;
  run(Job(std::move(job)), output.path() / "out");
  EXPECT_EQ(test::read_all(output.path() / "out" / "config.json"), "the bytes of config.json");
  EXPECT_EQ(test::read_all(output.path() / "out" / "rng_state_0.pth"),
            "the bytes of rng_state.pth");
  EXPECT_EQ(test::read_all(output.path() / "out" / "logs/run/events.1"),
            "the bytes of logs/run/events.1");
  EXPECT_EQ(test::read_all(output.path() / "out" / "empty.txt"), "");
}

TEST(Neighbours, SayWhichFolderCannotBeListed) {
  const test::TempFolder folder;
  EXPECT_ERROR(find_neighbours({folder.path() / "gone", folder.path(), "tag"}, 1, 1), IoError,
               "gone: cannot list");
}

}  // namespace
}  // namespace dsckpt
