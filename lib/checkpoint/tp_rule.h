// How the slices of tensor-parallel ranks go together where the user says it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsckpt {

struct TpRule {
  enum class How : uint8_t {
    cat_0,       // one after the other along dimension 0
    cat_1,       // along dimension 1
    replicated,  // the same on all ranks, which is checked
    average,     // the mean of the ranks'
    sum,         // the sum of the ranks', which each add their own
  };
  std::string pattern;  // RE2, tried from the start of a name as Python's re.match does
  How how = How::replicated;

  // "REGEX=cat:0", "=cat:1", "=replicated", "=average" or "=sum"; the last '=' counts. Throws
  // UsageError for anything else; whether the pattern is one is UniversalInfo's business.
  static TpRule parse(std::string_view text);
};

}  // namespace dsckpt
