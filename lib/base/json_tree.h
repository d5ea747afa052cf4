// The values of a document, with their nesting, from nlohmann's parser events.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

namespace dsckpt {

// For sax_parse() of JSON and CBOR. Each function may return false, or throw, to stop the parser.
template <typename Json>
class JsonTree : public nlohmann::json_sax<Json> {
 public:
  using Sax = nlohmann::json_sax<Json>;
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Sax::number_float_t value, const typename Sax::string_t&) override {
    return add(value);
  }
  bool string(typename Sax::string_t& value) override { return add(std::move(value)); }
  bool binary(typename Sax::binary_t& value) override {
    return add(Json::binary(std::move(value)));
  }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

 protected:
  // A value that contains no others.
  virtual bool add(Json value) = 0;
  // An empty array or object. It contains the following values up to close().
  virtual bool open(Json value) = 0;
  virtual bool close() = 0;
};

}  // namespace dsckpt
