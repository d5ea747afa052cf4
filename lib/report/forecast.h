// The shares of ranks in a run, as text and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "exec/share_forecast.h"
#include "job/listing.h"

namespace dsckpt {

// {"ranks": [{"bytes_written", "bytes_read", "bytes_done", "files", "shared_files", "input_files",
// "portions", "plan_bytes", "seconds"?}], "balance", "shared_files", "plan_bytes", "disk_rate"?,
// "seconds"?}, the ranks by number
nlohmann::json forecast_json(const ShareForecast& forecast);
// A row for each rank, or for the first of many, and the totals.
Listing forecast_listing(const ShareForecast& forecast);

}  // namespace dsckpt
