// Launch: what the launcher of a parallel job (mpirun, srun, torchrun) says of this process.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace dsckpt {

// One of several processes that were started together with the same command line.
struct Launch {
  std::string by = {};  // "mpirun (Open MPI)"
  int rank = 0;
  int size = 1;           // above 1
  std::string name = {};  // of the run, unique on the cluster: "17.0"; "" if it has none
};

// One of these processes, as the others know it.
struct Member {
  int rank = 0;
  std::string host = {};
  // "rank 3 on n4"
  std::string name() const { return "rank " + std::to_string(rank) + " on " + host; }
};

// The value of a variable of the environment, or nullptr, as getenv(3).
using Environment = std::function<const char*(const char*)>;

// Nothing where the environment names no launcher, or one that has started a single process. Throws
// UsageError for numbers that make no sense.
std::optional<Launch> find_launch(const Environment& environment);

}  // namespace dsckpt
