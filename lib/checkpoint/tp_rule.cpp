#include "checkpoint/tp_rule.h"

#include <array>
#include <utility>

#include "dsckpt/error.h"

namespace dsckpt {

TpRule TpRule::parse(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, How>, 5> kHows{{{"cat:0", How::cat_0},
                                                                   {"cat:1", How::cat_1},
                                                                   {"replicated", How::replicated},
                                                                   {"average", How::average},
                                                                   {"sum", How::sum}}};
  const size_t equals = text.rfind('=');
  if (equals != text.npos && equals > 0) {
    for (const auto& [name, how] : kHows) {
      if (text.substr(equals + 1) == name) return {std::string(text.substr(0, equals)), how};
    }
  }
  throw UsageError("'" + std::string(text) + "' is not a rule for tensor-parallel slices")
      .with_hint("REGEX=cat:0, REGEX=cat:1, REGEX=replicated, REGEX=average or REGEX=sum");
}

}  // namespace dsckpt
