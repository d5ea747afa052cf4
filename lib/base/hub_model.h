// Models of the Hugging Face hub, which nothing here downloads.
#pragma once

#include <string>

namespace dsckpt {

// The next step of who gives `model`, "OWNER/NAME", for a path.
inline std::string download_hint(const std::string& model) {
  return "a model of the Hugging Face hub is downloaded first: `hf download " + model +
         " --local-dir FOLDER`";
}

}  // namespace dsckpt
