#include "base/launch.h"

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// The variables that a launcher sets for each of its processes. The first row whose `rank` and
// `size` are there counts: Open MPI under Slurm sets both, and is who has started the process.
struct Launcher {
  const char* by;
  const char* rank;
  const char* size;
  // Without it, `rank` and `size` do not mean that this process is one of several: a batch script
  // has Slurm's variables of the job.
  const char* required;
  std::array<const char*, 4> name;
};

constexpr std::array kLaunchers{
    // By hand, and for Kubernetes, pdsh and the like.
    Launcher{"DSCKPT_GROUP_RANK",
             "DSCKPT_GROUP_RANK",
             "DSCKPT_GROUP_SIZE",
             nullptr,
             {"DSCKPT_GROUP_NAME"}},
    Launcher{"mpirun (Open MPI)",
             "OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_SIZE",
             nullptr,
             {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    // A step: SLURM_PROCID is also set in a batch script, which runs once.
    Launcher{"srun (Slurm)",
             "SLURM_PROCID",
             "SLURM_STEP_NUM_TASKS",
             "SLURM_STEP_ID",
             {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"}},
    Launcher{"mpiexec (Hydra)", "PMI_RANK", "PMI_SIZE", nullptr, {"PMI_PORT"}},
    Launcher{"mpiexec (PALS)", "PALS_RANKID", "PALS_SIZE", nullptr, {"PALS_APID"}},
    Launcher{"torchrun",
             "RANK",
             "WORLD_SIZE",
             "TORCHELASTIC_RUN_ID",
             {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
};

std::optional<int> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, failed] = std::from_chars(text, end, value);
  return failed == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

std::string name_of(const Launcher& launcher, const Environment& environment) {
  std::string name;
  for (const char* variable : launcher.name) {
    const char* value = variable == nullptr ? nullptr : environment(variable);
    if (value != nullptr) name += (name.empty() ? "" : ".") + std::string(value);
  }
  return name;
}

}  // namespace

std::optional<Launch> find_launch(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const char* rank_text = environment(launcher.rank);
    const char* size_text = environment(launcher.size);
    if (rank_text == nullptr || size_text == nullptr) continue;
    if (launcher.required != nullptr && environment(launcher.required) == nullptr) continue;
    const std::optional<int> rank = number(rank_text);
    const std::optional<int> size = number(size_text);
    if (!rank || !size || *size < 1 || *rank < 0 || *rank >= *size) {
      throw UsageError(std::string(launcher.by) + ": rank '" + rank_text + "' of '" + size_text +
                       "' makes no sense (" + launcher.rank + ", " + launcher.size + ")")
          .with_hint("--group none runs this process alone");
    }
    if (*size == 1) return std::nullopt;
    return Launch{launcher.by, *rank, *size, name_of(launcher, environment)};
  }
  return std::nullopt;
}

}  // namespace dsckpt
