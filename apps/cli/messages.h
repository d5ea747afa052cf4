// The messages of tools beside their results.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/options.h"

namespace dsckpt::cli {

// {"schema": 1, "type": type, "data": ...} and a newline.
std::string json_line(const std::string& type, nlohmann::json data);
// Prints that on stdout, with "object_store" if inputs are read from one (far_paths.h). The object
// `data` gets "notes": its own, and all notes of note() since the last line. An error gets them
// only if there are any.
void print_json(const std::string& type, nlohmann::json data);
// Prints a next step on stderr, unless it is "" or messages are off.
void hint(const Common& common, const std::string& text);
// Prints "TOOL: note: text" on stderr, unless --quiet, and adds it to the next line of
// print_json().
void note(const std::string& tool, const Common& common, const std::string& text);
void note(const CLI::App& app, const Common& common, const std::string& text);
// note() for each of `texts`, but prints those that differ in one name alone as one:
// "'a' is left out; likewise 'b', 'c'".
void notes(const CLI::App& app, const Common& common, const std::vector<std::string>& texts);

}  // namespace dsckpt::cli
