// The conversions that a checkpoint allows.
#pragma once

#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"

namespace dsckpt {

struct Conversion {
  std::string tool;  // "zero-to-fp32"
  std::string what;  // "fp32 weights"
  // The reason why the tool would refuse; "" if it would not.
  std::string refusal;
  // The command, with words in capitals to fill in: "zero-to-fp32 ckpt OUTPUT".
  std::string command = {};
};

// Plans each conversion to find out; reshard keeps the stage and the number of ranks, but at most a
// few. The source must be open with its states. Throws the errors of reading.
std::vector<Conversion> conversions(const Source& source);

}  // namespace dsckpt
