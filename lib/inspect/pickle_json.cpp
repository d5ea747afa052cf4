#include <array>
#include <cstdio>

#include "inspect/pickle_text.h"
#include "inspect/pickle_walk.h"

namespace dsckpt {
namespace {

using pickle::DictNode;
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

class JsonWriter {
 public:
  JsonWriter(std::ostream& out, const Value& root, const TorchArchive* archive, uint32_t depth)
      : out_(out), shared_(root), archive_(archive), depth_(depth) {}

  void write(const Value& value) {
    if (!is_container(value)) return write_leaf(value);
    if (level_ >= depth_) {
      out_ << "{\"$elided\":\"" << to_string(value.kind()) << "\"}";
      return;
    }
    const SharedContainers::Number number = shared_.meet(value);
    if (number.number != 0 && !number.is_first) {
      out_ << "{\"$ref\":" << number.number << "}";
      return;
    }
    if (number.number != 0) out_ << "{\"$shared\":" << number.number << ",\"value\":";
    ++level_;
    write_container(value);
    --level_;
    if (number.number != 0) out_ << "}";
  }

 private:
  void write_leaf(const Value& value) {
    switch (value.kind()) {
      case Kind::none:
        out_ << "null";
        return;
      case Kind::boolean:
        out_ << (value.as_bool() ? "true" : "false");
        return;
      case Kind::integer:
        out_ << value.as_int();
        return;
      case Kind::big_integer:
        out_ << "{\"$integer\":\"" << hex_integer(value.as_bytes()) << "\"}";
        return;
      case Kind::real: {
        const double real = value.as_real();
        const std::string text = shortest_real(real);
        if (std::isfinite(real)) {
          out_ << text;
        } else {
          out_ << "{\"$float\":\"" << text << "\"}";
        }
        return;
      }
      case Kind::string:
        return write_text(value.as_string());
      case Kind::bytes:
        out_ << "{\"$bytes\":\"" << hex(value.as_bytes()) << "\"}";
        return;
      case Kind::byte_array:
        out_ << "{\"$bytearray\":\"" << hex(value.as_bytes()) << "\"}";
        return;
      case Kind::global: {
        const auto [module, name] = value.as_global();
        out_ << "{\"$global\":[";
        write_text(module);
        out_ << ",";
        write_text(name);
        out_ << "]}";
        return;
      }
      default:
        out_ << "{\"$tuple\":[]}";
    }
  }

  // Writes UTF-8. JSON has lone surrogates only as escapes.
  void write_text(std::string_view text) {
    out_ << '"';
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if (byte == '"' || byte == '\\') {
        out_ << '\\' << text[i];
      } else if (byte < 0x20) {
        write_escape(byte);
      } else if (byte == 0xED && i + 2 < text.size() &&
                 static_cast<unsigned char>(text[i + 1]) >= 0xA0) {
        write_escape(0xD000U | (static_cast<unsigned char>(text[i + 1]) & 0x3FU) << 6 |
                     (static_cast<unsigned char>(text[i + 2]) & 0x3FU));
        i += 2;
      } else {
        out_ << text[i];
      }
    }
    out_ << '"';
  }

  void write_escape(unsigned code) {
    std::array<char, 8> escape{};
    std::snprintf(escape.data(), escape.size(), "\\u%04x", code);
    out_ << escape.data();
  }

  template <typename Items>
  void write_list(const Items& items) {
    out_ << "[";
    const char* comma = "";
    for (const Value& item : items) {
      out_ << comma;
      write(item);
      comma = ",";
    }
    out_ << "]";
  }

  void write_pairs(const DictNode& dict) {
    out_ << "[";
    const char* comma = "";
    for (const auto& [key, value] : dict.items) {
      out_ << comma << "[";
      write(key);
      out_ << ",";
      write(value);
      out_ << "]";
      comma = ",";
    }
    out_ << "]";
  }

  void write_dict(const DictNode& dict) {
    for (const auto& [key, value] : dict.items) {
      if (key.is(Kind::string) && !key.as_string().starts_with('$')) continue;
      out_ << "{\"$dict\":";
      write_pairs(dict);
      out_ << "}";
      return;
    }
    out_ << "{";
    const char* comma = "";
    for (const auto& [key, value] : dict.items) {
      out_ << comma;
      write_text(key.as_string());
      out_ << ":";
      write(value);
      comma = ",";
    }
    out_ << "}";
  }

  void write_numbers(const std::vector<int64_t>& numbers) {
    out_ << "[";
    for (size_t i = 0; i < numbers.size(); ++i) out_ << (i == 0 ? "" : ",") << numbers[i];
    out_ << "]";
  }

  void write_tensor(const TensorInfo& info) {
    out_ << "{\"$tensor\":{\"dtype\":\"" << torch_name(info.dtype) << "\",\"shape\":";
    write_numbers({info.shape.begin(), info.shape.end()});
    out_ << ",\"strides\":";
    write_numbers({info.strides.begin(), info.strides.end()});
    out_ << ",\"storage\":";
    write_text(info.storage_key);
    out_ << ",\"storage_offset\":" << info.storage_offset
         << ",\"requires_grad\":" << (info.requires_grad ? "true" : "false");
    if (!info.attributes.is_none()) {
      out_ << ",\"attributes\":";
      write(info.attributes);
    }
    out_ << "}}";
  }

  void write_object(const ObjectNode& object) {
    out_ << "{\"$object\":{\"made\":\"" << name_of(object.made) << "\",\"callable\":";
    write(object.callable);
    out_ << ",\"arguments\":";
    write(object.arguments);
    if (object.made == ObjectNode::Made::newobj_ex) {
      out_ << ",\"keywords\":";
      write(object.keywords);
    }
    if (object.has_state) {
      out_ << ",\"state\":";
      write(object.state);
    }
    if (!object.items.empty()) {
      out_ << ",\"items\":";
      write_list(object.items);
    }
    if (!object.mapping.items.empty()) {
      out_ << ",\"mapping\":";
      write_pairs(object.mapping);
    }
    out_ << "}}";
  }

  void write_container(const Value& value) {
    switch (value.kind()) {
      case Kind::list:
        return write_list(value.as_sequence());
      case Kind::dict:
        return write_dict(value.as_dict());
      case Kind::object:
        if (const auto info = tensor_of(archive_, value)) return write_tensor(*info);
        return write_object(value.as_object());
      case Kind::persistent:
        out_ << "{\"$persistent\":";
        write(value.persistent_id());
        break;
      default:
        out_ << (value.is(Kind::tuple) ? "{\"$tuple\":"
                 : value.is(Kind::set) ? "{\"$set\":"
                                       : "{\"$frozenset\":");
        write_list(value.as_sequence());
    }
    out_ << "}";
  }

  std::ostream& out_;
  SharedContainers shared_;
  const TorchArchive* archive_;
  uint32_t depth_;
  uint32_t level_ = 0;
};

}  // namespace

void write_pickle_json(std::ostream& out, const Value& value, const TorchArchive* archive,
                       const PickleTextOptions& options) {
  JsonWriter(out, value, archive, options.depth).write(value);
}

}  // namespace dsckpt
