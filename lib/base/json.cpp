#include "base/json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json_tree.h"

namespace dsckpt {

using nlohmann::json;

namespace {

class BoundedBuilder : public JsonTree<json> {
 public:
  bool key(string_t& name) override {
    member_ = &(*open_.back())[std::move(name)];
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  json take() { return std::move(root_); }

 private:
  json& place(json value) {
    json* at = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(nullptr);
      at = &open_.back()->back();
    } else if (!open_.empty()) {
      at = member_;
    }
    *at = std::move(value);
    return *at;
  }
  bool add(json value) override {
    place(std::move(value));
    return true;
  }
  bool open(json value) override {
    if (open_.size() == kMaxJsonDepth) return false;
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() override {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;  // each is in the one before, as its last value
  json* member_ = nullptr;   // of the innermost object
};

json parse(std::string_view text, json::input_format_t format) {
  BoundedBuilder builder;
  const bool is_whole = json::sax_parse(text, &builder, format);
  return is_whole ? builder.take() : json(json::value_t::discarded);
}

}  // namespace

json parse_json(std::string_view text) {
  return parse(text, json::input_format_t::json);
}

json parse_cbor(std::string_view bytes) {
  return parse(bytes, json::input_format_t::cbor);
}

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace dsckpt
