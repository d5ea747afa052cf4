#include "checkpoint/padding_books.h"

#include <algorithm>
#include <array>

namespace dsckpt {
namespace {

bool is_last(const FlatCut& cut, size_t rank) {
  return rank + 1 == cut.ranks;
}

uint64_t its_own(const FlatCut& cut, size_t rank) {
  return cut.length - cut.real(rank);
}
uint64_t all_on_the_last(const FlatCut& cut, size_t rank) {
  return is_last(cut, rank) ? cut.padding() : 0;
}

uint64_t whole(const FlatCut& cut, size_t) {
  return cut.length;
}
uint64_t without_its_own(const FlatCut& cut, size_t rank) {
  return cut.real(rank);
}
// t[:length - padding] of the last rank, where Python counts a negative end from the back.
uint64_t cut_off(const FlatCut& cut, uint64_t padding) {
  if (padding <= cut.length) return cut.length - padding;
  return padding < 2 * cut.length ? 2 * cut.length - padding : 0;
}
uint64_t cut_on_the_last(const FlatCut& cut, size_t rank) {
  return is_last(cut, rank) ? cut_off(cut, cut.padding()) : cut.length;
}
// The padding that makes the elements divisible by the ranks, where a vector is padded to twice
// that.
uint64_t half_on_the_last(const FlatCut& cut, size_t rank) {
  return is_last(cut, rank) ? (cut.ranks - cut.used % cut.ranks) % cut.ranks : 0;
}
uint64_t half_cut_on_the_last(const FlatCut& cut, size_t rank) {
  return cut_off(cut, half_on_the_last(cut, rank));
}

struct Row {
  PaddingBooks books;
  bool (*is_known_by)(const FlatCut& cut, const BooksEvidence& evidence);
};

// The first that is known by the files is theirs. 0.16.4 is commit 4fea41f, "Remove assumption that
// padding only occurs on last rank".
constexpr std::array kRows{
    Row{{"bf16_optimizer.py", all_on_the_last, whole},
        [](const FlatCut&, const BooksEvidence& evidence) { return evidence.keeps_padding; }},
    Row{{"stage_1_and_2.py before 0.7", half_on_the_last, half_cut_on_the_last},
        [](const FlatCut& cut, const BooksEvidence& evidence) {
          return !evidence.last_padding &&
                 evidence.last_saved == half_cut_on_the_last(cut, cut.ranks - 1);
        }},
    Row{{"stage_1_and_2.py before 0.16.4", all_on_the_last, cut_on_the_last},
        [](const FlatCut& cut, const BooksEvidence& evidence) {
          return cut.padding() > cut.length && evidence.last_padding == cut.padding();
        }},
    Row{{"stage_1_and_2.py since 0.16.4", its_own, without_its_own},
        [](const FlatCut&, const BooksEvidence&) { return true; }},
};

}  // namespace

uint64_t FlatCut::real(size_t rank) const {
  const uint64_t begin = rank * length;
  return std::clamp(used, begin, begin + length) - begin;
}

const PaddingBooks& padding_books(const FlatCut& cut, const BooksEvidence& evidence) {
  const auto row = std::find_if(kRows.begin(), kRows.end(),
                                [&](const Row& each) { return each.is_known_by(cut, evidence); });
  return row->books;
}

}  // namespace dsckpt
