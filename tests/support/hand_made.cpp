#include "support/hand_made.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>

#include "base/kernels.h"
#include "base/widen.h"
#include "format/read_tensor.h"
#include "format/safetensors.h"
#include "format/torch_archive.h"
#include "support/plan_runner.h"

namespace dsckpt::test {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
using pickle::Document;
using pickle::ObjectNode;
using pickle::Value;
namespace {

constexpr int64_t kNumbers = 4096;
// bfloat16 has no more consecutive integers.
constexpr int64_t kNumbersOfBfloat16 = 257;

int64_t count_of(DType dtype) {
  return dtype == DType::bfloat16 ? kNumbersOfBfloat16 : kNumbers;
}

std::string numbers(DType dtype) {
  const auto count = static_cast<size_t>(count_of(dtype));
  std::string bytes(count * size_of(dtype), '\0');
  if (dtype == DType::int64) {
    std::string whole;
    for (uint64_t i = 0; i < count; ++i) append_le(whole, i);
    return whole;
  }
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  convert(DType::float32, dtype, std::as_bytes(std::span(values)).data(),
          std::as_writable_bytes(std::span(bytes)).data(), count);
  return bytes;
}

// The elements of "values" in `dtype`.
std::string bytes_of(const ordered_json& json, DType dtype) {
  const DType part = real_part(dtype);
  std::string bytes;
  for (const ordered_json& item : json) {
    const double value = item.is_string() ? std::stod(item.get<std::string>()) : item.get<double>();
    if (part == DType::float64) {
      append_le(bytes, std::bit_cast<uint64_t>(value));
      continue;
    }
    const auto narrow = static_cast<float>(value);
    std::string one(size_of(part), '\0');
    convert(DType::float32, part, std::as_bytes(std::span(&narrow, 1)).data(),
            std::as_writable_bytes(std::span(one)).data(), 1);
    bytes += one;
  }
  return bytes;
}

// Writes bytes to a file, from which the elements of tensors are copied.
using Store = std::function<FileId(const std::string& bytes)>;

TensorSource elements_of(const ordered_json& json, const std::map<DType, FileId>& numbers_of,
                         const Store& store) {
  const auto count = numel(json["tensor"].get<Shape>());
  const DType dtype = dtype_from_torch_name(json.value("dtype", std::string("float32"))).value();
  const uint64_t width = size_of(dtype);
  const auto size = static_cast<uint64_t>(count) * width;
  if (json.contains("values")) {
    const std::string bytes = bytes_of(json["values"], dtype);
    if (bytes.size() != size) throw std::out_of_range("values of a tensor");
    return TensorSource::stored({store(bytes), 0, size}, dtype, {count});
  }
  const int64_t first = json.value("first", int64_t{0});
  if (first + count > count_of(dtype)) throw std::out_of_range("numbers of a tensor");
  return TensorSource::stored({numbers_of.at(dtype), static_cast<uint64_t>(first) * width, size},
                              dtype, {count});
}

class Builder {
 public:
  Builder(const std::map<DType, FileId>& numbers_of, const Store& store)
      : numbers_of_(numbers_of), store_(store) {}

  Value build(const ordered_json& json) {
    Document& document = writer.document();
    switch (json.type()) {
      case ordered_json::value_t::null:
        return Document::none();
      case ordered_json::value_t::boolean:
        return Document::boolean(json.get<bool>());
      case ordered_json::value_t::number_integer:
      case ordered_json::value_t::number_unsigned:
        return Document::integer(json.get<int64_t>());
      case ordered_json::value_t::number_float:
        return Document::real(json.get<double>());
      case ordered_json::value_t::string:
        return document.string(json.get<std::string>());
      case ordered_json::value_t::array: {
        const Value list = document.list();
        for (const ordered_json& item : json) document.append(list, build(item));
        return list;
      }
      default:
        break;
    }
    if (json.contains("tensor")) return tensor(json);
    if (json.contains("object")) return object(json["object"]);
    return dict(json);
  }

  TorchArchiveWriter writer;

 private:
  Value dict(const ordered_json& json) {
    Document& document = writer.document();
    const Value dict = document.dict();
    for (const auto& [key, item] : json.items()) {
      const bool is_number = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
        return c >= '0' && c <= '9';
      });
      document.set_item(dict, is_number ? Document::integer(std::stoll(key)) : document.string(key),
                        build(item));
    }
    return dict;
  }

  Value object(const ordered_json& attributes) {
    Document& document = writer.document();
    const Value made = document.object(ObjectNode::Made::newobj,
                                       document.global("hand.made", "Thing"), document.tuple({}));
    document.set_state(made, dict(attributes));
    return made;
  }

  Value tensor(const ordered_json& json) {
    const Shape shape = json["tensor"].get<Shape>();
    const std::string shared = json.value("storage", std::string());
    const auto known = shared_.find(shared);
    const bool is_new = shared.empty() || known == shared_.end();
    const auto storage =
        is_new ? writer.storage(elements_of(json, numbers_of_, store_)) : known->second;
    if (!shared.empty()) shared_.emplace(shared, storage);
    const Value plain = writer.tensor(storage, shape, 0, {}, json.value("requires_grad", false));
    if (!json.contains("attributes")) return plain;
    Document& document = writer.document();
    return document.object(
        ObjectNode::Made::reduce, document.global("torch._tensor", "_rebuild_from_type_v2"),
        document.tuple({plain.as_object().callable, document.global("torch", "Tensor"),
                        plain.as_object().arguments, dict(json["attributes"])}));
  }

  const std::map<DType, FileId>& numbers_of_;
  const Store& store_;
  std::map<std::string, TorchArchiveWriter::StorageId> shared_;
};

}  // namespace

HandMade::HandMade() {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::int64}) {
    numbers_of_[dtype] =
        inputs_.add(numbers_.write(std::string(torch_name(dtype)), numbers(dtype)));
  }
}

fs::path HandMade::write(const std::string& name, const std::string& json) {
  const Store store = [this](const std::string& bytes) { return keep(bytes); };
  Builder builder(numbers_of_, store);
  builder.writer.document().set_root(builder.build(ordered_json::parse(json)));
  PlanBuilder plan;
  const fs::path path = folder() / name;
  fs::create_directories(path.parent_path());
  std::move(builder.writer).lay_out(plan, path.filename().string());
  run_plan_to(plan.finish(), inputs_, path.parent_path());
  return path;
}

fs::path HandMade::write_safetensors(const std::string& name, const std::string& json) {
  const Store store = [this](const std::string& bytes) { return keep(bytes); };
  const ordered_json parsed = ordered_json::parse(json);
  std::vector<NamedSource> tensors;
  for (const auto& [key, item] : parsed.items()) {
    tensors.push_back(
        {key, elements_of(item, numbers_of_, store).view(item["tensor"].get<Shape>())});
  }
  PlanBuilder plan;
  lay_out_safetensors(plan, name, std::move(tensors), {});
  run_plan_to(plan.finish(), inputs_, folder());
  return folder() / name;
}

FileId HandMade::keep(const std::string& bytes) {
  return inputs_.add(numbers_.write("values" + std::to_string(kept_++), bytes));
}

std::vector<float> floats_of(const InputFiles& inputs, const TensorSource& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype() != DType::float32) throw std::invalid_argument("floats_of() wants float32");
  read_elements(inputs, tensor, 0, tensor.numel(), std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace dsckpt::test
