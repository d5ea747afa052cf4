#include "exec/shares.h"

#include <algorithm>
#include <utility>

namespace dsckpt {
namespace {

// Returns whether a portion may begin with a unit.
bool may_begin(const PlanUnit& unit, const PlanUnit* before, const ShareOptions& options) {
  if (before == nullptr || unit.out == PlanUnit::kNoOutput || unit.out != before->out) return true;
  // Elements may lie across the multiple that it was to begin at.
  constexpr uint64_t kLongestElement = 16;
  return !options.whole_outputs &&
         (unit.begin + kLongestElement - 1) % options.cut_bytes < kLongestElement;
}

}  // namespace

uint64_t Shares::step_portion_bytes(uint64_t left, uint64_t wanted) {
  // The number of portions, unless they would be too short for their fixed costs.
  constexpr uint64_t kPortions = 256;
  constexpr uint64_t kShortestPortion = uint64_t{64} << 20;
  return std::min(wanted > 0 ? left / wanted + 1 : std::max(left / kPortions, kShortestPortion),
                  kLongest);
}

Shares::Shares(const Units& units, std::span<const BatchRange> done, const ShareOptions& options)
    : pieces_(static_cast<size_t>(options.ranks)) {
  uint64_t total = units.bytes();
  for (const BatchRange& range : done) total -= units.bytes_of(range);
  Dealing dealing(total, pieces_.size(), kLongest);
  if (options.portion_bytes > 0) dealing.longest = dealing.shortest = options.portion_bytes;

  Piece whole;  // batches that are not to be cut
  const auto finish = [&] {
    if (whole.bytes > 0) add(std::exchange(whole, {}), dealing);
  };
  const PlanUnit* before = nullptr;
  auto skipped = done.begin();
  auto literals = units.literals().begin();
  for (uint64_t batch = 0; batch < units.batches(); ++batch) {
    const std::span<const PlanUnit> batch_units = units.batch(batch);
    while (skipped != done.end() && skipped->last <= batch) ++skipped;
    while (literals != units.literals().end() && literals->batch < batch) ++literals;
    const bool is_done = skipped != done.end() && skipped->first <= batch;
    if (is_done || may_begin(batch_units.front(), before, options)) finish();
    if (!is_done) {
      if (whole.bytes == 0) {
        whole.batches.first = batch;
        whole.owner = options.owner ? options.owner(batch) : -1;
      }
      whole.batches.last = batch + 1;
      whole.bytes += units.bytes_of({batch, batch + 1});
      const bool has_literals = literals != units.literals().end() && literals->batch == batch;
      if (has_literals) whole.literals += literals->bytes;
    }
    before = &batch_units.back();
  }
  finish();
}

Shares::Shares(std::span<const Piece> pieces, int ranks, uint64_t longest)
    : pieces_(static_cast<size_t>(ranks)) {
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes;
  Dealing dealing(total, pieces_.size(), longest);
  for (const Piece& piece : pieces) add(piece, dealing);
}

Shares::Dealing::Dealing(uint64_t total, size_t ranks, uint64_t most)
    : share(std::max<uint64_t>(total / ranks, 1)),
      shortest(std::min(std::max(share / 64, kShortest), std::max<uint64_t>(share / 16, 1))),
      longest(most) {}

uint64_t Shares::Dealing::portion_at(uint64_t begin, const Piece& piece) const {
  // A share that goes by where the input is has no end that is known here.
  const uint64_t left = piece.owner >= 0 ? share / 2 : share - begin % share;
  return std::clamp(left / 8, std::min(shortest, longest), longest);
}

void Shares::add(const Piece& piece, Dealing& dealing) {
  // Its owner, or whose share its middle lies in.
  const uint64_t middle = dealing.dealt + piece.bytes / 2;
  const size_t rank = piece.owner >= 0 ? static_cast<size_t>(piece.owner)
                                       : std::min(middle / dealing.share, pieces_.size() - 1);
  dealing.dealt += piece.bytes;
  std::vector<Piece>& of_rank = pieces_[rank];
  Piece* last = of_rank.empty() ? nullptr : &of_rank.back();
  if (last != nullptr && last->batches.last == piece.batches.first &&
      last->bytes < dealing.portion_at(dealing.dealt - piece.bytes - last->bytes, piece) &&
      last->bytes + piece.bytes <= dealing.longest &&
      last->literals + piece.literals <= kMostLiterals) {
    last->batches.last = piece.batches.last;
    last->bytes += piece.bytes;
    last->literals += piece.literals;
  } else {
    of_rank.push_back(piece);
  }
}

}  // namespace dsckpt
