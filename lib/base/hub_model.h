// Models on the Hugging Face hub, which this program never downloads.
#pragma once

#include <string>

namespace dsckpt {

// The hint for a user who gave `model`, "OWNER/NAME", as a path.
inline std::string download_hint(const std::string& model) {
  return "a model of the Hugging Face hub is downloaded first: `hf download " + model +
         " --local-dir FOLDER`";
}

}  // namespace dsckpt
