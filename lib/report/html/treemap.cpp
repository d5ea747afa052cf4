#include <algorithm>
#include <array>

#include "report/html/charts.h"
#include "report/html/text.h"
#include "report/report.h"

namespace dsckpt {
namespace {

constexpr double kHeight = 560;  // pixels
constexpr double kLine = 15;     // from one line of text to the next
constexpr double kCharacter = 7;
constexpr double kMargin = 6;

// Widths of the map in windows of different sizes, and the class of texts that need such a width.
struct Tier {
  double width;
  const char* text_class;
};
constexpr std::array<Tier, 3> kTiers{{{340, "s"}, {600, "m"}, {980, "l"}}};

// The narrowest tier in which `text` fits into a cell, or nullptr.
const Tier* tier_for(const std::string& text, const MapArea& area) {
  const double need = static_cast<double>(character_count(text)) * kCharacter + 2 * kMargin;
  const auto fits = std::find_if(kTiers.begin(), kTiers.end(),
                                 [&](const Tier& tier) { return area.width * tier.width >= need; });
  return fits == kTiers.end() ? nullptr : &*fits;
}

std::string without_weight(const std::string& name) {
  constexpr std::string_view kSuffix = ".weight";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

// The longest form of a cell's name that fits, or "".
std::string fitting(const std::string& name, const MapArea& area) {
  const std::string base = without_weight(name);
  for (const std::string& text : {name, base, base.substr(base.rfind('.') + 1)}) {
    if (tier_for(text, area)) return text;
  }
  return "";
}

class Labels {
 public:
  explicit Labels(const MapArea& area) : area_(area) {}

  // Adds a line if there is room for it. A window that is too narrow for a line hides the lines
  // after it too.
  void add(const std::string& text, const char* style) {
    const double bottom = y_ + kLine;
    const Tier* tier = tier_for(text, area_);
    if (text.empty() || !tier || bottom + kMargin / 2 > area_.height * kHeight) return;
    y_ = bottom;
    tier_ = std::max(tier_, tier);
    out_ += std::string("<text class=\"") + tier_->text_class + style + "\" x=\"6\" y=\"" +
            decimal(y_, 0) + "\">" + html_text(text) + "</text>";
  }
  const std::string& text() const { return out_; }

 private:
  MapArea area_;
  const Tier* tier_ = kTiers.data();
  double y_ = 2;
  std::string out_;
};

std::string tensors_text(uint64_t count) {
  return grouped_count(count, "tensor");
}

std::string cell_title(const Treemap& map, const MapCell& cell) {
  const std::string where = cell.path.empty() ? "the model" : html_text(cell.path);
  return (cell.name.empty() ? "small tensors in " : "") + where + ": " +
         tensors_text(cell.tensors) + ", " + human_bytes(cell.bytes) + ", " +
         percent(cell.bytes, map.bytes);
}

std::string cell_chart(const Treemap& map, const MapCell& cell, bool names_group) {
  const auto share = [](double value) { return decimal(100 * value, 5) + "%"; };
  Labels labels(cell.area);
  if (names_group) labels.add(fitting(map.groups[cell.group].name, cell.area), " name");
  labels.add(fitting(cell.name.empty() ? "others" : cell.name, cell.area), "");
  if (!labels.text().empty()) labels.add(human_bytes(cell.bytes), " dim");
  const std::string colour = cell.group < map.groups.size() ? colour_class(cell.group) : "c8";
  return "<svg x=\"" + share(cell.area.x) + "\" y=\"" + share(cell.area.y) + "\" width=\"" +
         share(cell.area.width) + "\" height=\"" + share(cell.area.height) + "\" data-bytes=\"" +
         std::to_string(cell.bytes) + "\"><title>" + cell_title(map, cell) +
         "</title><rect class=\"" + colour + "\" width=\"100%\" height=\"100%\"/>" + labels.text() +
         "</svg>\n";
}

}  // namespace

std::string treemap_chart(const Treemap& map) {
  std::vector<bool> named(map.groups.size(), false);
  std::string out =
      "<svg class=\"treemap\" role=\"img\" aria-label=\"bytes by module\" "
      "width=\"100%\" height=\"" +
      decimal(kHeight, 0) + "\">\n";
  for (const MapCell& cell : map.cells) {
    // The largest cell of a group comes first. A cell that is a whole group already has the group's
    // name.
    const bool first = cell.group < named.size() && !named[cell.group];
    if (first) named[cell.group] = true;
    const bool whole = first && map.groups[cell.group].bytes == cell.bytes;
    out += cell_chart(map, cell, first && !whole);
  }
  return out + "</svg>\n";
}

}  // namespace dsckpt
