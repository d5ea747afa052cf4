// --tag all: every checkpoint of a folder, one after the other.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "cli/options.h"
#include "dsckpt/checkpoint.h"
#include "dsckpt/job.h"

namespace dsckpt::cli {

// Works on another share than the first, which needs nothing of the input. Else reads the folders
// of all nodes (NodeFolders), and calls `convert`, once if `source.tag` is anything but "all" or
// `input` has a tag of that name. Else for each checkpoint that `input` holds, the newest last,
// with input, source.tag and `output` set to it: output is a folder of its name in the output
// given. A checkpoint that is damaged or cannot be converted is named, and the others are converted
// all the same; in steps (steps.h) there is one of them. Returns the highest of its exit codes.
// Throws what it throws of a place or of the system, and at the end the first error of a
// checkpoint.
int for_each_tag(const CLI::App& app, const Common& common, std::string& input,
                 SourceOptions& source, std::string& output, const RunArguments& run,
                 const std::function<int()>& convert);

// The same of a tool that opens a source, plans a job of it and carries that out.
int convert_each_tag(const CLI::App& app, const Common& common, std::string& input,
                     SourceOptions& source, std::string& output, const RunArguments& run,
                     const std::function<Job(const Source&)>& plan);

}  // namespace dsckpt::cli
