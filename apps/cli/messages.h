// What tools say beside their results.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/options.h"

namespace dsckpt::cli {

// {"schema": 1, "type": type, "data": ...} and the end of the line.
std::string json_line(const std::string& type, nlohmann::json data);
// Prints that on stdout, with "object_store" where inputs are read from one (far_paths.h). `data`,
// an object, gets "notes": those that it has, and all that note() was given since the last line; an
// error's only if there are any.
void print_json(const std::string& type, nlohmann::json data);
// A next step, on stderr, unless it is "" or messages are not wanted.
void hint(const Common& common, const std::string& text);
// "TOOL: note: text" on stderr, unless --quiet; and in the next line of print_json().
void note(const std::string& tool, const Common& common, const std::string& text);
void note(const CLI::App& app, const Common& common, const std::string& text);

}  // namespace dsckpt::cli
