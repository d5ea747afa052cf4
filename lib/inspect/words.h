// Lists of words as one text each, with spaces between them. For the tables of the scan.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

namespace dsckpt {

// A module and names in it.
struct Names {
  std::string_view module;
  std::string_view names;
};

inline bool has_word(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != std::string_view::npos) return false;
  for (size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
}

template <size_t N>
bool lists(const Names (&table)[N], std::string_view module, std::string_view name) {
  return std::any_of(std::begin(table), std::end(table), [&](const Names& row) {
    return row.module == module && has_word(row.names, name);
  });
}

}  // namespace dsckpt
