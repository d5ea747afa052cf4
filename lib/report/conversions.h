// What a checkpoint can be made into.
#pragma once

#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"

namespace dsckpt {

struct Conversion {
  std::string tool;  // "zero-to-fp32"
  std::string what;  // "fp32 weights"
  // Why that tool would refuse; "" if it would not.
  std::string refusal;
  // How to call it, with words in capitals to fill in: "zero-to-fp32 ckpt OUTPUT".
  std::string command = {};
};

// Found out by planning each of them (for reshard, for as many ranks as there were, but a few at
// most, at the same stage). `source` is open with its states. Throws what reading
// throws.
std::vector<Conversion> conversions(const Source& source);

}  // namespace dsckpt
