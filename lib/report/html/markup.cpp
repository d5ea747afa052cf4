#include "report/html/markup.h"

#include <string_view>

#include "base/text.h"
#include "report/html/style.h"
#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

constexpr size_t kMaxLines = 100;  // of facts, notes and kinds

}  // namespace

std::string cell(const std::string& html) {
  return "<td>" + html + "</td>";
}
std::string number(const std::string& html) {
  return "<td class=\"n\">" + html + "</td>";
}
std::string row_name(const std::string& html) {
  return "<th scope=\"row\">" + html + "</th>";
}
std::string heading(const std::string& html, bool is_number) {
  return std::string("<th scope=\"col\"") + (is_number ? " class=\"n\"" : "") + ">" + html +
         "</th>";
}

std::string row(const std::string& cells) {
  return "<tr>" + cells + "</tr>\n";
}

std::string table(const std::string& headings, const std::string& rows,
                  const std::string& classes) {
  const std::string head = headings.empty() ? "" : "<thead>" + row(headings) + "</thead>\n";
  return "<div class=\"scroll\"><table class=\"" + classes + "\">\n" + head + "<tbody>\n" + rows +
         "</tbody>\n</table></div>\n";
}

std::string dotted_name(const std::string& name) {
  std::string out;
  for (const char c : html_text(name)) out += c == '.' ? ".<wbr>" : std::string(1, c);
  return out;
}

std::string paragraph(const std::string& html) {
  return "<p>" + html + "</p>\n";
}

std::string section(const std::string& id, const std::string& title, const std::string& html) {
  return "<section id=\"" + id + "\">\n<h2>" + title + "</h2>\n" + html + "</section>\n";
}

std::string key(const std::string& colour) {
  return "<span class=\"key " + colour + "\"></span>";
}

std::string bytes_cell(uint64_t bytes) {
  return "<td class=\"n\" data-bytes=\"" + std::to_string(bytes) + "\" title=\"" +
         grouped_count(bytes, "byte") + "\">" + human_bytes(bytes) + "</td>";
}

std::string facts_list(const std::string& classes, const std::vector<HtmlReport::Fact>& facts) {
  if (facts.empty()) return "";
  std::string out = "<dl class=\"" + classes + "\">\n";
  for (size_t i = 0; i < facts.size() && i < kMaxLines; ++i) {
    out += "<div><dt>" + html_text(facts[i].label) + "</dt><dd>" + html_text(facts[i].value, 2000) +
           "</dd></div>\n";
  }
  return out + "</dl>\n";
}

std::string text_list(const std::string& classes, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string out = "<ul class=\"" + classes + "\">\n";
  for (size_t i = 0; i < lines.size() && i < kMaxLines; ++i) {
    out += "<li>" + html_text(lines[i], 2000) + "</li>\n";
  }
  return out + "</ul>\n";
}

std::string details(const std::string& summary, const std::string& html, bool open) {
  return std::string(open ? "<details open>" : "<details>") + "\n<summary>" + summary +
         "</summary>\n" + html + "</details>\n";
}

std::string document(const std::string& title, const std::string& body) {
  const std::string text = html_text(title);
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
         text + "</title>\n<style>" + std::string(html_style()) +
         "</style>\n</head>\n<body>\n<main>\n" + body + "</main>\n</body>\n</html>\n";
}

}  // namespace dsckpt
