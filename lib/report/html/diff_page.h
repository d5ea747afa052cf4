// DiffPage: the differences between two checkpoints, as one page for a browser. Like an HtmlReport
// (page.h), it holds everything that it shows, its size is bounded, and equal input gives equal
// bytes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "inspect/diff.h"

namespace dsckpt {

struct DiffPage {
  struct Side {
    std::string path;
    std::string form;  // "zero-2", "safetensors"
    std::vector<std::pair<std::string, std::string>> facts;
  };
  Side a;
  Side b;
  const Diff* diff = nullptr;  // borrowed
  std::string verdict;         // in one sentence
  std::string advice;          // a next step; may be empty
  bool all = false;            // list equal tensors too
};

// A whole HTML document in UTF-8. All text may come from files as it is.
std::string html_of(const DiffPage& page);

}  // namespace dsckpt
