#include "deepspeed/ds_config.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/json_tree.h"
#include "base/keyed_hash.h"
#include "deepspeed/config_place.h"
#include "dsckpt/error.h"
#include "io/text_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
namespace {

// Builds the value of a text, and refuses repeated keys and too much depth. nlohmann's own builder
// does neither, and it looks at all members of an object for each new one.
class Builder : public JsonTree<ordered_json> {
 public:
  bool key(string_t& name) override {
    Level& level = levels_.back();
    if (!level.names.insert(name).second) {
      std::string path;
      for (const Level& outer : std::span(levels_).first(levels_.size() - 1)) {
        path += outer.value.is_array() ? "[" + std::to_string(outer.value.size()) + "]"
                                       : (path.empty() ? "" : ".") + outer.key;
      }
      if (!path.empty()) path += ".";
      throw UsageError("the key " + path + name + " appears twice");
    }
    level.key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    error_position_ = position;
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..."
    const std::string_view what = error.what();
    const size_t colon = what.find(": ");
    error_ = colon == what.npos ? what : what.substr(colon + 2);
    return false;
  }

  ordered_json take() { return std::move(root_); }
  size_t error_position() const { return error_position_; }
  const std::string& error() const { return error_; }

 private:
  struct Level {
    ordered_json value;
    std::string key = {};  // the next member's
    KeyedSet<std::string> names = {};
  };

  bool add(ordered_json value) override {
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      level.value.get_ref<ordered_json::object_t&>().emplace_back(level.key, std::move(value));
    }
    return true;
  }

  bool open(ordered_json value) override {
    if (levels_.size() >= kMaxConfigDepth)
      throw UsageError("is nested too deeply for a configuration");
    levels_.push_back({std::move(value)});
    return true;
  }

  bool close() override {
    ordered_json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  std::vector<Level> levels_;
  ordered_json root_;
  size_t error_position_ = 0;
  std::string error_;
};

std::string line_and_column(std::string_view text, size_t position) {
  const std::string_view before = text.substr(0, position == 0 ? 0 : position - 1);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return "line " + std::to_string(lines + 1) + ", column " +
         std::to_string(before.size() - line_start + 1);
}

void check_writable(const ordered_json& json, const ConfigPlace& place) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) {
    place.unsupported("is " + python_repr(json.get<double>()) + ", which JSON cannot hold");
  }
  if (json.is_array()) {
    for (size_t i = 0; i < json.size(); ++i) check_writable(json[i], place.at(i));
  } else if (json.is_object()) {
    for (const auto& [key, item] : json.get_ref<const ordered_json::object_t&>()) {
      check_writable(item, place.at(key));
    }
  } else if (json.is_string()) {
    try {
      static_cast<void>(json.dump());
    } catch (const ordered_json::exception&) {
      place.unsupported("is not UTF-8, so JSON cannot hold it");
    }
  }
}

}  // namespace

bool is_auto(const ordered_json& value) {
  return value.is_string() && value.get_ref<const std::string&>() == "auto";
}

ordered_json load_ds_config(const fs::path& path) {
  const std::string text = read_text(path, "a configuration");
  const Where where{.file = path.string()};
  return in_context(where, [&] {
    Builder builder;
    if (!ordered_json::sax_parse(text, &builder, ordered_json::input_format_t::json, true, true)) {
      UsageError error(line_and_column(text, builder.error_position()) + ": " + builder.error());
      if (path.extension() != ".yaml" && path.extension() != ".yml") throw error;
      throw std::move(error).with_hint(
          "a configuration of DeepSpeed is JSON; Accelerate's YAML names its file as "
          "deepspeed_config_file");
    }
    ordered_json config = builder.take();
    if (!config.is_object()) throw UsageError("is not an object of JSON");
    return config;
  });
}

std::string ds_config_text(const ordered_json& config) {
  ordered_json written = config;
  if (written.is_object()) {
    const auto steps = written.find("steps_per_print");
    if (steps != written.end() && steps->is_number_float() && std::isinf(steps->get<double>())) {
      *steps = nullptr;
    }
  }
  check_writable(written, {});
  return in_context({.member = "ds_config"}, [&] {
    try {
      return written.dump(2) + "\n";
    } catch (const ordered_json::exception&) {
      throw UnsupportedError({}, "has a key that is not UTF-8, so JSON cannot hold it");
    }
  });
}

ordered_json with_autos_from(ordered_json config, const ordered_json& source) {
  if (!config.is_object() || !source.is_object()) return config;
  // A lookup in an object compares all its members.
  KeyedMap<std::string_view, const ordered_json*> members;
  for (const auto& [key, value] : source.get_ref<const ordered_json::object_t&>()) {
    members.emplace(key, &value);
  }
  for (auto& [key, value] : config.get_ref<ordered_json::object_t&>()) {
    const auto from = members.find(key);
    if (from == members.end()) continue;
    if (is_auto(value)) {
      value = *from->second;
    } else if (value.is_object()) {
      value = with_autos_from(std::move(value), *from->second);
    }
  }
  return config;
}

}  // namespace dsckpt
