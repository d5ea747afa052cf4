// Tools that several processes run together (group/group.h).
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"

namespace dsckpt {
class NodeFiles;
}

namespace dsckpt::cli {

// For commands that run in_group(). Adds --group and --rank-timeout.
void add_group_options(CLI::App& app, Common& common);

// What `body` returns, if this process was started alone. If a launcher has started several, rank 0
// runs `body` with `common.group` set, and the others do what it tells them until it calls
// end_group(). Only rank 0 prints, or rank 1 where rank 0 is lost. Throws what `body` and
// join_group() throw.
int in_group(Common& common, const std::function<int()>& body);
// Has the others, if there are any, end with `status`. When all is said: launchers may end this
// process once another one has ended.
void end_group(const Common& common, int status);

// Of a command that reads a checkpoint, in the `body` of in_group(). Where the nodes have folders
// of their own at `path` or `roots`, `roots` gets those of the other nodes too, and `path`, if
// there is nothing on rank 0's node, becomes one of them. They can be read as long as it is there.
// Throws what NodeFiles throws.
class NodeFolders {
 public:
  NodeFolders(const Common& common, std::string& path, std::vector<std::filesystem::path>& roots);
  ~NodeFolders();
  NodeFolders(const NodeFolders&) = delete;
  NodeFolders& operator=(const NodeFolders&) = delete;

 private:
  std::unique_ptr<NodeFiles> files_;
};

}  // namespace dsckpt::cli
