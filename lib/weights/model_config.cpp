#include "weights/model_config.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json.h"

namespace dsckpt {
namespace {

using Json = nlohmann::json;

std::optional<DType> torch_dtype_of(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (torch_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// An iterator over a text that publishes its position.
class CountedChars {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountedChars(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountedChars& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  CountedChars operator++(int) {
    const CountedChars before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountedChars& other) const { return at_ == other.at_; }
  bool operator!=(const CountedChars& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// A type in a configuration.
struct NamedType {
  size_t begin;      // after its key
  size_t end;        // after its closing quotation mark
  std::string text;  // as written in the file
  size_t depth;      // 1: in the configuration itself
};

// The positions of the types in a configuration and its parts. Nothing else is kept, since lines of
// numbers can have any size.
class TypesInConfig : public nlohmann::json_sax<Json> {
 public:
  TypesInConfig(const char* begin, const char* const* reached) : begin_(begin), reached_(reached) {}

  std::vector<NamedType> types;
  // Where configurations of text models begin, and the positions of the values that ModelChanges
  // change.
  std::vector<size_t> text_models;
  struct Value {
    std::string key;
    size_t begin;
    size_t end;
    size_t model;  // index of text_models
    int64_t number;
  };
  std::vector<Value> values;

  bool null() override { return true; }
  bool boolean(bool value) override { return add_value("tie_word_embeddings", value ? 1 : 0); }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    return add_value("vocab_size", static_cast<int64_t>(value));
  }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(size_t /*elements*/) override {
    const bool is_part = key_.ends_with("_config") && key_ != "quantization_config";
    const bool is_text_model = parts_.empty() || (parts_.size() == 1 && key_ == "text_config");
    parts_.push_back(parts_.empty() || (parts_.back() && is_part));
    if (is_text_model) text_models.push_back(here());
    models_.push_back(is_text_model);
    key_.clear();
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(size_t /*elements*/) override {
    parts_.push_back(false);
    models_.push_back(false);
    return true;
  }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    key_ = name;
    key_end_ = here();
    return true;
  }
  bool string(string_t& value) override {
    const bool is_type =
        !parts_.empty() && parts_.back() && (key_ == "dtype" || key_ == "torch_dtype");
    if (is_type && torch_dtype_of(value)) {
      types.push_back({key_end_, here(), value, parts_.size()});
    }
    return true;
  }
  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  size_t here() const { return static_cast<size_t>(*reached_ - begin_); }

  bool add_value(std::string_view key, int64_t number) {
    if (models_.empty() || !models_.back() || key_ != key) return true;
    values.push_back({std::string(key), key_end_, here(), text_models.size() - 1, number});
    return true;
  }

  bool leave() {
    parts_.pop_back();
    models_.pop_back();
    key_.clear();
    return true;
  }

  const char* begin_;
  const char* const* reached_;
  std::vector<bool> parts_;   // of each open object or array: is it a configuration
  std::vector<bool> models_;  // of each: is it a text model's
  std::string key_;
  size_t key_end_ = 0;
};

// Calls take(found) with the types and values of a configuration. Returns false unless `text` is
// JSON.
template <typename F>
bool look_into(std::string_view text, F&& take) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* reached = begin;
  TypesInConfig found(begin, &reached);
  if (!Json::sax_parse(CountedChars(begin, &reached), CountedChars(end, &reached), &found)) {
    return false;
  }
  take(found);
  return true;
}

std::vector<NamedType> types_in(std::string_view text) {
  std::vector<NamedType> types;
  look_into(text, [&](TypesInConfig& found) { types = std::move(found.types); });
  return types;
}

}  // namespace

bool names_model(std::string_view text) {
  const Json config = parse_json(text);
  return config.is_object() && (config.contains("model_type") || config.contains("architectures"));
}

std::string architecture_in_config(std::string_view text) {
  const std::string unknown(kAnyArchitecture);
  const Json config = parse_json(text);
  if (!config.is_object()) return unknown;
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || found->empty()) return unknown;
  const auto* const name = found->front().get_ptr<const std::string*>();
  const auto is_of_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name == nullptr || name->empty() || !std::all_of(name->begin(), name->end(), is_of_word)) {
    return unknown;
  }
  return *name;
}

std::optional<DType> dtype_in_config(std::string_view text) {
  const NamedType* first = nullptr;
  const std::vector<NamedType> types = types_in(text);
  for (const NamedType& type : types) {
    if (first == nullptr || type.depth < first->depth) first = &type;
  }
  return first == nullptr ? std::nullopt : torch_dtype_of(first->text);
}

std::string config_with_dtype(std::string_view text, DType dtype) {
  std::string changed;
  size_t done = 0;
  for (const NamedType& type : types_in(text)) {
    const std::string quoted = '"' + type.text + '"';
    const size_t at = text.substr(type.begin, type.end - type.begin).rfind(quoted);
    if (at == std::string_view::npos) continue;  // its name is written with escapes
    const size_t name = type.begin + at + 1;
    changed += text.substr(done, name - done);
    changed += torch_name(dtype);
    done = name + type.text.size();
  }
  changed += text.substr(done);
  return changed;
}

std::optional<std::string> config_with_changes(std::string_view text, const ModelChanges& changes) {
  // Replaces the characters from `begin` to `end` by `text`.
  struct Edit {
    size_t begin;
    size_t end;
    std::string text;
  };
  std::vector<Edit> edits;
  bool good = true;
  const bool is_json = look_into(text, [&](const TypesInConfig& found) {
    std::vector<bool> says_tie(found.text_models.size());
    bool grew = !changes.vocabulary;
    for (const TypesInConfig::Value& value : found.values) {
      if (value.key == "tie_word_embeddings") {
        says_tie[value.model] = true;
        if (!changes.untied || value.number == 0) continue;
        const size_t at = text.substr(0, value.end).rfind("true");
        edits.push_back({at, at + 4, "false"});
      } else if (changes.vocabulary && value.number == changes.vocabulary->before) {
        const std::string digits = std::to_string(value.number);
        const size_t at = text.substr(0, value.end).rfind(digits);
        edits.push_back({at, at + digits.size(), std::to_string(changes.vocabulary->after)});
        grew = true;
      }
    }
    for (size_t i = 0; changes.untied && i < found.text_models.size(); ++i) {
      // Most models are tied without this key.
      const size_t begin = found.text_models[i];
      const size_t next = text.find_first_not_of(" \t\r\n", begin);
      const std::string comma = text[next] == '}' ? "" : ",";
      if (!says_tie[i]) {
        edits.push_back({begin, begin, "\n  \"tie_word_embeddings\": false" + comma});
      }
    }
    good = grew && !found.text_models.empty();
  });
  if (!is_json || !good) return std::nullopt;
  std::sort(edits.begin(), edits.end(),
            [](const Edit& a, const Edit& b) { return a.begin < b.begin; });
  std::string changed;
  size_t done = 0;
  for (const Edit& edit : edits) {
    changed += text.substr(done, edit.begin - done);
    changed += edit.text;
    done = edit.end;
  }
  changed += text.substr(done);
  return changed;
}

}  // namespace dsckpt
