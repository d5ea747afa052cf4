#include "exec/shares.h"

#include <algorithm>

namespace dsckpt {
namespace {

// Whether a portion may begin with a unit.
bool may_begin(const PlanUnit& unit, const PlanUnit* before, const ShareOptions& options) {
  if (before == nullptr || unit.out == PlanUnit::kNoOutput || unit.out != before->out) return true;
  // Elements may lie across the multiple that it was to begin at.
  constexpr uint64_t kLongestElement = 16;
  return !options.whole_outputs &&
         (unit.begin + kLongestElement - 1) % options.cut_bytes < kLongestElement;
}

}  // namespace

Shares::Shares(const Units& units, std::span<const BatchRange> done, const ShareOptions& options)
    : pieces_(static_cast<size_t>(options.ranks)), left_(static_cast<size_t>(options.ranks), 0) {
  // Runs of batches that are not to be cut.
  std::vector<Piece> whole;
  const PlanUnit* before = nullptr;
  auto skipped = done.begin();
  for (uint64_t batch = 0; batch < units.batches(); ++batch) {
    const PlanUnit& first = units.batch(batch).front();
    while (skipped != done.end() && skipped->last <= batch) ++skipped;
    const bool is_done = skipped != done.end() && skipped->first <= batch;
    if (!is_done) {
      const uint64_t bytes = units.bytes_of({batch, batch + 1});
      const bool follows = !whole.empty() && whole.back().batches.last == batch;
      if (!follows || may_begin(first, before, options)) {
        whole.push_back({{batch, batch}, 0, options.owner ? options.owner(batch) : -1});
      }
      whole.back().batches.last = batch + 1;
      whole.back().bytes += bytes;
    }
    before = &units.batch(batch).back();
  }
  give_out(whole, kLongest);
}

Shares::Shares(std::span<const Piece> pieces, int ranks, uint64_t longest)
    : pieces_(static_cast<size_t>(ranks)), left_(static_cast<size_t>(ranks), 0) {
  give_out(pieces, longest);
}

void Shares::give_out(std::span<const Piece> pieces, uint64_t longest) {
  const uint64_t ranks = pieces_.size();
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes;
  const uint64_t share = std::max<uint64_t>(total / ranks, 1);
  const uint64_t portion = std::clamp<uint64_t>(share / kPortions, 1, longest);
  uint64_t begin = 0;  // bytes before
  for (const Piece& piece : pieces) {
    // Whose share its middle lies in.
    const uint64_t rank = piece.owner >= 0 ? static_cast<uint64_t>(piece.owner)
                                           : std::min((begin + piece.bytes / 2) / share, ranks - 1);
    std::deque<Piece>& of_rank = pieces_[rank];
    Piece* last = of_rank.empty() ? nullptr : &of_rank.back();
    if (last != nullptr && last->batches.last == piece.batches.first && last->bytes < portion &&
        last->bytes + piece.bytes <= longest) {
      last->batches.last = piece.batches.last;
      last->bytes += piece.bytes;
    } else {
      of_rank.push_back(piece);
    }
    left_[rank] += piece.bytes;
    begin += piece.bytes;
  }
}

std::optional<BatchRange> Shares::take(int rank) {
  const auto own = static_cast<size_t>(rank);
  const bool helps = pieces_[own].empty();
  const size_t whose =
      helps ? static_cast<size_t>(std::max_element(left_.begin(), left_.end()) - left_.begin())
            : own;
  std::deque<Piece>& pieces = pieces_[whose];
  if (pieces.empty()) return std::nullopt;
  const Piece piece = helps ? pieces.back() : pieces.front();
  if (helps) {
    pieces.pop_back();
  } else {
    pieces.pop_front();
  }
  left_[whose] -= piece.bytes;
  return piece.batches;
}

size_t Shares::portions_left() const {
  size_t sum = 0;
  for (const std::deque<Piece>& pieces : pieces_) sum += pieces.size();
  return sum;
}

}  // namespace dsckpt
