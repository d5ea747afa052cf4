// Tools that several processes run together (exec/meeting.h).
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

// For commands that run with_ranks(): adds --group and --rank-timeout.
void add_rank_options(CLI::App& app, Common& common);

// Runs `body` and returns its result if this process was started alone. If a launcher has started
// several, rank 0 runs `body` with `common.ranks` set. The others follow it until it calls
// end_ranks(). Only rank 0 prints, or rank 1 if rank 0 is lost. Throws as `body` and Meeting.
int with_ranks(Common& common, const std::function<int()>& body);
// Ends the other ranks, if there are any, with `status`. Call it after all output: launchers may
// end this process once another one has ended.
void end_ranks(const Common& common, int status);

// For a command that reads a checkpoint, in the `body` of with_ranks(). The nodes may have folders
// of their own at `path` or `roots`. Then the other nodes' folders are added to `roots`. If rank
// 0's node has nothing at `path`, one of them becomes `path`. They are readable as long as this
// lives. Throws as NodeFiles.
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
