#include "cli/table.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace dsckpt::cli {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kLeastWrapped = 20;
constexpr size_t kLeastCut = 24;  // of a name; columns are left out before it is cut shorter
constexpr std::string_view kBounds = "./";

bool is_word(std::string_view part) {
  return std::all_of(part.begin(), part.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  });
}

// Cuts all parts except the last to `letters`, from the front, until the name fits into `width`.
// Numbers stay, since they distinguish layers.
std::string abbreviated(const std::string& name, size_t width, size_t letters) {
  std::string out = name;
  for (size_t at = 0; columns_of(out) > width;) {
    const size_t bound = out.find_first_of(kBounds, at);
    if (bound == std::string::npos) break;
    const std::string_view part = std::string_view(out).substr(at, bound - at);
    const size_t kept = is_word(part) ? std::min(letters, part.size()) : part.size();
    out.erase(at + kept, part.size() - kept);
    at += kept + 1;
  }
  return out;
}

// Narrows each name to `width` columns. Returns nullopt if some would become equal.
std::optional<std::vector<std::string>> narrowed(const std::vector<std::string>& names,
                                                 size_t width) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    out.push_back(abbreviated(name, width, 4));
    if (columns_of(out.back()) > width) out.back() = abbreviated(name, width, 1);
    if (columns_of(out.back()) <= width) continue;
    if (width < kLeastCut) return std::nullopt;
    out.back() = shortened(name, width);
  }
  const std::set<std::string> before(names.begin(), names.end());
  const std::set<std::string> after(out.begin(), out.end());
  if (before.size() != after.size()) return std::nullopt;
  return out;
}

// Returns the common beginning of all names that are not empty, up to a bound. "" if they are all
// equal.
std::string common_front(const std::vector<std::string>& names) {
  const std::string* first = nullptr;
  size_t size = 0;
  bool differ = false;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    if (first == nullptr) {
      first = &name;
      size = name.size();
      continue;
    }
    differ = differ || name != *first;
    const auto end = std::mismatch(first->begin(), first->begin() + static_cast<ptrdiff_t>(size),
                                   name.begin(), name.end());
    size = static_cast<size_t>(end.first - first->begin());
  }
  if (!differ) return "";
  const std::string front = first->substr(0, size);
  const size_t bound = front.find_last_of(kBounds);
  return bound == std::string::npos ? "" : front.substr(0, bound + 1);
}

}  // namespace

// A table while it is fitted into a width.
class Table::Fitting {
 public:
  Fitting(const Table& table, size_t width)
      : columns_(table.columns_), rows_(table.rows_), width_(width) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].named) named_ = c;
      const auto is_empty = [&](const Row& row) { return row.cells[c].empty(); };
      if (c == 0 || !std::all_of(rows_.begin(), rows_.end(), is_empty)) shown_.push_back(c);
    }
    if (named_) {
      for (const Row& row : rows_) names_.push_back(row.cells[*named_]);
    }
    fit();
  }

  // front() is a line above the rows; notes() are lines below them.
  std::string front() const { return front_.empty() ? "" : "all names begin with " + front_; }
  const std::vector<std::string>& notes() const { return notes_; }

  std::string headings() const {
    std::vector<std::string> cells;
    for (const Column& column : columns_) cells.push_back(column.heading);
    return line(cells).front();
  }
  std::vector<std::string> lines(size_t row) const {
    std::vector<std::string> cells = rows_[row].cells;
    if (named_) cells[*named_] = names_[row];
    return line(cells);
  }

 private:
  size_t widest(size_t column) const {
    size_t most = columns_of(columns_[column].heading);
    for (size_t r = 0; r < rows_.size(); ++r) {
      const bool is_name = named_ == column;
      most = std::max(most, columns_of(is_name ? names_[r] : rows_[r].cells[column]));
    }
    return most;
  }

  size_t total() const {
    size_t sum = kGap * (shown_.size() - 1);
    for (const size_t c : shown_) sum += wide_[c];
    return sum;
  }
  bool fits() const { return total() <= width_; }
  // Long names are abbreviated or cut before columns are left out for them.
  bool fits_without_long_names() const {
    size_t sum = total();
    if (named_ && std::find(shown_.begin(), shown_.end(), *named_) != shown_.end()) {
      sum -= wide_[*named_] - std::min(wide_[*named_], width_ * 3 / 5);
    }
    return sum <= width_;
  }
  // Returns the room for a column beside the others.
  size_t left_for(size_t column) const {
    const size_t others = total() - wide_[column];
    return others < width_ ? width_ - others : 0;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r].is_total) all.push_back(names_[r]);
    }
    return all;
  }
  void rename(const std::vector<std::string>& names) {
    auto name = names.begin();
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r].is_total) names_[r] = *name++;
    }
    wide_[*named_] = widest(*named_);
  }

  void fit() {
    if (columns_.empty()) return;
    for (size_t c = 0; c < columns_.size(); ++c) wide_.push_back(widest(c));
    if (!fits()) fold_front();
    if (!fits()) wrap_last();
    std::set<size_t> left_out;
    while (!fits_without_long_names() && leave_out(left_out, true)) continue;
    while (!fits() && !narrow_names() && leave_out(left_out, false)) continue;
    say_left_out(left_out);
    const size_t first = shown_.front();
    wide_[first] = std::min(wide_[first], left_for(first));
  }

  void say_left_out(const std::set<size_t>& left_out) {
    if (left_out.empty()) return;
    std::string text = "not shown:";
    std::set<std::string> said;
    for (const size_t c : left_out) {
      if (!said.insert(columns_[c].heading).second) continue;
      text += (text.back() == ':' ? " " : ", ") + columns_[c].heading;
    }
    notes_.push_back(text + " (a wider terminal or a pipe has room)");
    if (named_ && left_out.contains(*named_)) front_.clear();
  }

  void fold_front() {
    if (!named_) return;
    const std::string front = common_front(names());
    if (front.empty()) return;
    std::vector<std::string> all = names();
    for (std::string& name : all) name.erase(0, std::min(name.size(), front.size()));
    rename(all);
    front_ = front;
  }

  void wrap_last() {
    const size_t last = shown_.back();
    if (columns_[last].wraps) wide_[last] = std::max(left_for(last), kLeastWrapped);
  }

  // Leaves out the column of the highest rank, or else the last column, but never the first.
  bool leave_out(std::set<size_t>& left_out, bool ranked) {
    auto found = shown_.end();
    for (auto at = std::next(shown_.begin()); at < shown_.end(); ++at) {
      if (ranked && columns_[*at].rank == 0) continue;
      if (found == shown_.end() || !ranked || columns_[*at].rank >= columns_[*found].rank) {
        found = at;
      }
    }
    if (found == shown_.end()) return false;
    left_out.insert(*found);
    shown_.erase(found);
    return true;
  }

  bool narrow_names() {
    if (!named_) return false;
    const auto shorter = narrowed(names(), left_for(*named_));
    if (!shorter) return false;
    rename(*shorter);
    wide_[*named_] = std::min(wide_[*named_], left_for(*named_));
    return true;
  }

  std::vector<std::string> line(const std::vector<std::string>& cells) const {
    std::vector<std::string> out(1);
    for (const size_t c : shown_) {
      const bool wraps = columns_[c].wraps && c == shown_.back();
      std::vector<std::string> pieces = wraps ? wrapped(cells[c], wide_[c]) : std::vector{cells[c]};
      for (std::string& piece : pieces) piece = shortened(piece, std::max<size_t>(wide_[c], 1));
      const std::string& cell = pieces.front();
      const std::string fill(wide_[c] - std::min(wide_[c], columns_of(cell)), ' ');
      if (c != shown_.front()) out.front() += std::string(kGap, ' ');
      const size_t indent = columns_of(out.front());
      out.front() += columns_[c].align == Align::left ? cell + fill : fill + cell;
      for (size_t i = 1; i < pieces.size(); ++i) {
        out.push_back(std::string(indent, ' ') + pieces[i]);
      }
    }
    for (std::string& each : out) {
      each = shortened(each.substr(0, each.find_last_not_of(' ') + 1), width_);
    }
    return out;
  }

  const std::vector<Column>& columns_;
  const std::vector<Row>& rows_;
  const size_t width_;
  std::vector<std::string> names_;  // as they are shown; of all rows if `named_`
  std::vector<size_t> shown_;       // columns in their order
  std::vector<size_t> wide_;        // widths of all columns
  std::optional<size_t> named_;
  std::string front_;  // common beginning of all names, not shown
  std::vector<std::string> notes_;
};

void Table::add(std::vector<std::string> cells, Style style) {
  cells.resize(columns_.size());
  rows_.push_back({std::move(cells), style});
}

void Table::add_total(std::vector<std::string> cells, Style style) {
  add(std::move(cells), style);
  rows_.back().is_total = true;
}

void Table::write(std::ostream& out, const Terminal& terminal) const {
  if (!terminal.tables || rows_.empty()) {
    write_tabs(out, terminal);
    return;
  }
  const Fitting fitting(*this, terminal.width);
  for (const std::string& line : wrapped(fitting.front(), terminal.width)) {
    if (!line.empty()) out << shortened(line, terminal.width) << "\n";
  }
  out << styled(terminal, Style::bold, fitting.headings()) << "\n";
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (const std::string& line : fitting.lines(r)) {
      out << styled(terminal, rows_[r].style, line) << "\n";
    }
  }
  for (const std::string& note : fitting.notes()) {
    for (const std::string& line : wrapped(note, terminal.width)) {
      out << styled(terminal, Style::dim, shortened(line, terminal.width)) << "\n";
    }
  }
}

std::string Table::text(const Terminal& terminal) const {
  std::ostringstream out;
  write(out, terminal);
  return std::move(out).str();
}

std::string bytes_cell(const Terminal& terminal, uint64_t bytes) {
  return terminal.tables ? human_bytes(bytes) : std::to_string(bytes);
}

std::string count_cell(const Terminal& terminal, uint64_t count) {
  return terminal.tables ? grouped(count) : std::to_string(count);
}

void Table::write_tabs(std::ostream& out, const Terminal& terminal) const {
  for (const Row& row : rows_) {
    std::string fields;
    for (size_t i = 0; i < row.cells.size(); ++i) fields += (i == 0 ? "" : "\t") + row.cells[i];
    out << styled(terminal, row.style, fields) << "\n";
  }
}

}  // namespace dsckpt::cli
