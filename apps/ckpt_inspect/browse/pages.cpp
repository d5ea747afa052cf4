#include "ckpt_inspect/browse/pages.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/shown.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "dsckpt/error.h"
#include "inspect/summary.h"
#include "inspect/tensor_stats.h"

namespace dsckpt::inspect {
namespace {

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Lines text_lines(std::vector<std::string> lines) {
  return [lines = std::move(lines)](size_t) { return lines; };
}

Lines table_lines(cli::Table table) {
  return [table = std::move(table)](size_t columns) {
    return split_lines(table.text({.tables = true, .colour = false, .width = columns}));
  };
}

Lines in_sequence(std::vector<Lines> parts) {
  return [parts = std::move(parts)](size_t columns) {
    std::vector<std::string> lines;
    for (const Lines& part : parts) {
      for (std::string& line : part(columns)) lines.push_back(std::move(line));
    }
    return lines;
  };
}

// Breaks rows of values between two values.
std::vector<std::string> broken(const std::string& row, size_t columns) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < row.size();) {
    size_t size = std::min(row.size() - at, columns);
    if (size == columns && at + size < row.size()) {
      const size_t comma = row.rfind(", ", at + size - 1);
      if (comma != std::string::npos && comma > at) size = comma + 1 - at;
    }
    lines.push_back(row.substr(at, size));
    at += size;
    if (at < row.size() && row[at] == ' ') ++at;
  }
  if (lines.empty()) lines.emplace_back();
  return lines;
}

// One line for each cell that is not empty.
Lines cells_lines(const Cells& cells) {
  size_t width = 0;
  for (const auto& [heading, cell] : cells) width = std::max(width, heading.size());
  std::vector<std::string> lines;
  for (const auto& [heading, cell] : cells) {
    if (cell.empty()) continue;
    lines.push_back(heading + std::string(width - heading.size() + 2, ' ') + cell);
  }
  return text_lines(std::move(lines));
}

// Returns the text in place of a lost tensor's values, or "" for other tensors.
std::string why_no_values(const Opened& opened, const NamedTensor& tensor) {
  return tensor.lost.empty() ? "" : lost_text(opened.contents, tensor);
}

}  // namespace

PageWork extents_page(const Opened& opened, const NamedTensor& tensor) {
  return [opened, &tensor](Progress&) {
    if (std::string lost = why_no_values(opened, tensor); !lost.empty()) {
      return text_lines({std::move(lost)});
    }
    const auto extents = extents_of(opened.inputs, opened.contents, tensor.value);
    if (extents.empty()) return text_lines({"it lies in no file"});
    return table_lines(extents_table(opened.inputs, extents));
  };
}

PageWork values_page(const Opened& opened, const NamedTensor& tensor) {
  return [opened, &tensor](Progress& progress) {
    if (std::string lost = why_no_values(opened, tensor); !lost.empty()) {
      return text_lines({std::move(lost)});
    }
    std::string text;
    in_context({.tensor = tensor.label()}, [&] {
      write_named_values(opened.inputs, tensor.label(), tensor.value, false,
                         [&](std::string_view part) {
                           if (progress.cancelled) throw InterruptedError();
                           text += part;
                         });
    });
    std::vector<std::string> lines = split_lines(text);
    return Lines([lines = std::move(lines)](size_t columns) {
      std::vector<std::string> wrapped;
      for (const std::string& line : lines) {
        for (std::string& part : broken(line, columns)) wrapped.push_back(std::move(part));
      }
      return wrapped;
    });
  };
}

PageWork statistics_page(const Opened& opened, const NamedTensor& tensor) {
  return [opened, &tensor](Progress& progress) {
    if (std::string lost = why_no_values(opened, tensor); !lost.empty()) {
      return text_lines({std::move(lost)});
    }
    const TensorStats stats = tensor_stats(opened.inputs, {tensor}, {}, {0, progress});
    const Statistics& values = stats.tensors.front();
    Cells cells = statistics_cells(values);
    cells.insert(cells.begin(), {"elements", std::to_string(tensor.value.numel())});
    return cells_lines(cells);
  };
}

PageWork difference_page(const Opened& opened, const NamedTensor& a, const NamedTensor& b) {
  return [opened, &a, &b](Progress& progress) {
    for (const NamedTensor* tensor : {&a, &b}) {
      if (std::string lost = why_no_values(opened, *tensor); !lost.empty()) {
        return text_lines({printable(tensor->label()) + ": " + lost});
      }
    }
    // Both get the same name, so that the tensors are compared with each other.
    std::vector<NamedTensor> first{a};
    std::vector<NamedTensor> second{b};
    second.front().name = first.front().name;
    for (NamedTensor* tensor : {&first.front(), &second.front()}) {
      tensor->state.clear();
      tensor->alias_of.clear();
    }
    const bool is_checkpoint = opened.contents.checkpoint() != nullptr;
    const Diff diff = diff_tensors({&opened.inputs, &first, is_checkpoint},
                                   {&opened.inputs, &second, is_checkpoint}, {}, {0, progress});
    Cells cells{{"A", printable(a.label())}, {"B", printable(b.label())}};
    for (auto& cell : difference_cells(diff.tensors.front())) cells.push_back(std::move(cell));
    return cells_lines(cells);
  };
}

PageWork bytes_page(const Opened& opened) {
  return [opened](Progress&) {
    const Summary summary = summarize(opened.inputs, opened.contents);
    std::vector<Lines> parts{text_lines({human_bytes(summary.bytes) + " in " +
                                             counted(summary.files, "file") + ", by kind:",
                                         ""}),
                             table_lines(kinds_table(summary))};
    std::vector<std::string> notes = opened.contents.notes();
    if (const Error* damage = opened.contents.damage()) {
      notes.insert(notes.begin(), "damaged: " + std::string(damage->what()));
    }
    for (const std::string& note : notes) {
      parts.push_back([note](size_t columns) {
        std::vector<std::string> lines = cli::wrapped(printable(note, Newlines::keep), columns);
        lines.insert(lines.begin(), "");
        return lines;
      });
    }
    return in_sequence(std::move(parts));
  };
}

}  // namespace dsckpt::inspect
