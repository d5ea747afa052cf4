#include "deepspeed/config_pickle.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "deepspeed/config_place.h"

namespace dsckpt {
using nlohmann::ordered_json;
using pickle::Kind;
using pickle::Value;
namespace {

// Pickles can share values, so a short one can be endless as JSON.
constexpr size_t kMaxValues = 1'000'000;

class ToJson {
 public:
  ordered_json convert(const Value& value, const ConfigPlace& place) {
    if (place.depth > kMaxConfigDepth)
      place.unsupported("is nested too deeply for a configuration");
    if (++values_ > kMaxValues) place.unsupported("there are too many values for a configuration");
    switch (value.kind()) {
      case Kind::none:
        return nullptr;
      case Kind::boolean:
        return value.as_bool();
      case Kind::integer:
        return value.as_int();
      case Kind::real:
        return value.as_real();
      case Kind::string:
        return std::string(value.as_string());
      case Kind::tuple:
      case Kind::list:
        return list(value, place);
      case Kind::dict:
        return object(value, place);
      case Kind::big_integer:
        place.unsupported("is an integer beyond 64 bits");
      default:
        // OrderedDict and its like.
        if (value.is_mapping()) return object(value, place);
        place.unsupported("is " + pickle::describe(value) + ", which JSON cannot hold");
    }
  }

 private:
  ordered_json list(const Value& value, const ConfigPlace& place) {
    ordered_json result = ordered_json::array();
    for (const Value& item : value.as_sequence()) {
      result.push_back(convert(item, place.at(result.size())));
    }
    return result;
  }

  ordered_json object(const Value& value, const ConfigPlace& place) {
    ordered_json result = ordered_json::object();
    auto& members = result.get_ref<ordered_json::object_t&>();
    KeyedSet<std::string> names;
    for (const auto& [key, item] : value.as_dict().items) {
      const std::string name = key_text(key, place);
      if (!names.insert(name).second) place.at(name).unsupported("two keys become this one");
      // emplace() would compare the name with all members.
      members.emplace_back(name, convert(item, place.at(name)));
    }
    return result;
  }

  static std::string key_text(const Value& key, const ConfigPlace& place) {
    switch (key.kind()) {
      case Kind::string:
        return std::string(key.as_string());
      case Kind::none:
        return "null";
      case Kind::boolean:
        return key.as_bool() ? "true" : "false";
      case Kind::integer:
        return std::to_string(key.as_int());
      case Kind::real:
        return python_repr(key.as_real());
      default:
        place.unsupported("has a key that is " + pickle::describe(key));
    }
  }

  size_t values_ = 0;
};

Value to_pickle(pickle::Document& document, const ordered_json& json, const ConfigPlace& place) {
  if (place.depth > kMaxConfigDepth) place.unsupported("is nested too deeply for a configuration");
  switch (json.type()) {
    case ordered_json::value_t::null:
      return pickle::Document::none();
    case ordered_json::value_t::boolean:
      return pickle::Document::boolean(json.get<bool>());
    case ordered_json::value_t::number_integer:
      return pickle::Document::integer(json.get<int64_t>());
    case ordered_json::value_t::number_unsigned: {
      const uint64_t number = json.get<uint64_t>();
      if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return pickle::Document::integer(static_cast<int64_t>(number));
      }
      std::string bytes;
      for (int shift = 0; shift < 64; shift += 8) {
        bytes.push_back(static_cast<char>(static_cast<unsigned char>(number >> shift)));
      }
      return document.big_integer(bytes + '\0');
    }
    case ordered_json::value_t::number_float:
      return pickle::Document::real(json.get<double>());
    case ordered_json::value_t::string:
      return document.string(json.get_ref<const std::string&>());
    case ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const ordered_json& item : json) {
        items.push_back(to_pickle(document, item, place.at(items.size())));
      }
      return document.list(std::move(items));
    }
    case ordered_json::value_t::object: {
      const Value dict = document.dict();
      for (const auto& [key, item] : json.get_ref<const ordered_json::object_t&>()) {
        document.set_item(dict, document.intern(key), to_pickle(document, item, place.at(key)));
      }
      return dict;
    }
    case ordered_json::value_t::binary:
    case ordered_json::value_t::discarded:
      break;
  }
  place.unsupported("is not a JSON value");
}

}  // namespace

ordered_json json_of(const Value& config) {
  return ToJson().convert(config, {});
}

Value pickle_of(pickle::Document& document, const ordered_json& config) {
  return to_pickle(document, config, {});
}

}  // namespace dsckpt
