// The sections of an HtmlReport that have files of their own. Each is "" if there is nothing to
// show. Their size does not grow with the number of ranks.
#pragma once

#include <string>
#include <vector>

#include "report/html/charts.h"
#include "report/html/html_report.h"

namespace dsckpt {

// How evenly the bytes are spread: those ranks first that have more or less than the others, then
// all of them in their order.
std::string ranks_section(const std::vector<RankShare>& ranks, const KindColours& colours);

// Which file holds which part of each tensor: a strip, then the parts that are not as the others.
std::string shards_section(const std::vector<HtmlReport::ShardMap>& maps);

}  // namespace dsckpt
