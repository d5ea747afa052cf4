#include "inspect/pickle_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "dsckpt/error.h"
#include "inspect/pickle_walk.h"

namespace dsckpt {
namespace {

using pickle::DictNode;
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

constexpr size_t kShownBytes = 200;
// Plain values on one line.
constexpr size_t kMaxInline = 12;

std::string escaped(unsigned code, const char* form) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), form, code);
  return text.data();
}

// Python's repr() of a str, or with `raw` of bytes.
std::string quoted(std::string_view text, bool raw) {
  std::string out = "'";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\\' || byte == '\'') {
      out += {'\\', text[i]};
    } else if (byte == '\n' || byte == '\r' || byte == '\t') {
      out += byte == '\n' ? "\\n" : byte == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7F || (raw && byte >= 0x80)) {
      out += escaped(byte, "\\x%02x");
    } else if (!raw && byte == 0xED && i + 2 < text.size() &&
               static_cast<unsigned char>(text[i + 1]) >= 0xA0) {
      out += escaped(0xD000U | (static_cast<unsigned char>(text[i + 1]) & 0x3FU) << 6 |
                         (static_cast<unsigned char>(text[i + 2]) & 0x3FU),
                     "\\u%04x");
      i += 2;
    } else if (!raw && byte == 0xC2 && i + 1 < text.size() &&
               static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      // Terminals interpret C1 control characters.
      out += escaped(static_cast<unsigned char>(text[++i]), "\\x%02x");
    } else {
      out += text[i];
    }
  }
  return out + "'";
}

std::string listed(const std::vector<int64_t>& numbers) {
  std::string out = "[";
  for (const int64_t number : numbers) {
    out += (out.size() == 1 ? "" : ", ") + std::to_string(number);
  }
  return out + "]";
}

// Escapes control characters of a name, without quotes.
std::string plain(std::string_view name) {
  const std::string text = quoted(name, false);
  return text.substr(1, text.size() - 2);
}

bool is_contiguous(const TensorInfo& info) {
  if (numel(info.shape) <= 1) return true;
  int64_t expected = 1;
  for (size_t i = info.shape.size(); i-- > 0;) {
    if (info.shape[i] != 1 && info.strides[i] != expected) return false;
    expected *= info.shape[i];
  }
  return true;
}

class TextWriter {
 public:
  TextWriter(std::ostream& out, const Value& root, const TorchArchive* archive,
             const PickleTextOptions& options)
      : out_(out), shared_(root), archive_(archive), options_(options) {}

  void write(const Value& value) {
    if (!is_container(value)) {
      out_ << leaf(value);
      return;
    }
    if (level_ >= options_.depth) {
      out_ << "<" << to_string(value.kind()) << " ...>";
      return;
    }
    const SharedContainers::Number number = shared_.meet(value);
    if (number.number != 0) out_ << (number.is_first ? "&" : "*") << number.number;
    if (number.number != 0 && !number.is_first) return;
    if (number.number != 0) out_ << " ";
    ++level_;
    write_container(value);
    --level_;
  }

 private:
  std::string shortened(std::string_view text, bool raw) const {
    if (options_.full || text.size() <= kShownBytes) return quoted(text, raw);
    size_t end = kShownBytes;
    while (!raw && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    return quoted(text.substr(0, end), raw) + "... (" + counted(text.size(), "byte") + ")";
  }

  std::string leaf(const Value& value) const {
    switch (value.kind()) {
      case Kind::none:
        return "None";
      case Kind::boolean:
        return value.as_bool() ? "True" : "False";
      case Kind::integer:
        return std::to_string(value.as_int());
      case Kind::big_integer:
        return hex_integer(value.as_bytes());
      case Kind::real:
        return shortest_real(value.as_real());
      case Kind::string:
        return shortened(value.as_string(), false);
      case Kind::bytes:
        return "b" + shortened(value.as_bytes(), true);
      case Kind::byte_array:
        return "bytearray(b" + shortened(value.as_bytes(), true) + ")";
      case Kind::global: {
        const auto [module, name] = value.as_global();
        return plain(module) + "." + plain(name);
      }
      default:
        return "()";
    }
  }

  void new_line() { out_ << "\n" << std::string(2 * static_cast<size_t>(indent_), ' '); }

  static bool fits_a_line(std::span<const Value> items) {
    return items.size() <= kMaxInline && std::none_of(items.begin(), items.end(), is_container);
  }

  void write_items(const char* open, std::span<const Value> items, const char* close) {
    const bool is_inline = fits_a_line(items);
    out_ << open;
    ++indent_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!is_inline) new_line();
      write(items[i]);
      if (!is_inline || i + 1 < items.size()) out_ << (is_inline ? ", " : ",");
    }
    --indent_;
    if (!is_inline) new_line();
    out_ << close;
  }

  void write_dict(const DictNode& dict) {
    out_ << "{";
    ++indent_;
    for (const auto& [key, value] : dict.items) {
      new_line();
      write(key);
      out_ << ": ";
      write(value);
      out_ << ",";
    }
    --indent_;
    if (!dict.items.empty()) new_line();
    out_ << "}";
  }

  void write_tensor(const TensorInfo& info) {
    out_ << "tensor(" << torch_name(info.dtype) << ", "
         << listed({info.shape.begin(), info.shape.end()}) << ", storage "
         << plain(info.storage_key) << " + " << info.storage_offset;
    if (!is_contiguous(info)) {
      out_ << ", strides " << listed({info.strides.begin(), info.strides.end()});
    }
    if (info.requires_grad) out_ << ", requires_grad";
    out_ << ")";
    if (!info.attributes.is_none()) {
      out_ << " with state ";
      write(info.attributes);
    }
  }

  // Writes the arguments of a call. Shared arguments are written as one value.
  void write_arguments(const Value& arguments) {
    if (!arguments.is(Kind::tuple) || shared_.is_shared(arguments)) {
      out_ << "(*";
      write(arguments);
      out_ << ")";
    } else {
      write_items("(", arguments.as_sequence(), ")");
    }
  }

  void write_object(const ObjectNode& object) {
    if (object.made == ObjectNode::Made::newobj || object.made == ObjectNode::Made::newobj_ex) {
      out_ << "new ";
    }
    write(object.callable);
    write_arguments(object.arguments);
    if (object.made == ObjectNode::Made::newobj_ex) {
      out_ << " with keywords ";
      write(object.keywords);
    }
    if (object.has_state) {
      out_ << " with state ";
      write(object.state);
    }
    if (!object.items.empty()) write_items(" with items [", object.items, "]");
    if (!object.mapping.items.empty()) {
      out_ << " with ";
      write_dict(object.mapping);
    }
  }

  void write_container(const Value& value) {
    switch (value.kind()) {
      case Kind::dict:
        return write_dict(value.as_dict());
      case Kind::object:
        if (const auto info = tensor_of(archive_, value)) return write_tensor(*info);
        return write_object(value.as_object());
      case Kind::persistent:
        out_ << "persistent(";
        write(value.persistent_id());
        out_ << ")";
        return;
      case Kind::tuple:
        return write_items("(", value.as_sequence(), value.as_sequence().size() == 1 ? ",)" : ")");
      case Kind::set:
        return write_items("set([", value.as_sequence(), "])");
      case Kind::frozen_set:
        return write_items("frozenset([", value.as_sequence(), "])");
      default:
        return write_items("[", value.as_sequence(), "]");
    }
  }

  std::ostream& out_;
  SharedContainers shared_;
  const TorchArchive* archive_;
  PickleTextOptions options_;
  uint32_t level_ = 0;
  uint32_t indent_ = 0;
};

// Returns the rest of `path` after `key`, or nullopt if it does not begin with `key`.
std::optional<std::string_view> behind(std::string_view path, std::string_view key) {
  if (!path.starts_with(key)) return std::nullopt;
  if (path.size() == key.size()) return std::string_view();
  if (path[key.size()] != '.') return std::nullopt;
  return path.substr(key.size() + 1);
}

struct Step {
  size_t key_size;
  Value value;
};

std::vector<Step> steps_in(const DictNode& dict, std::string_view path) {
  std::vector<Step> steps;
  for (const auto& [key, value] : dict.items) {
    std::string text;
    if (key.is(Kind::string)) {
      text = key.as_string();
    } else if (key.is(Kind::integer)) {
      text = std::to_string(key.as_int());
    } else {
      continue;
    }
    if (behind(path, text)) steps.push_back({text.size(), value});
  }
  return steps;
}

std::vector<Step> steps_from(const Value& value, std::string_view path) {
  std::vector<Step> steps;
  if (value.is(Kind::dict)) {
    steps = steps_in(value.as_dict(), path);
  } else if (value.is(Kind::object)) {
    const ObjectNode& object = value.as_object();
    steps = steps_in(object.mapping, path);
    if (object.state.is(Kind::dict)) {
      const std::vector<Step> more = steps_in(object.state.as_dict(), path);
      steps.insert(steps.end(), more.begin(), more.end());
    }
  } else if (value.is(Kind::tuple) || value.is(Kind::list)) {
    const auto items = value.as_sequence();
    const std::string_view digits = path.substr(0, path.find('.'));
    for (size_t i = 0; i < items.size(); ++i) {
      if (std::to_string(i) == digits) steps.push_back({digits.size(), items[i]});
    }
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.key_size > b.key_size; });
  return steps;
}

std::optional<Value> find(const Value& value, std::string_view path, bool is_end) {
  if (is_end) return value;
  for (const Step& step : steps_from(value, path)) {
    const bool ends = step.key_size == path.size();
    const auto found =
        find(step.value, ends ? std::string_view() : path.substr(step.key_size + 1), ends);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace

void write_pickle_text(std::ostream& out, const Value& value, const TorchArchive* archive,
                       const PickleTextOptions& options) {
  TextWriter(out, value, archive, options).write(value);
}

Value value_at(const Value& root, std::string_view path) {
  constexpr size_t kMaxPath = 4096;
  if (path.size() > kMaxPath) throw UsageError("a path of more than 4096 bytes");
  const std::optional<Value> found = find(root, path, path.empty());
  if (!found) throw UsageError("there is no '" + std::string(path) + "' in the pickle");
  return *found;
}

}  // namespace dsckpt
