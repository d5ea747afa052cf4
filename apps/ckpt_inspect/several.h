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
  std::string tag;                  // "": the default of the path
  std::string model;                // of several there
  std::string name;                 // distinguishes it from the others
  std::optional<Error> error = {};  // why its checkpoints cannot be listed
};

// One for each of `paths`. With the tag "all", one for each of its checkpoints, the newest last,
// unless it has a tag of that name. With `model`, only those of that model.
std::vector<OneOfSeveral> each_of(const std::vector<std::string>& paths,
                                  const std::string& tag = {}, const std::string& model = {});

// Calls `examine` for each and returns the highest exit code. If there are several, a line with the
// name precedes the text of each. Errors are then printed, and the others are examined all the
// same. Throws InterruptedError, and for a single one the errors of `examine`.
int for_each_path(const CLI::App& app, const cli::Common& common,
                  const std::vector<OneOfSeveral>& all,
                  const std::function<int(const OneOfSeveral&)>& examine);

}  // namespace dsckpt::inspect
