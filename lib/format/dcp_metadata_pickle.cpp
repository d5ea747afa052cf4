#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/dtype_names.h"
#include "base/keyed_hash.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "format/dcp_objects.h"
#include "pickle/opcodes.h"

namespace dsckpt {
namespace {

// New dicts take their items in batches, so that the stack of a reader stays small.
constexpr size_t kItemsAtOnce = 1000;

struct ShapeHash {
  size_t operator()(const Shape& shape) const {
    return keyed_hash(as_text(std::as_bytes(std::span(shape))));
  }
};

// Writes the opcodes of protocol 4. A value that may be used again gets a memo number (MEMOIZE).
class MetadataPickle {
  using Opcode = pickle::Opcode;
  using enum pickle::Opcode;

 public:
  std::string write(const DcpMetadata& metadata) {
    find_shared_places(metadata);
    op(kProto);
    out_.push_back(4);
    object(dcp::kMetadata, "Metadata");
    // This comes first so that the names in its many items get small numbers.
    string("storage_data");
    storage_data(metadata);
    string("state_dict_metadata");
    state_dict_metadata(metadata);
    string("planner_data");
    planner_data(metadata);
    string("storage_meta");
    op(kNone);
    string("version");
    string("1.0.0");
    built();
    op(kStop);
    return std::move(out_);
  }

 private:
  using Number = uint32_t;
  using PlaceKey = std::pair<std::string_view, uint64_t>;

  void op(Opcode opcode) { out_.push_back(static_cast<char>(opcode)); }

  Number memoize() {
    op(kMemoize);
    return next_++;
  }

  void get(Number number) {
    if (number <= UINT8_MAX) {
      op(kBinGet);
      append_le(out_, static_cast<uint8_t>(number));
    } else {
      op(kLongBinGet);
      append_le(out_, number);
    }
  }

  void string(std::string_view text) {
    if (const auto known = strings_.find(text); known != strings_.end()) return get(known->second);
    if (text.size() <= UINT8_MAX) {
      op(kShortBinUnicode);
      append_le(out_, static_cast<uint8_t>(text.size()));
    } else {
      if (text.size() > UINT32_MAX) throw UnsupportedError({}, "a text over 4 GiB in a pickle");
      op(kBinUnicode);
      append_le(out_, static_cast<uint32_t>(text.size()));
    }
    out_ += text;
    strings_.emplace(text, memoize());
  }

  void integer(uint64_t value) {
    if (value <= UINT8_MAX) {
      op(kBinInt1);
      append_le(out_, static_cast<uint8_t>(value));
    } else if (value <= UINT16_MAX) {
      op(kBinInt2);
      append_le(out_, static_cast<uint16_t>(value));
    } else if (value <= INT32_MAX) {
      op(kBinInt);
      append_le(out_, static_cast<int32_t>(value));
    } else {
      std::string bytes;
      append_le(bytes, value);
      bytes.push_back('\0');  // the highest bit is the sign (two's complement)
      while (bytes[bytes.size() - 1] == '\0' && static_cast<int8_t>(bytes[bytes.size() - 2]) >= 0) {
        bytes.pop_back();
      }
      op(kLong1);
      append_le(out_, static_cast<uint8_t>(bytes.size()));
      out_ += bytes;
    }
  }

  void global(std::string_view module, std::string_view name) {
    const std::pair<std::string_view, std::string_view> key(module, name);
    if (const auto known = globals_.find(key); known != globals_.end()) return get(known->second);
    string(module);
    string(name);
    op(kStackGlobal);
    globals_.emplace(key, memoize());
  }

  // An object without state. The items between object() and built() become its attributes.
  void object(std::string_view module, std::string_view name) {
    bare_object(module, name);
    op(kEmptyDict);
    op(kMark);
  }
  void built() {
    op(kSetItems);
    op(kBuild);
  }
  void bare_object(std::string_view module, std::string_view name) {
    global(module, name);
    op(kEmptyTuple);
    op(kNewObj);
  }

  // The two calls enclose the items of a tuple.
  void open_tuple(size_t size) {
    if (size > 3) op(kMark);
  }
  void close_tuple(size_t size) {
    op(size == 0 ? kEmptyTuple : size > 3 ? kTuple : static_cast<Opcode>(kTuple1 + size - 1));
  }

  void torch_size(const Shape& shape) {
    if (const auto known = shapes_.find(shape); known != shapes_.end()) return get(known->second);
    global("torch", "Size");
    open_tuple(shape.size());
    for (const int64_t size : shape) integer(static_cast<uint64_t>(size));
    close_tuple(shape.size());
    op(kTuple1);
    op(kReduce);
    shapes_.emplace(shape, memoize());
  }

  // The items of a dict. They are counted for the ends of the batches.
  class Items {
   public:
    explicit Items(MetadataPickle& pickle) : pickle_(pickle) { pickle_.op(kEmptyDict); }
    void next() {
      if (count_ % kItemsAtOnce == 0) {
        end();
        pickle_.op(kMark);
      }
      ++count_;
    }
    void end() {
      if (count_ > 0) pickle_.op(kSetItems);
    }

   private:
    MetadataPickle& pickle_;
    size_t count_ = 0;
  };

  void find_shared_places(const DcpMetadata& metadata) {
    std::vector<PlaceKey> places;
    for (const DcpValue& value : metadata.values) {
      if (!value.tensor) {
        places.emplace_back(value.pickle.file, value.pickle.offset);
        continue;
      }
      for (const DcpChunk& chunk : value.tensor->chunks) {
        places.emplace_back(chunk.place.file, chunk.place.offset);
      }
    }
    std::sort(places.begin(), places.end());
    for (auto at = std::adjacent_find(places.begin(), places.end()); at != places.end();
         at = std::adjacent_find(at + 1, places.end())) {
      shared_places_.emplace(*at, std::nullopt);
    }
  }

  void place(const DcpPlace& place) {
    const auto shared = shared_places_.find({place.file, place.offset});
    const bool is_shared = shared != shared_places_.end();
    if (is_shared && shared->second) return get(*shared->second);
    object(dcp::kFilesystem, "_StorageInfo");
    string("relative_path");
    string(place.file);
    string("offset");
    integer(place.offset);
    string("length");
    integer(place.size);
    built();
    if (is_shared) shared->second = memoize();
  }

  // Readers hash the object by its attributes, so they are set before it becomes a key.
  void index(std::string_view name, const DcpChunk* chunk, size_t number) {
    object(dcp::kMetadata, "MetadataIndex");
    string("fqn");
    string(name);
    string("index");
    if (chunk == nullptr) {
      op(kNone);
    } else {
      integer(number);
      string("offset");
      torch_size(chunk->offsets);
    }
    built();
  }

  void storage_data(const DcpMetadata& metadata) {
    Items items(*this);
    for (const DcpValue& value : metadata.values) {
      if (!value.tensor) {
        items.next();
        index(value.name, nullptr, 0);
        place(value.pickle);
        continue;
      }
      const std::vector<DcpChunk>& chunks = value.tensor->chunks;
      for (size_t i = 0; i < chunks.size(); ++i) {
        items.next();
        index(value.name, &chunks[i], i);
        place(chunks[i].place);
      }
    }
    items.end();
  }

  void state_dict_metadata(const DcpMetadata& metadata) {
    Items items(*this);
    for (const DcpValue& value : metadata.values) {
      items.next();
      string(value.name);
      if (value.tensor) {
        tensor(*value.tensor);
      } else if (bytes_) {
        get(*bytes_);
      } else {
        bare_object(dcp::kMetadata, "BytesStorageMetadata");
        bytes_ = memoize();
      }
    }
    items.end();
  }

  void tensor(const DcpTensor& tensor) {
    object(dcp::kMetadata, "TensorStorageMetadata");
    string("properties");
    properties(tensor.dtype, tensor.requires_grad);
    string("size");
    torch_size(tensor.shape);
    string("chunks");
    chunks(tensor.chunks);
    built();
  }

  void properties(DType dtype, bool requires_grad) {
    const auto [known, is_new] = properties_.try_emplace({dtype, requires_grad}, next_);
    if (!is_new) return get(known->second);
    bare_object(dcp::kMetadata, "TensorProperties");
    op(kMark);
    global("torch", torch_name(dtype));
    global("torch.serialization", "_get_layout");
    string("torch.strided");
    op(kTuple1);
    op(kReduce);
    op(requires_grad ? kNewTrue : kNewFalse);
    global(dcp::kMetadata, "_MEM_FORMAT_ENCODING");
    integer(0);  // TORCH_CONTIGUOUS_FORMAT
    op(kTuple1);
    op(kReduce);
    op(kNewFalse);  // pin_memory
    op(kTuple);
    op(kBuild);
    known->second = memoize();
  }

  // Tensors with equal cuts share one list, since loaders do not change it.
  void chunks(const std::vector<DcpChunk>& chunks) {
    Shape cut;
    for (const DcpChunk& chunk : chunks) {
      cut.insert(cut.end(), chunk.offsets.begin(), chunk.offsets.end());
      cut.insert(cut.end(), chunk.sizes.begin(), chunk.sizes.end());
    }
    // The count shows where the offsets and sizes of boxes end.
    cut.push_back(static_cast<int64_t>(chunks.size()));
    if (const auto known = cuts_.find(cut); known != cuts_.end()) return get(known->second);
    op(kEmptyList);
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i % kItemsAtOnce == 0) op(kMark);
      object(dcp::kMetadata, "ChunkStorageMetadata");
      string("offsets");
      torch_size(chunks[i].offsets);
      string("sizes");
      torch_size(chunks[i].sizes);
      built();
      if (i + 1 == chunks.size() || (i + 1) % kItemsAtOnce == 0) op(kAppends);
    }
    cuts_.emplace(std::move(cut), memoize());
  }

  void planner_data(const DcpMetadata& metadata) {
    Items items(*this);
    for (const DcpValue& value : metadata.values) {
      if (value.path.empty()) continue;
      items.next();
      string(value.name);
      open_tuple(value.path.size());
      for (const DcpStep& step : value.path) {
        if (const auto* key = std::get_if<std::string>(&step)) {
          string(*key);
        } else {
          integer(static_cast<uint64_t>(std::get<int64_t>(step)));
        }
      }
      close_tuple(value.path.size());
    }
    items.end();
  }

  std::string out_;
  Number next_ = 0;
  // The keys are views into the metadata.
  KeyedMap<std::string_view, Number> strings_;
  std::map<std::pair<std::string_view, std::string_view>, Number> globals_;
  std::unordered_map<Shape, Number, ShapeHash> shapes_;
  std::unordered_map<Shape, Number, ShapeHash> cuts_;
  std::map<std::pair<DType, bool>, Number> properties_;
  std::optional<Number> bytes_;
  // Places that several values have, with their memo numbers once they are written.
  std::map<PlaceKey, std::optional<Number>> shared_places_;
};

}  // namespace

std::string dcp_metadata_pickle(const DcpMetadata& metadata) {
  return MetadataPickle().write(metadata);
}

}  // namespace dsckpt
