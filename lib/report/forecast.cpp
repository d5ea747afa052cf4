#include "report/forecast.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace dsckpt {
using nlohmann::json;
namespace {

constexpr size_t kMostRows = 20;

// Returns "6.30 GB", or "6.30 GB to 6.34 GB": the range of `member` over the ranks from `first` on.
std::string range_of(const ShareForecast& forecast, size_t first, uint64_t RankForecast::*member) {
  const auto [least, most] = std::minmax_element(
      forecast.ranks.begin() + static_cast<std::ptrdiff_t>(first), forecast.ranks.end(),
      [&](const RankForecast& a, const RankForecast& b) { return a.*member < b.*member; });
  const std::string low = human_bytes((*least).*member);
  const std::string high = human_bytes((*most).*member);
  return low == high ? low : low + " to " + high;
}

}  // namespace

json forecast_json(const ShareForecast& forecast) {
  json ranks = json::array();
  for (const RankForecast& rank : forecast.ranks) {
    ranks.push_back({{"bytes_written", rank.bytes_written},
                     {"bytes_read", rank.bytes_read},
                     {"bytes_done", rank.bytes_done},
                     {"files", rank.outputs},
                     {"shared_files", rank.shared_outputs},
                     {"input_files", rank.inputs},
                     {"portions", rank.portions},
                     {"plan_bytes", rank.plan_bytes}});
    if (forecast.disk_rate != 0) ranks.back()["seconds"] = forecast.seconds(rank);
  }
  json out = {{"ranks", std::move(ranks)},
              {"balance", forecast.balance()},
              {"shared_files", forecast.shared_outputs},
              {"plan_bytes", forecast.plan_bytes()}};
  if (forecast.disk_rate != 0) {
    out["disk_rate"] = forecast.disk_rate;
    out["seconds"] = forecast.seconds();
  }
  return out;
}

Listing forecast_listing(const ShareForecast& forecast) {
  Listing listing{.columns = {{.heading = "", .shrinks = true},
                              {.heading = "writes", .is_number = true},
                              {.heading = "reads", .is_number = true},
                              {.heading = "files", .is_number = true},
                              {.heading = "shared", .is_number = true},
                              {.heading = "input files", .is_number = true},
                              {.heading = "plan", .is_number = true}}};
  const bool disk = forecast.disk_rate != 0;
  if (disk) listing.columns.push_back({.heading = "time", .is_number = true});
  const size_t ranks = forecast.ranks.size();
  // A single row would take the line that summarises it.
  const size_t shown = ranks <= kMostRows ? ranks : kMostRows - 1;
  for (size_t number = 0; number < shown; ++number) {
    const RankForecast& rank = forecast.ranks[number];
    listing.rows.push_back({"rank " + std::to_string(number), human_bytes(rank.bytes_written),
                            human_bytes(rank.bytes_read), grouped(rank.outputs),
                            grouped(rank.shared_outputs), grouped(rank.inputs),
                            human_bytes(rank.plan_bytes)});
    if (disk) listing.rows.back().push_back(human_seconds(forecast.seconds(rank)));
  }
  if (shown < ranks) {
    listing.below.push_back("ranks " + std::to_string(shown) + " to " + std::to_string(ranks - 1) +
                            " write " + range_of(forecast, shown, &RankForecast::bytes_written) +
                            " each, read " + range_of(forecast, shown, &RankForecast::bytes_read) +
                            " and " + range_of(forecast, shown, &RankForecast::plan_bytes) +
                            " of the plan");
  }
  char balance[32];
  std::snprintf(balance, sizeof balance, "%.3f", forecast.balance());
  const uint64_t shared = forecast.shared_outputs;
  std::string files = grouped(shared) + " of " + counted(forecast.outputs, "file");
  files += shared == 1 ? " is" : " are";
  if (shared == 0) files = "no file is";
  listing.below.push_back(counted(ranks, "rank") + ": the largest share is " + balance +
                          " times the mean; " + files + " written by several; the plan takes " +
                          human_bytes(forecast.plan_bytes()));
  if (disk) {
    listing.below.push_back("at " + human_bytes(forecast.disk_rate) +
                            "/s of disk a rank: " + human_seconds(forecast.seconds()));
  }
  return listing;
}

}  // namespace dsckpt
