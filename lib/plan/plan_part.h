// PlanPart: neighbouring items of a plan as a plan of their own, and plans as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/varint.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Numbers things anew, in the order in which they are asked for, from `old.size()` on. `old` keeps
// the former number of each. Memory grows with the largest number that is asked for.
template <typename Number>
class Renumbering {
 public:
  explicit Renumbering(std::vector<Number>& old) : old_(old) {
    for (size_t i = 0; i < old.size(); ++i) place_of(old[i]) = static_cast<Number>(i);
  }
  Number operator()(Number number) {
    Number& given = place_of(number);
    if (given == kNone) {
      given = static_cast<Number>(old_.size());
      old_.push_back(number);
    }
    return given;
  }

 private:
  static constexpr Number kNone = static_cast<Number>(~Number{0});
  Number& place_of(Number number) {
    if (number >= new_.size()) new_.resize(number + size_t{1}, kNone);
    return new_[number];
  }

  std::vector<Number>& old_;
  std::vector<Number> new_ = {};
};

// A plan that holds only what some items need, with outputs, files and digests numbered anew. It
// may leave gaps in its first and last output, so validate() must not be called.
struct PlanPart {
  CopyPlan plan;
  std::vector<OutputId> outputs = {};   // of each of the part's: its number in the whole plan
  std::vector<FileId> files = {};       // the same
  std::vector<uint64_t> digests = {};   // the same
  std::vector<uint32_t> operands = {};  // the same
};

// Items [first, last) of `plan`, at least one. The part gets the digests numbered `digests`, whose
// outputs it has.
PlanPart part_of(const CopyPlan& plan, size_t first, size_t last,
                 std::span<const uint64_t> digests);

// The plan as bytes, and back. A part of a million items takes about ten bytes for each. Throws
// CorruptError for bytes that write_plan() did not write. `written` is called now and then, and may
// take what is there.
void write_plan(VarintWriter& writer, const CopyPlan& plan,
                const std::function<void()>& written = {});
CopyPlan read_plan(VarintReader& reader);

}  // namespace dsckpt
