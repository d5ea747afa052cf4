// Policy: which checkpoints stay in the run once they are safe elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dsckpt::pack {

// A checkpoint that one of them keeps stays. With none, all do.
struct Policy {
  std::optional<uint64_t> last = {};  // the newest; 0: not even that one has to stay
  uint64_t every = 0;                 // those whose step is a multiple of it; 0: none
  std::string best = {};              // the one of the best value of that metric; "": none

  bool removes() const { return last || every != 0 || !best.empty(); }
};

// A complete checkpoint.
struct PolicyCheckpoint {
  std::string name = {};
  std::optional<int64_t> step = {};
  std::optional<double> metric = {};
};

// The names of those that stay: all of which nobody knows the step are among them, and the newest,
// unless `last` is 0. Metrics whose name ends in "loss", or "NAME=min", are better the smaller they
// are, as transformers takes them (metric_for_best_model). All others, or "NAME=max", are better
// the larger.
std::set<std::string> staying(const Policy& policy, const std::vector<PolicyCheckpoint>& complete);
// NAME alone.
std::string metric_name(const std::string& best);

}  // namespace dsckpt::pack
