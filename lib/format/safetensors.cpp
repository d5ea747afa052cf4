#include "format/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // tensor.rs MAX_HEADER_SIZE
constexpr std::string_view kMetadataKey = "__metadata__";

// tensor.rs writes tensors in this order: its Dtype enum backwards, so that the alignment falls.
constexpr std::array kWriteOrder = {
    DType::uint64,
    DType::int64,
    DType::float64,
    DType::complex64,
    DType::float32,
    DType::uint32,
    DType::int32,
    DType::bfloat16,
    DType::float16,
    DType::uint16,
    DType::int16,
    DType::float8_e5m2fnuz,
    DType::float8_e4m3fnuz,
    DType::float8_e8m0fnu,
    DType::float8_e4m3fn,
    DType::float8_e5m2,
    DType::int8,
    DType::uint8,
    DType::float4_e2m1fn_x2,
    DType::boolean,
};

size_t write_rank(DType dtype) {
  const auto found = std::find(kWriteOrder.begin(), kWriteOrder.end(), dtype);
  return static_cast<size_t>(found - kWriteOrder.begin());
}

// A tensor's entry in the header, still unchecked.
struct Described {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<Shape> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Takes the events of the header's JSON. It accepts nothing deeper than a tensor's two arrays, so
// nesting cannot grow. It sees every key, so no key can come twice.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(uint64_t base) : base_(base) {}

  std::vector<Described> tensors;
  std::map<std::string, std::string> metadata;

  bool null() override { return fail("null"); }
  bool boolean(bool) override { return fail("a boolean"); }
  bool number_integer(int64_t) override { return fail("a negative number"); }
  bool number_float(double, const std::string& text) override {
    return fail("the number " + text.substr(0, 40));
  }
  bool binary(nlohmann::json::binary_t&) override { return fail("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (state_ == State::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return fail("the size " + std::to_string(value));
      }
      if (tensors.back().shape->size() == kMaxDims) {
        return fail("a shape of more than " + counted(kMaxDims, "dimension"));
      }
      tensors.back().shape->push_back(static_cast<int64_t>(value));
    } else if (state_ == State::offsets && tensors.back().offsets->size() < 2) {
      tensors.back().offsets->push_back(value);
    } else {
      return fail("a number");
    }
    return true;
  }

  bool string(std::string& text) override {
    if (state_ == State::metadata && have_key_) {
      metadata.emplace(std::move(key_), std::move(text));
      have_key_ = false;
    } else if (state_ == State::dtype) {
      tensors.back().dtype = std::move(text);
      state_ = State::tensor;
    } else {
      return fail("a string");
    }
    return true;
  }

  bool start_object(size_t) override {
    if (state_ == State::start) {
      state_ = State::file;
    } else if (state_ == State::file && have_key_) {
      have_key_ = false;
      if (key_ == kMetadataKey) {
        state_ = State::metadata;
      } else {
        state_ = State::tensor;
        tensors.push_back({.name = key_, .dtype = {}, .shape = {}, .offsets = {}});
      }
    } else {
      return fail("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    switch (state_) {
      case State::file:
        if (!names_.insert(text).second) throw duplicate(text);
        key_ = std::move(text);
        have_key_ = true;
        return true;
      case State::metadata:
        if (metadata.contains(text)) throw duplicate(text);
        key_ = std::move(text);
        have_key_ = true;
        return true;
      case State::tensor: {
        Described& tensor = tensors.back();
        const bool again = (text == "dtype" && tensor.dtype) || (text == "shape" && tensor.shape) ||
                           (text == "data_offsets" && tensor.offsets);
        if (again) throw duplicate(text);
        if (text == "dtype") {
          state_ = State::dtype;
        } else if (text == "shape") {
          state_ = State::before_shape;
        } else if (text == "data_offsets") {
          state_ = State::before_offsets;
        } else {
          throw UnsupportedError({.tensor = tensor.name},
                                 "a safetensors header with the field \"" + text + "\"");
        }
        return true;
      }
      default:
        return fail("a key");
    }
  }

  bool end_object() override {
    state_ = state_ == State::file ? State::start : State::file;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::before_shape) {
      tensors.back().shape.emplace();
      state_ = State::shape;
    } else if (state_ == State::before_offsets) {
      tensors.back().offsets.emplace();
      state_ = State::offsets;
    } else {
      return fail("an array");
    }
    return true;
  }

  bool end_array() override {
    state_ = State::tensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    throw CorruptError({.offset = base_ + position}, "the header is not valid JSON");
  }

 private:
  enum class State : uint8_t {
    start,
    file,
    metadata,
    tensor,
    dtype,
    before_shape,
    shape,
    before_offsets,
    offsets
  };

  bool fail(const std::string& what) const {
    Where where;
    if (!tensors.empty() && state_ != State::file) where.tensor = tensors.back().name;
    throw CorruptError(where, what + " is out of place in the header");
  }
  static CorruptError duplicate(const std::string& key) {
    return {{}, "the header has the key \"" + key.substr(0, 200) + "\" twice"};
  }

  uint64_t base_;
  State state_ = State::start;
  std::string key_;
  bool have_key_ = false;
  KeyedSet<std::string> names_;
};

// Types of tensor.rs 0.8 that no tensor of torch has.
bool is_six_bits(std::string_view dtype) {
  return dtype == "F6_E2M3" || dtype == "F6_E3M2";
}

// The header counts elements of F4, but torch counts bytes of two elements each.
// safetensors/torch.py stretches the last dimension.
Shape shape_in_header(DType dtype, Shape shape) {
  if (dtype != DType::float4_e2m1fn_x2) return shape;
  if (shape.empty() || shape.back() > std::numeric_limits<int64_t>::max() / 2) {
    throw UnsupportedError({},
                           "safetensors cannot hold a float4_e2m1fn_x2 of shape " + to_text(shape));
  }
  shape.back() *= 2;
  return shape;
}

Shape shape_of_header(DType dtype, Shape shape) {
  if (dtype != DType::float4_e2m1fn_x2) return shape;
  if (shape.empty() || shape.back() % 2 != 0) {
    throw UnsupportedError({}, "F4 elements that do not fill bytes");
  }
  shape.back() /= 2;
  return shape;
}

SafetensorsEntry check_entry(Described&& tensor, FileId file, uint64_t data, uint64_t data_size) {
  return in_context({.tensor = tensor.name}, [&]() -> SafetensorsEntry {
    if (!tensor.dtype || !tensor.shape || !tensor.offsets || tensor.offsets->size() != 2) {
      throw CorruptError({}, "dtype, shape or data_offsets are missing in the header");
    }
    const std::optional<DType> dtype = dtype_from_safetensors_name(*tensor.dtype);
    if (!dtype && is_six_bits(*tensor.dtype)) {
      throw UnsupportedError({}, "elements of six bits (" + *tensor.dtype + ")");
    }
    if (!dtype) {
      throw CorruptError({}, "unknown dtype \"" + tensor.dtype->substr(0, 40) + "\"");
    }
    const uint64_t begin = tensor.offsets->front();
    const uint64_t end = tensor.offsets->back();
    if (begin > end || end > data_size) {
      throw CorruptError({}, "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
                                 ") do not lie in the " + counted(data_size, "byte") +
                                 " after the header");
    }
    Shape shape = shape_of_header(*dtype, std::move(*tensor.shape));
    const uint64_t needed = checked_mul(static_cast<uint64_t>(numel(shape)), size_of(*dtype));
    if (needed != end - begin) {
      throw CorruptError({}, "its shape needs " + counted(needed, "byte") +
                                 ", its data_offsets give " + std::to_string(end - begin));
    }
    return {std::move(tensor.name), *dtype, std::move(shape),
            Extent{file, data + begin, end - begin}};
  });
}

// Escapes exactly like serde_json.
std::string quoted(const std::string& text, const std::string& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw UnsupportedError({.file = path, .tensor = text},
                           "a name that is not UTF-8 cannot be written to safetensors");
  }
}

}  // namespace

bool SafetensorsFile::probe(const InputFile& file) {
  if (file.size() < 10) return false;
  const std::vector<std::byte> start = file.read(0, 9);
  const auto size = load_le<uint64_t>(start.data());
  return size >= 2 && size <= kMaxHeader && size <= file.size() - 8 && start[8] == std::byte{'{'};
}

SafetensorsFile SafetensorsFile::open(const InputFiles& files, FileId id) {
  const InputFile& file = files[id];
  return in_context({.file = file.display()}, [&] {
    if (file.size() < 8) {
      throw CorruptError({},
                         "not a safetensors file: only " + counted(file.size(), "byte") + " long");
    }
    const auto size = load_le<uint64_t>(file.read(0, 8).data());
    if (size > kMaxHeader) {
      throw CorruptError({.offset = 0},
                         "not a safetensors file: a header of " + counted(size, "byte"));
    }
    if (size > file.size() - 8) {
      throw CorruptError({.offset = 0}, "the header is said to be " + counted(size, "byte") +
                                            " long, but the file has only " +
                                            std::to_string(file.size() - 8) + " more");
    }
    const std::vector<std::byte> header = file.read(8, size);
    const std::string_view text = as_text(header);
    if (!text.starts_with('{')) {
      throw CorruptError({.offset = 8}, "not a safetensors file: the header does not start with {");
    }
    // nlohmann's lexer would stop at a NUL.
    if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
      throw CorruptError({.offset = 8 + nul}, "the header is not valid JSON");
    }
    HeaderHandler handler(8);
    nlohmann::json::sax_parse(text, &handler);

    SafetensorsFile result;
    result.metadata_ = std::move(handler.metadata);
    result.entries_.reserve(handler.tensors.size());
    const uint64_t data = 8 + size;
    for (Described& tensor : handler.tensors) {
      result.entries_.push_back(check_entry(std::move(tensor), id, data, file.size() - data));
    }
    std::stable_sort(result.entries_.begin(), result.entries_.end(),
                     [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                       return std::pair(a.extent.offset, a.extent.size) <
                              std::pair(b.extent.offset, b.extent.size);
                     });
    uint64_t next = data;
    for (const SafetensorsEntry& entry : result.entries_) {
      if (entry.extent.offset != next) {
        throw CorruptError({.tensor = entry.name, .offset = next},
                           entry.extent.offset > next ? "bytes that belong to no tensor"
                                                      : "bytes that belong to two tensors");
      }
      next = entry.extent.end();
    }
    if (next != file.size()) {
      throw CorruptError({.offset = next},
                         counted(file.size() - next, "byte") + " after the last tensor");
    }
    return result;
  });
}

TensorSource SafetensorsFile::tensor(const SafetensorsEntry& entry) const {
  return TensorSource::stored(entry.extent, entry.dtype, entry.shape);
}

OutputId lay_out_safetensors(PlanBuilder& plan, std::string path, std::vector<NamedSource> tensors,
                             const std::map<std::string, std::string>& metadata) {
  for (const NamedSource& tensor : tensors) {
    if (write_rank(tensor.source.dtype()) == kWriteOrder.size()) {
      throw UnsupportedError(
          {.file = path, .tensor = tensor.name},
          "safetensors cannot hold " + std::string(torch_name(tensor.source.dtype())));
    }
    if (tensor.name == kMetadataKey) {
      throw InconsistentError({.file = path, .tensor = tensor.name},
                              "safetensors reserves this name");
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const NamedSource& a, const NamedSource& b) {
    const size_t rank_a = write_rank(a.source.dtype());
    const size_t rank_b = write_rank(b.source.dtype());
    return rank_a != rank_b ? rank_a < rank_b : a.name < b.name;
  });
  KeyedSet<std::string_view> names;
  for (const NamedSource& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw InconsistentError({.file = path, .tensor = tensor.name}, "two tensors have this name");
    }
  }

  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (header.back() != '{') header += ',';
      header += quoted(key, path) + ":" + quoted(value, path);
    }
    header += '}';
  }
  uint64_t offset = 0;
  for (const NamedSource& tensor : tensors) {
    const uint64_t end = checked_add(offset, tensor.source.nbytes());
    if (header.size() > 1) header += ',';
    header += quoted(tensor.name, path) + ":{\"dtype\":\"" +
              std::string(safetensors_name(tensor.source.dtype())) + "\",\"shape\":[";
    const Shape shape = in_context({.file = path, .tensor = tensor.name}, [&] {
      return shape_in_header(tensor.source.dtype(), tensor.source.shape());
    });
    for (const int64_t size : shape) {
      if (header.back() != '[') header += ',';
      header += std::to_string(size);
    }
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  header += '}';
  header.resize(round_up(header.size(), 8), ' ');
  if (header.size() > kMaxHeader) {
    throw UnsupportedError({.file = path},
                           "a safetensors header of " + counted(header.size(), "byte"));
  }

  std::string start;
  append_le(start, static_cast<uint64_t>(header.size()));
  start += header;
  const uint64_t data = start.size();
  const OutputId out = plan.add_output(std::move(path), checked_add(data, offset));
  plan.put_literal(out, 0, start);
  uint64_t at = data;
  for (const NamedSource& tensor : tensors) {
    in_context({.tensor = tensor.name}, [&] { plan.put(out, at, tensor.source); });
    at += tensor.source.nbytes();
  }
  return out;
}

}  // namespace dsckpt
