// Listing: what a dry run prints, before anybody decides how wide it is.
#pragma once

#include <string>
#include <vector>

namespace dsckpt {

struct Listing {
  struct Column {
    std::string heading;
    bool is_number = false;  // aligned on the right
    bool shrinks = false;    // shortened where a line is too long; one column at most
  };
  // With columns the rows are a table, each with a cell a column. Without, rows are lines of cells
  // apart by tabs. Cells are printable.
  std::vector<Column> columns = {};
  std::vector<std::vector<std::string>> rows = {};
  std::vector<std::string> below = {};  // lines
};

}  // namespace dsckpt
