// Shares: distributes the batches of a run over its ranks.
//
// Every rank has a contiguous share of the batches, all of equal bytes except for the cuts, in
// portions. Ranks that are not equally fast help each other from the ends of shares. The last
// portions of a share are short, so all ranks end together. The bytes of the output do not depend
// on the rank that writes them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/executor.h"
#include "exec/units.h"

namespace dsckpt {

struct ShareOptions {
  int ranks = 1;
  // Outputs are cut at multiples of it, or at the end of the last unit before. It is a multiple of
  // the units' size. Two ranks must not share a page of a network's file system.
  uint64_t cut_bytes = 1 << 20;
  // If true, outputs are never cut, because they are packed.
  bool whole_outputs = false;
  // The approximate bytes of a portion, which is longer only if it must not be cut. 0: a size that
  // suits ranks of different speed.
  uint64_t portion_bytes = 0;
  // The rank that has most of the input of a batch; if empty, all ranks see all files.
  std::function<int(uint64_t batch)> owner = {};
};

class Shares {
 public:
  // A portion is an eighth of the rest of its share. It is not shorter than a 64th of the share or
  // kShortest (a 16th of the share, if that is shorter). So ranks of different speed end at about
  // the same time. It is not longer than kLongest, and no more than kMostLiterals of the plan's
  // literals begin in it, unless it must not be cut.
  static constexpr uint64_t kShortest = 1 << 20;
  static constexpr uint64_t kLongest = uint64_t{4} << 30;
  static constexpr uint64_t kMostLiterals = uint64_t{16} << 20;

  // The approximate bytes of a portion of steps; there are `left` bytes in about `wanted`
  // portions; 0: as many as suit.
  static uint64_t step_portion_bytes(uint64_t left, uint64_t wanted);

  // `done`: finished batches, rising.
  Shares(const Units& units, std::span<const BatchRange> done, const ShareOptions& options);

  // Batches that one rank takes.
  struct Piece {
    BatchRange batches;
    uint64_t bytes = 0;
    int owner = -1;  // the rank whose share it is, since it has what is read; -1: by the bytes
    uint64_t literals = 0;  // bytes that are in it
  };
  // From pieces in the order of their batches. A portion has at most `longest` bytes, or one piece.
  Shares(std::span<const Piece> pieces, int ranks, uint64_t longest = kLongest);

  // The portions of a rank.
  const std::vector<Piece>& of(int rank) const { return pieces_[static_cast<size_t>(rank)]; }
  int ranks() const { return static_cast<int>(pieces_.size()); }

 private:
  // The distribution of `total` bytes, and its progress.
  struct Dealing {
    Dealing(uint64_t total, size_t ranks, uint64_t most);
    // The bytes of a portion that begins where `begin` bytes are already distributed.
    uint64_t portion_at(uint64_t begin, const Piece& piece) const;

    uint64_t share;
    uint64_t shortest;
    uint64_t longest;
    uint64_t dealt = 0;
  };
  void add(const Piece& piece, Dealing& dealing);

  std::vector<std::vector<Piece>> pieces_;  // by rank
};

}  // namespace dsckpt
