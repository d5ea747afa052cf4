// Tools that several processes run together (group/group.h).
#pragma once

#include <CLI/App.hpp>
#include <functional>

#include "cli/options.h"

namespace dsckpt::cli {

// For commands that run in_group(). Adds --group and --rank-timeout.
void add_group_options(CLI::App& app, Common& common);

// What `body` returns, if this process was started alone. If a launcher has started several, rank 0
// runs `body` with `common.group` set, and the others do what it tells them; the exit code of all
// is that of rank 0. Only rank 0 prints, or rank 1 where rank 0 is lost. Throws what `body` and
// join_group() throw.
int in_group(Common& common, const std::function<int()>& body);

}  // namespace dsckpt::cli
