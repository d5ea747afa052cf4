// Views of a tensor that several commands share. Each is defined beside the command that is named
// for it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/statistics.h"
#include "cli/table.h"
#include "inspect/diff.h"
#include "inspect/extents.h"
#include "inspect/summary.h"
#include "inspect/tree.h"
#include "io/input_file.h"

namespace dsckpt::inspect {

// Headings and the cells under them.
using Cells = std::vector<std::pair<std::string, std::string>>;

// The summary: one row a kind of bytes.
cli::Table kinds_table(const Summary& summary);
// tree: "float32 [3, 4]", "= transformer.wte.weight", or for a module "12 tensors".
std::string what_text(const TreeNode& node);
// where: one row an extent.
cli::Table extents_table(const InputFiles& inputs, const std::vector<TensorExtent>& extents);
// print: a line with the name, and the values; only the edges of large tensors, unless `full`.
void write_named_values(const InputFiles& inputs, const std::string& label,
                        const TensorSource& tensor, bool full,
                        const std::function<void(std::string_view)>& write);
// stats: from "min" to "inf", with at most `digits` significant digits.
Cells statistics_cells(const Statistics& values, int digits = 6);
// diff: from "differs" to the values that differ most, which are "" if none differ.
Cells difference_cells(const TensorDiff& tensor);

}  // namespace dsckpt::inspect
