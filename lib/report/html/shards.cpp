#include <algorithm>
#include <map>

#include "base/text.h"
#include "report/html/charts.h"
#include "report/html/markup.h"
#include "report/html/sections.h"
#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

using Extent = HtmlReport::Extent;

constexpr size_t kAllRows = 24;    // parts; so many are all shown
constexpr size_t kOtherRows = 16;  // parts of an unusual size
constexpr size_t kFirstRows = 64;  // parts of the usual size, collapsed, for all tensors together
constexpr size_t kMaps = 8;        // maps with tables

int64_t elements_of(const Extent& part) {
  return part.extent.row_elements * static_cast<int64_t>(part.extent.rows);
}

// torch's archives repeat the file's name as a record's folder, which is left out here.
std::string record_text(const Extent& part) {
  const std::string& record = part.extent.record;
  const size_t slash = record.find('/');
  const bool again = slash != record.npos && part.file.starts_with(record.substr(0, slash) + ".");
  return again ? record.substr(slash + 1) : record;
}

std::string where_cells(const Extent& part, const std::string& colour) {
  const TensorExtent& extent = part.extent;
  const auto places = [](uint64_t first, uint64_t count, uint64_t rows, int64_t step) {
    const std::string range = grouped(first) + " + " + grouped(count);
    return rows == 1 ? range
                     : grouped(rows) + " × (" + range + "), every " +
                           grouped(static_cast<uint64_t>(step));
  };
  return row("<th scope=\"row\" class=\"mono\">" + key(colour) + html_text(part.file) + "</th>" +
             cell("<span class=\"mono\">" + html_text(record_text(part)) + "</span>") +
             number(places(static_cast<uint64_t>(extent.first),
                           static_cast<uint64_t>(extent.row_elements), extent.rows, extent.step)) +
             number(places(extent.offset, extent.row_bytes, extent.rows, extent.stride)));
}

std::string parts_table(const std::vector<const Extent*>& parts,
                        const std::map<const Extent*, std::string>& colours) {
  std::string rows;
  for (const Extent* part : parts) rows += where_cells(*part, colours.at(part));
  return table(heading("file") + heading("record") + heading("elements: first + count", true) +
                   heading("bytes: offset + length", true),
               rows, "parts");
}

// Returns the most frequent size of a part in elements, and the number of parts of that size.
std::pair<int64_t, size_t> usual_size(const std::vector<Extent>& parts) {
  std::map<int64_t, size_t> sizes;
  for (const Extent& part : parts) ++sizes[elements_of(part)];
  const auto most = std::max_element(
      sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return *most;
}

// Parts of unusual sizes come first; the others are collapsed.
std::string many_parts(const std::vector<Extent>& parts,
                       const std::map<const Extent*, std::string>& colours, size_t rows) {
  const auto [size, count] = usual_size(parts);
  std::vector<const Extent*> others;
  std::vector<const Extent*> first;
  for (const Extent& part : parts) {
    const bool is_usual = elements_of(part) == size;
    if (!is_usual && others.size() < kOtherRows) others.push_back(&part);
    if (is_usual && first.size() < rows) first.push_back(&part);
  }
  const size_t different = parts.size() - count;
  std::string out = paragraph(
      grouped(count) + " of " + grouped_count(parts.size(), "part") + " have " +
      grouped_count(static_cast<uint64_t>(size), "element") + " each" +
      (different == 0              ? "."
       : different == 1            ? "; this one has not:"
       : others.size() < different ? "; " + grouped(different) + " have not; these are the first:"
                                   : "; these " + grouped(different) + " have not:"));
  if (!others.empty()) out += parts_table(others, colours);
  return out + details(first.size() < count ? "the first " + grouped(first.size()) + " of the " +
                                                  grouped(count) + " that are alike"
                                            : "the " + grouped(count) + " that are alike",
                       parts_table(first, colours));
}

// `rows`: the rows in a table of parts of equal size, or 0 for no table.
std::string shard_map(const HtmlReport::ShardMap& map, size_t steps, size_t rows) {
  std::map<std::string, size_t> files;
  std::vector<size_t> file_of;
  for (const Extent& part : map.extents) {
    file_of.push_back(files.try_emplace(part.file, files.size()).first->second);
  }
  const bool many = map.extents.size() > kAllRows;
  std::map<const Extent*, std::string> colours;
  std::vector<const Extent*> all;
  for (size_t i = 0; i < map.extents.size(); ++i) {
    colours[&map.extents[i]] =
        many ? shade_class(file_of[i], files.size()) : colour_class(file_of[i]);
    all.push_back(&map.extents[i]);
  }
  std::string out = "<h3>" + html_text(map.tensor) + "</h3>\n" +
                    paragraph(html_text(map.type) + ", " +
                              grouped_count(static_cast<uint64_t>(map.elements), "element") +
                              " in " + grouped_count(files.size(), "file"));
  if (!many) return out + shard_bar(map, file_of) + (rows > 0 ? parts_table(all, colours) : "");
  out += shard_strip(map, file_of, files.size(), steps) + "<p class=\"ends\"><span>" +
         html_text(map.extents.front().file) + "</span><span>" +
         html_text(map.extents.back().file) + "</span></p>\n";
  return out + (rows > 0 ? many_parts(map.extents, colours, rows) : "");
}

}  // namespace

std::string shards_section(const std::vector<HtmlReport::ShardMap>& maps) {
  if (maps.empty()) return "";
  const bool any_many = std::any_of(maps.begin(), maps.end(),
                                    [](const auto& map) { return map.extents.size() > kAllRows; });
  std::string content = paragraph(
      std::string("The elements of a tensor from first to last, each in the colour of its file") +
      (any_many ? "; of many files the first are pale and the last are dark." : "."));
  // The limits keep the page small for any number of maps.
  const size_t steps = maps.size() <= 2 ? 128 : 32;
  const size_t rows = std::max<size_t>(kFirstRows / maps.size(), 4);
  for (size_t i = 0; i < maps.size() && i < 4 * kMaps; ++i) {
    content += shard_map(maps[i], steps, i < kMaps ? rows : 0);
  }
  if (maps.size() > 4 * kMaps) {
    content += paragraph("And " + grouped_count(maps.size() - 4 * kMaps, "more tensor") + ".");
  }
  return section("shards", "From elements to shards", content);
}

}  // namespace dsckpt
