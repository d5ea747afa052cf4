#include "exec/share_forecast.h"

#include <tbb/parallel_for.h>

#include <algorithm>

#include "exec/portion.h"
#include "exec/units.h"

namespace dsckpt {
namespace {

template <typename Number>
void sort_unique(std::vector<Number>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

// The numbers of a rank, and the files that it has to do with.
struct Forecast {
  RankForecast of_rank = {};
  std::vector<OutputId> outputs = {};
  std::vector<FileId> inputs = {};

  void add(const Portion& portion) {
    const CopyPlan& plan = portion.part.plan;
    for (const CopyItem& item : plan.items()) {
      const uint64_t begin = item.out == 0 ? std::max(item.dst, portion.cut.begin) : item.dst;
      const bool is_last = item.out + 1 == plan.outputs().size();
      const uint64_t end = is_last ? std::min(item.dst_end(), portion.cut.end) : item.dst_end();
      of_rank.bytes_written += end - begin;
      of_rank.bytes_read += (end - begin) / size_of(item.to) * plan.bytes_read_an_element(item);
    }
    uint64_t besides = 0;
    for (const RecordUse::ExtraRead& read : portion.use.extra_reads) besides += read.extent.size;
    of_rank.bytes_read += besides;
    of_rank.bytes_done = of_rank.bytes_written + besides;
    of_rank.portions = 1;
    outputs = portion.part.outputs;
    inputs = portion.part.files;
  }

  // Adds the forecast of the portions that follow.
  void add(const Forecast& next) {
    of_rank.bytes_written += next.of_rank.bytes_written;
    of_rank.bytes_read += next.of_rank.bytes_read;
    of_rank.bytes_done += next.of_rank.bytes_done;
    of_rank.portions += next.of_rank.portions;
    of_rank.plan_bytes += next.of_rank.plan_bytes;
    outputs.insert(outputs.end(), next.outputs.begin(), next.outputs.end());
    sort_unique(outputs);
    inputs.insert(inputs.end(), next.inputs.begin(), next.inputs.end());
    sort_unique(inputs);
  }
};

}  // namespace

ShareForecast forecast_shares(const CopyPlan& plan, const RecordUse& use, uint64_t unit_bytes,
                              const ShareOptions& options) {
  const Units units(plan, use.extra_reads, unit_bytes);
  const PortionCutter cutter(plan, units, use, unit_bytes);
  const Shares shares(units, {}, options);
  struct Taken {
    size_t rank;
    BatchRange batches;
  };
  std::vector<Taken> taken;
  for (int rank = 0; rank < options.ranks; ++rank) {
    for (const Shares::Piece& piece : shares.of(rank)) {
      taken.push_back({static_cast<size_t>(rank), piece.batches});
    }
  }

  std::vector<Forecast> of_portions(taken.size());
  tbb::parallel_for(size_t{0}, taken.size(), [&](size_t i) {
    // The last ones have most items, of small tensors, so they come first.
    const size_t which = taken.size() - 1 - i;
    const Portion portion = cutter.cut(taken[which].batches);
    of_portions[which].add(portion);
    of_portions[which].of_rank.plan_bytes = portion.encode().size();
  });
  std::vector<Forecast> forecasts(static_cast<size_t>(options.ranks));
  for (size_t i = 0; i < taken.size(); ++i) forecasts[taken[i].rank].add(of_portions[i]);

  std::vector<uint32_t> writers(plan.outputs().size(), 0);
  for (const Forecast& forecast : forecasts) {
    for (const OutputId out : forecast.outputs) ++writers[out];
  }
  ShareForecast found{.outputs = plan.outputs().size()};
  for (const uint32_t ranks : writers) found.shared_outputs += ranks > 1 ? 1 : 0;
  for (const Forecast& forecast : forecasts) {
    RankForecast& rank = found.ranks.emplace_back(forecast.of_rank);
    rank.outputs = forecast.outputs.size();
    rank.inputs = forecast.inputs.size();
    for (const OutputId out : forecast.outputs) rank.shared_outputs += writers[out] > 1 ? 1 : 0;
  }
  // Rank 0 makes the empty ones.
  for (const PlannedFile& file : plan.outputs()) {
    found.ranks.front().outputs += file.size == 0 ? 1 : 0;
  }
  return found;
}

double ShareForecast::balance() const {
  uint64_t largest = 0;
  uint64_t sum = 0;
  for (const RankForecast& rank : ranks) {
    largest = std::max(largest, rank.bytes_done);
    sum += rank.bytes_done;
  }
  if (sum == 0) return 1;
  return static_cast<double>(largest) * static_cast<double>(ranks.size()) /
         static_cast<double>(sum);
}

uint64_t ShareForecast::plan_bytes() const {
  uint64_t sum = 0;
  for (const RankForecast& rank : ranks) sum += rank.plan_bytes;
  return sum;
}

double ShareForecast::seconds(const RankForecast& rank) const {
  if (disk_rate == 0) return 0;
  return static_cast<double>(rank.bytes_read + rank.bytes_written) / static_cast<double>(disk_rate);
}

double ShareForecast::seconds() const {
  double last = 0;
  for (const RankForecast& rank : ranks) last = std::max(last, seconds(rank));
  return last;
}

}  // namespace dsckpt
