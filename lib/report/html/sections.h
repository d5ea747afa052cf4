// The sections of an HtmlReport that have source files of their own. Each is "" if there is nothing
// to show. Their size does not grow with the number of ranks.
#pragma once

#include <string>
#include <vector>

#include "report/html/charts.h"
#include "report/html/html_report.h"

namespace dsckpt {

// The distribution of bytes over ranks: first the ranks that differ from the others, then all in
// their order.
std::string ranks_section(const std::vector<RankShare>& ranks, const KindColours& colours);

// The parts of a split model: a line for each pipeline stage, a column for each tensor-parallel
// rank.
std::string grid_section(const std::vector<GridRank>& grid);

// The files that hold each tensor's parts: a strip, then the parts that differ from the others.
std::string shards_section(const std::vector<HtmlReport::ShardMap>& maps);

}  // namespace dsckpt
