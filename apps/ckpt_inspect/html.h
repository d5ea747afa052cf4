// --html: the summary of a path as a page for a browser.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/cli.h"
#include "inspect/contents.h"
#include "inspect/summary.h"
#include "io/input_file.h"
#include "report/conversions.h"

namespace dsckpt::inspect {

struct HtmlOptions {
  std::string file;  // "": no page
  bool force = false;
  bool values = false;              // read all tensors, show how their values are distributed
  std::vector<std::string> params;  // whose extents are shown; none: the largest tensor's
};
// Adds --html, --force, --values and --param.
void add_html_options(CLI::App& app, HtmlOptions& options);

// The results of the summary, borrowed.
struct Findings {
  const std::string& path;
  const InputFiles& inputs;
  const Contents& contents;                                       // open with its states
  const std::vector<std::pair<std::string, std::string>>& facts;  // label and text
  const Summary& summary;
  const Hardware& hardware;
  const std::vector<MemoryEstimate>& estimates;
  const std::vector<Conversion>& conversions;
};

// Throws UsageError for a page that cannot be written: a folder, or an existing file without
// --force.
void check_page(const std::string& file, bool force);
// Writes a page; a reader sees nothing or all of it. Throws IoError.
void write_page(const std::string& file, const std::string& text);

// Writes the page; a reader sees nothing or all of it. Throws UsageError for a --param that does
// not exist, and for an existing file without --force. Throws IoError and, with values, the errors
// of reading them.
void write_html(const Findings& findings, const HtmlOptions& options, const cli::Common& common);

}  // namespace dsckpt::inspect
