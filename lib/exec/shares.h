// Shares: which rank of a group does what of a run.
//
// Every rank has a contiguous share of the batches, all of the same bytes but for a cut, and takes
// it portion by portion from its front. A rank that has nothing left takes the last portion of the
// one that has most: so a slow node is relieved. Which rank writes a byte does not decide what it
// is.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "exec/executor.h"
#include "exec/units.h"

namespace dsckpt {

struct ShareOptions {
  int ranks = 1;
  // Outputs are cut at multiples of it, or as near before as a unit ends there; a multiple of the
  // units' size. The pages of a network's file system must not be two ranks'.
  uint64_t cut_bytes = 1 << 20;
  // Outputs are never cut: they are packed.
  bool whole_outputs = false;
  // Portions of about so many bytes, and no longer unless they must not be cut; 0: as they suit
  // ranks that are not equally fast.
  uint64_t portion_bytes = 0;
  // The rank that has most of what a batch reads; not set: all see all files.
  std::function<int(uint64_t batch)> owner = {};
};

// One thread at a time.
class Shares {
 public:
  // A portion is an eighth of what is left of its share, but not shorter than a 64th of the share
  // or kShortest (a 16th of the share, if that is shorter): so ranks that are not equally fast end
  // at about the same time. None is longer than kLongest, and no more of the plan's literals than
  // kMostLiterals begin in it, unless it must not be cut.
  static constexpr uint64_t kShortest = 1 << 20;
  static constexpr uint64_t kLongest = uint64_t{4} << 30;
  static constexpr uint64_t kMostLiterals = uint64_t{16} << 20;

  // `done`: batches that nobody needs to do any more, rising.
  Shares(const Units& units, std::span<const BatchRange> done, const ShareOptions& options);

  // Batches that are one rank's.
  struct Piece {
    BatchRange batches;
    uint64_t bytes = 0;
    int owner = -1;  // the rank whose share it is, since it has what is read; -1: by the bytes
    uint64_t literals = 0;  // bytes that are sent along
  };
  // Of pieces in the order of their batches. What is given out as a whole is `longest` bytes at
  // most, or one piece.
  Shares(std::span<const Piece> pieces, int ranks, uint64_t longest = kLongest);

  // What `rank` is to do next; nothing if all is taken.
  std::optional<BatchRange> take(int rank);
  // Of all ranks.
  size_t portions_left() const;
  // That were never taken by its owner, of `rank`.
  uint64_t bytes_left(int rank) const { return left_[static_cast<size_t>(rank)]; }

 private:
  // How `total` bytes are dealt out, and how many have been.
  struct Dealing {
    Dealing(uint64_t total, size_t ranks, uint64_t most);
    // How many bytes of a portion are enough, which begins where `begin` bytes have been dealt.
    uint64_t portion_at(uint64_t begin, const Piece& piece) const;

    uint64_t share;
    uint64_t shortest;
    uint64_t longest;
    uint64_t dealt = 0;
  };
  void add(const Piece& piece, Dealing& dealing);

  std::vector<std::deque<Piece>> pieces_;  // by rank
  std::vector<uint64_t> left_;             // bytes of these
};

}  // namespace dsckpt
