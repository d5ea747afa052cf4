// The user's rules that join the slices of tensor-parallel ranks.
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
  // UsageError for anything else; UniversalInfo checks the pattern.
  static TpRule parse(std::string_view text);
};

}  // namespace dsckpt
