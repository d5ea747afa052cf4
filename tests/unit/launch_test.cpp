#include "base/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/expect_error.h"

namespace dsckpt {
namespace {

std::optional<Launch> launch_in(const std::map<std::string, std::string>& variables) {
  return find_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// Variables that each launcher was seen to set.
TEST(Launch, IsFoundByWhatLaunchersSet) {
  EXPECT_FALSE(launch_in({}));
  const auto open_mpi = launch_in({{"OMPI_COMM_WORLD_RANK", "2"},
                                   {"OMPI_COMM_WORLD_SIZE", "4"},
                                   {"PMIX_RANK", "2"},
                                   {"PMIX_NAMESPACE", "2513502209"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->rank, 2);
  EXPECT_EQ(open_mpi->size, 4);
  EXPECT_EQ(open_mpi->name, "2513502209");

  const auto hydra = launch_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"PMI_FD", "5"}});
  ASSERT_TRUE(hydra);
  EXPECT_EQ(hydra->name, "");

  const auto torchrun = launch_in({{"RANK", "1"},
                                   {"WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "n1"},
                                   {"MASTER_PORT", "29500"},
                                   {"TORCHELASTIC_RUN_ID", "none"},
                                   {"TORCHELASTIC_RESTART_COUNT", "0"}});
  ASSERT_TRUE(torchrun);
  EXPECT_EQ(torchrun->name, "none.n1.29500.0");
  // Set in every shell of some clusters.
  EXPECT_FALSE(launch_in({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n1"}}));
}

TEST(Launch, UnderSlurmIsAStepOfSeveralTasks) {
  std::map<std::string, std::string> batch{
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "17"}};
  EXPECT_FALSE(launch_in(batch));
  batch["SLURM_STEP_ID"] = "0";
  batch["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_FALSE(launch_in(batch));
  batch["SLURM_STEP_NUM_TASKS"] = "4";
  const auto step = launch_in(batch);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->name, "17.0");
  // Open MPI's own launcher in the job starts the ranks, and Slurm one daemon a node.
  batch["OMPI_COMM_WORLD_RANK"] = "5";
  batch["OMPI_COMM_WORLD_SIZE"] = "8";
  EXPECT_EQ(launch_in(batch)->rank, 5);
}

TEST(Launch, RefusesNumbersThatMakeNoSense) {
  for (const auto& [rank, size] : std::map<std::string, std::string>{
           {"4", "4"}, {"-1", "4"}, {"x", "4"}, {"0", "0"}, {"0 ", "4"}, {"", "4"}}) {
    EXPECT_ERROR(launch_in({{"OMPI_COMM_WORLD_RANK", rank}, {"OMPI_COMM_WORLD_SIZE", size}}),
                 UsageError, "makes no sense");
  }
}

}  // namespace
}  // namespace dsckpt
