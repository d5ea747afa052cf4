// --tag all: every checkpoint of a folder, one after the other.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "cli/options.h"
#include "dsckpt/checkpoint.h"
#include "dsckpt/job.h"

namespace dsckpt::cli {

// Converts one tag, or with --tag all every tag.
//
// Works on a share other than the first at once: it needs nothing of the input. Otherwise reads the
// folders of all nodes (NodeFolders). Calls `convert` once if `source.tag` is not "all", or if
// `input` has a tag of that name. Otherwise calls it for each checkpoint in `input`, the newest
// last, with input, source.tag and `output` set to it. Its output is a folder of its name in the
// given output.
//
// If a checkpoint is damaged or cannot be converted, it is named and the others are converted all
// the same. In steps (steps.h) there is only one. Returns the highest exit code of `convert`.
// Throws its errors of places and of the system at once. The first error of a checkpoint is thrown
// at the end.
int for_each_tag(const CLI::App& app, const Common& common, std::string& input,
                 SourceOptions& source, std::string& output, const RunArguments& run,
                 const std::function<int()>& convert);

// The same for a tool that opens a source, plans a job of it and carries that out.
int convert_each_tag(const CLI::App& app, const Common& common, std::string& input,
                     SourceOptions& source, std::string& output, const RunArguments& run,
                     const std::function<Job(const Source&)>& plan);

}  // namespace dsckpt::cli
