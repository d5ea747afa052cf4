// How stages 1 and 2 record a flat group's padding. They record the padding of each rank's
// partition in group_paddings. The way differs, and so does the number of the partition's elements
// in the rank's file.
//
// The vector of a group is padded at its end to a multiple of 2 * ranks
// (nccl_start_alignment_factor). Then it is cut into equally long partitions, so that some ranks of
// short vectors have nothing but padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dsckpt {

// A group's flat vector, cut into partitions.
struct FlatCut {
  size_t ranks = 1;
  uint64_t length = 0;  // elements of a partition
  uint64_t used = 0;    // of the vector up to its padding; at most ranks * length

  uint64_t padding() const { return ranks * length - used; }
  // The elements of `rank` that are not padding.
  uint64_t real(size_t rank) const;
};

// One way to keep them.
struct PaddingBooks {
  std::string_view writer;
  // group_paddings of `rank`.
  uint64_t (*padding)(const FlatCut& cut, size_t rank);
  // Elements of single_partition_of_fp32_groups of `rank`.
  uint64_t (*saved)(const FlatCut& cut, size_t rank);
};

// The evidence in a group's files on how its books are kept.
struct BooksEvidence {
  bool keeps_padding = false;  // they are BF16_Optimizer's
  // group_paddings of the last rank; nullopt where the files do not have it.
  std::optional<uint64_t> last_padding = {};
  // The elements that are saved of the last rank; nullopt where its file is lost.
  std::optional<uint64_t> last_saved = {};
};

// The books of a group. Since 0.7 one way or another of stages 1 and 2 is the same unless the
// padding is longer than a partition.
const PaddingBooks& padding_books(const FlatCut& cut, const BooksEvidence& evidence);

}  // namespace dsckpt
