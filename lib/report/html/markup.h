// The elements of pages. Arguments called `html` are inserted as they are; all others are escaped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/html/html_report.h"

namespace dsckpt {

// A cell of a table; of a number; and the first of a row.
std::string cell(const std::string& html);
std::string number(const std::string& html);
std::string row_name(const std::string& html);
std::string heading(const std::string& html, bool is_number = false);
std::string row(const std::string& cells);
// A table that scrolls to the side by itself if it is too wide.
std::string table(const std::string& headings, const std::string& rows,
                  const std::string& classes = "plain");

// A dotted name, which may be broken after its dots.
std::string dotted_name(const std::string& name);
// A square of a colour class.
std::string key(const std::string& colour);
std::string bytes_cell(uint64_t bytes);

std::string paragraph(const std::string& html);
std::string section(const std::string& id, const std::string& title, const std::string& html);
// Content that a click on `summary` opens.
std::string details(const std::string& summary, const std::string& html, bool open = false);
// At most a hundred entries.
std::string facts_list(const std::string& classes, const std::vector<HtmlReport::Fact>& facts);
std::string text_list(const std::string& classes, const std::vector<std::string>& lines);

// A whole document: its head with the style, which allows the page its own style and nothing else,
// and `body` in main.
std::string document(const std::string& title, const std::string& body);

}  // namespace dsckpt
