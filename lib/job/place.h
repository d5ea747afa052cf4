// Place: where a job's output may go, and what must happen beside it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/checkpoint.h"

namespace dsckpt {

struct Place {
  // An input and its description for the user: "the folder of the shards".
  struct Input {
    std::filesystem::path path;
    std::string what;
  };
  // The output may not be one of these or lie in one; with `whole`, nor hold one.
  std::vector<Input> inputs = {};
  // A folder that is there may only be replaced as a whole, with --force. The output is the plan's
  // files and nothing else.
  bool whole = false;
  // With `whole`: whether a file there, by the path of its content, was written by such a job and
  // may be replaced. Empty: any may.
  std::function<bool(const std::filesystem::path&)> is_ours = {};
  // The description of files that --force replaces: "reshard's earlier output".
  std::string replaced = {};
  // Why another file is not: "would be lost".
  std::string foreign = "would be lost";
  // The files in that folder that whoever loads it may take for a part of what is written; with
  // any, it is refused without --force. Empty: nobody looks.
  std::function<std::vector<std::string>(const std::filesystem::path& output)> others = {};
  // A file beside the output folder that is to say its name, once it is there; or "".
  std::string pointer = {};
};

// The output folder must not lie among the files of the checkpoint, or of others that give values.
Place place_beside(const Source& source);

// Throws UsageError if `output` cannot be the place for it. `resume`: what a run before has left
// there is nothing in the way. `planned_in`: the folder of its plan, if that is elsewhere.
void check_place(const Place& place, const std::filesystem::path& output, bool force,
                 bool resume = false, const std::filesystem::path& planned_in = {});

// Place::pointer of that output: where the user sees it, whether or not it is a link.
std::filesystem::path pointer_file(const Place& place, const std::filesystem::path& output);
std::string name_of(const std::filesystem::path& output);

// The checkpoint's tag as a folder in an output. Throws UsageError if it is not a path inside of
// one.
std::string output_tag(const Checkpoint& checkpoint);

}  // namespace dsckpt
