// Commands that take several paths: a result for each, and the worst exit code.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace dsckpt::inspect {

// A path, or one of the checkpoints that it holds.
struct OneOfSeveral {
  std::string path;
  std::string tag;                  // "": as the path says
  std::string name;                 // that tells it from the others
  std::optional<Error> error = {};  // why it cannot be told which they are
};

// One for each of `paths`; with the tag "all" one for each checkpoint that it holds, the newest
// last, unless it has a tag of that name. `model`: only that one's.
std::vector<OneOfSeveral> each_of(const std::vector<std::string>& paths,
                                  const std::string& tag = {}, const std::string& model = {});

// What `examine` returns of the only one. Of several, each has its name in a line above what it
// prints as text; errors are printed, and the others are examined all the same. Returns the highest
// exit code. Throws InterruptedError, and of the only one what `examine` throws.
int for_each_path(const CLI::App& app, const cli::Common& common,
                  const std::vector<OneOfSeveral>& all,
                  const std::function<int(const OneOfSeveral&)>& examine);

}  // namespace dsckpt::inspect
