#include <algorithm>
#include <string_view>
#include <utility>

#include "base/dtype_names.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "format/dcp_objects.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {
namespace {

using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

constexpr std::string_view kPropertiesClass = "TensorProperties";
constexpr std::string_view kTensorClass = "TensorStorageMetadata";
constexpr std::string_view kBytesClass = "BytesStorageMetadata";
constexpr std::string_view kChunkClass = "ChunkStorageMetadata";

// torch below 2.2 has the class here.
constexpr std::string_view kOldProperties = "torch.distributed._shard.sharded_tensor.metadata";
// dtype, layout, requires_grad, memory format and pin_memory. Since torch 2.15 also the strides of
// the saved tensor, which do not affect its bytes in the file.
constexpr size_t kFewestProperties = 5;
constexpr size_t kMostProperties = 6;

const pickle::DictNode& dict_in(const Value& attributes, std::string_view key) {
  const Value value = attributes.at(key);
  if (!value.is(Kind::dict)) throw CorruptError({}, "'" + std::string(key) + "' is not a dict");
  return value.as_dict();
}

// TensorProperties.__getstate__
std::span<const Value> properties_of(const Value& value) {
  if (value.is(Kind::object)) {
    const ObjectNode& object = value.as_object();
    const bool is_it = object.is_a(dcp::kMetadata, kPropertiesClass) ||
                       object.is_a(kOldProperties, kPropertiesClass);
    if (is_it && object.made == ObjectNode::Made::newobj && object.has_state &&
        object.state.sequence_or_empty().size() >= kFewestProperties) {
      return object.state.as_sequence();
    }
  }
  throw CorruptError({},
                     describe(value) + " where torch.distributed.checkpoint has TensorProperties");
}

DType dtype_of(const Value& value) {
  if (!value.is(Kind::global))
    throw CorruptError({}, describe(value) + " where a dtype was expected");
  const auto [module, name] = value.as_global();
  const auto dtype = module == "torch" ? dtype_from_torch_name(name) : std::nullopt;
  if (dtype) return *dtype;
  throw UnsupportedError({}, "is of type " + std::string(module) + "." + std::string(name));
}

// torch.serialization._get_layout("torch.strided")
void check_strided(const Value& value) {
  if (value.is(Kind::object)) {
    const ObjectNode& object = value.as_object();
    const auto arguments = object.arguments.sequence_or_empty();
    if (object.is_a("torch.serialization", "_get_layout") && arguments.size() == 1 &&
        arguments[0].is(Kind::string)) {
      const std::string layout(arguments[0].as_string());
      if (layout == "torch.strided") return;
      throw UnsupportedError({}, "has the layout " + layout);
    }
  }
  throw CorruptError({}, describe(value) + " where a layout was expected");
}

// Accepts None, or a number for each dimension.
void check_strides(const Value& value, const Shape& shape) {
  if (value.is_none()) return;
  const auto strides = value.sequence_or_empty();
  const bool are_numbers = std::all_of(strides.begin(), strides.end(),
                                       [](const Value& each) { return each.is(Kind::integer); });
  if (value.is(Kind::tuple) && are_numbers && strides.size() == shape.size()) return;
  throw CorruptError(
      {}, describe(value) + " where strides of shape " + to_text(shape) + " were expected");
}

DcpChunk chunk_of(const Value& value, const Shape& shape) {
  const Value attributes = dcp::attributes_of(value, dcp::kMetadata, kChunkClass);
  DcpChunk chunk{.offsets = shape_from_pickle(attributes.at("offsets")),
                 .sizes = shape_from_pickle(attributes.at("sizes"))};
  if (chunk.offsets.size() == shape.size() && chunk.sizes.size() == shape.size()) return chunk;
  throw CorruptError({}, "a chunk at " + to_text(chunk.offsets) + " of sizes " +
                             to_text(chunk.sizes) + " in a tensor of shape " + to_text(shape));
}

DcpTensor tensor_of(const Value& value) {
  const Value attributes = dcp::attributes_of(value, dcp::kMetadata, kTensorClass);
  DcpTensor tensor{.shape = shape_from_pickle(attributes.at("size"))};
  numel(tensor.shape);
  const auto chunks = attributes.at("chunks").as_sequence();
  tensor.chunks.reserve(chunks.size());
  for (const Value& chunk : chunks) tensor.chunks.push_back(chunk_of(chunk, tensor.shape));
  return tensor;
}

// Completes the result of tensor_of(value). Throws UnsupportedError.
void read_properties(const Value& value, DcpTensor& tensor) {
  const Value attributes = dcp::attributes_of(value, dcp::kMetadata, kTensorClass);
  const auto properties = properties_of(attributes.at("properties"));
  tensor.requires_grad = properties[2].is_true();
  if (properties.size() > kMostProperties) {
    dcp::refuse_members(kPropertiesClass, properties.size(), kMostProperties);
  }
  tensor.dtype = dtype_of(properties[0]);
  check_strided(properties[1]);
  if (properties.size() > kFewestProperties) check_strides(properties[5], tensor.shape);
  dcp::refuse_unknown(attributes, kTensorClass, {"properties", "size", "chunks"});
  for (const Value& chunk : attributes.at("chunks").as_sequence()) {
    dcp::refuse_unknown(dcp::attributes_of(chunk, dcp::kMetadata, kChunkClass), kChunkClass,
                        {"offsets", "sizes"});
  }
}

// Returns the name of a class in torch.distributed.checkpoint.metadata, or "" for anything else.
std::string_view class_of(const Value& value) {
  if (!value.is(Kind::object)) return "";
  const ObjectNode& object = value.as_object();
  if (object.made != ObjectNode::Made::newobj || !object.callable.is(Kind::global)) return "";
  const auto [module, name] = object.callable.as_global();
  return module == dcp::kMetadata ? name : "";
}

// The place of a chunk, or of a value that is not a tensor.
struct PlacedChunk {
  Shape offsets;
  DcpPlace place;
};

bool is_same(const DcpPlace& a, const DcpPlace& b) {
  return a.file == b.file && a.offset == b.offset && a.size == b.size;
}

class MetadataReader {
 public:
  DcpMetadata read(const Value& root) {
    const Value attributes = dcp::attributes_of(root, dcp::kMetadata, "Metadata");
    // Megatron-Core adds `all_local_plans`, by which a next save is planned as this one was.
    dcp::refuse_unknown(attributes, "Metadata",
                        {"state_dict_metadata", "planner_data", "storage_data", "storage_meta",
                         "version", "all_local_plans"});
    for (const auto& [key, value] : dict_in(attributes, "state_dict_metadata").items) {
      read_value(std::string(key.as_string()), value);
    }
    read_places(dict_in(attributes, "storage_data"));
    // Other planners may save anything here.
    const Value paths = attributes.find_or_none("planner_data");
    if (paths.is(Kind::dict)) {
      read_paths(paths.as_dict());
      sort_by(paths.as_dict());
    }
    return std::move(metadata_);
  }

 private:
  void read_value(std::string name, const Value& value) {
    DcpValue& made = metadata_.values.emplace_back(DcpValue{.name = std::move(name)});
    in_context({.tensor = made.name}, [&] {
      const std::string_view name_of_class = class_of(value);
      if (name_of_class == kBytesClass) {
        if (!value.as_object().has_state) return;
        supports(made, [&] { dcp::refuse_unknown(value.as_object().state, kBytesClass, {}); });
      } else if (name_of_class.empty() || name_of_class == kTensorClass) {
        made.tensor = tensor_of(value);
        supports(made, [&] { read_properties(value, *made.tensor); });
      } else {
        made.tensor.emplace();
        made.unsupported =
            "written by a newer torch: a value of its class " + std::string(name_of_class);
      }
    });
  }

  // Calls `look`, and keeps the reason in the value if it throws UnsupportedError.
  template <typename Look>
  static void supports(DcpValue& value, const Look& look) {
    try {
      look();
    } catch (const UnsupportedError& error) {
      if (value.unsupported.empty()) value.unsupported = error.message();
    }
  }

  void read_places(const pickle::DictNode& storage_data) {
    KeyedMap<std::string_view, size_t> numbers;
    for (size_t i = 0; i < metadata_.values.size(); ++i) {
      numbers.emplace(metadata_.values[i].name, i);
    }
    std::vector<std::vector<PlacedChunk>> placed(metadata_.values.size());
    for (const auto& [key, info] : storage_data.items) {
      const Value index = dcp::attributes_of(key, dcp::kMetadata, "MetadataIndex");
      const std::string_view name = index.at("fqn").as_string();
      const auto number = numbers.find(name);
      if (number == numbers.end()) {
        throw CorruptError({.tensor = std::string(name)},
                           "has a place in the files, but is not among the values");
      }
      in_context({.tensor = std::string(name)}, [&, &the_info = info] {
        supports(metadata_.values[number->second], [&] {
          dcp::refuse_unknown(index, "MetadataIndex", {"fqn", "offset", "index"});
          dcp::check_form(the_info);
        });
        const Value offset = index.find_or_none("offset");
        placed[number->second].push_back(
            {offset.is_none() ? Shape() : shape_from_pickle(offset), dcp::place_of(the_info)});
      });
    }
    for (size_t i = 0; i < placed.size(); ++i) {
      DcpValue& value = metadata_.values[i];
      in_context({.tensor = value.name}, [&] { put(value, std::move(placed[i])); });
    }
  }

  static void put(DcpValue& value, std::vector<PlacedChunk> placed) {
    std::sort(placed.begin(), placed.end(),
              [](const PlacedChunk& a, const PlacedChunk& b) { return a.offsets < b.offsets; });
    for (size_t i = 1; i < placed.size(); ++i) {
      if (placed[i].offsets != placed[i - 1].offsets ||
          is_same(placed[i].place, placed[i - 1].place)) {
        continue;
      }
      throw CorruptError(
          {}, "has two places for the chunk that begins at " + to_text(placed[i].offsets));
    }
    if (!value.tensor) {
      if (placed.empty()) throw CorruptError({}, "has no place in the files");
      if (!placed.back().offsets.empty()) {
        throw CorruptError({}, "is not a tensor, but has a place for a chunk that begins at " +
                                   to_text(placed.back().offsets));
      }
      value.pickle = std::move(placed.front().place);
      return;
    }
    std::vector<bool> used(placed.size());
    for (DcpChunk& chunk : value.tensor->chunks) {
      const auto found = std::lower_bound(
          placed.begin(), placed.end(), chunk.offsets,
          [](const PlacedChunk& a, const Shape& offsets) { return a.offsets < offsets; });
      if (found != placed.end() && found->offsets == chunk.offsets) {
        chunk.place = found->place;
        used[static_cast<size_t>(found - placed.begin())] = true;
      } else if (numel(chunk.sizes) != 0) {
        throw CorruptError({}, "the chunk at " + to_text(chunk.offsets) + " of sizes " +
                                   to_text(chunk.sizes) + " has no place in the files");
      }
    }
    for (size_t i = 0; i < placed.size(); ++i) {
      // A duplicate of a place that was used is no error.
      const bool again = i > 0 && placed[i].offsets == placed[i - 1].offsets;
      if (used[i] || again || !value.unsupported.empty()) continue;
      throw CorruptError(
          {}, "has a place for a chunk at " + to_text(placed[i].offsets) + ", but no such chunk");
    }
  }

  void read_paths(const pickle::DictNode& paths) {
    for (DcpValue& value : metadata_.values) {
      const Value* path = paths.find(value.name);
      if (path == nullptr || (!path->is(Kind::tuple) && !path->is(Kind::list))) continue;
      for (const Value& step : path->sequence_or_empty()) {
        if (step.is(Kind::string)) {
          value.path.emplace_back(std::string(step.as_string()));
        } else {
          value.path.emplace_back(step.as_int());
        }
      }
      const std::string name = dcp_key(value.path);
      if (name == value.name) continue;
      throw CorruptError({.tensor = value.name}, "has the path '" + name + "' in 'planner_data'");
    }
  }

  // `state_dict_metadata` lists rank 0's values before those of other ranks, so the order of
  // `planner_data` is taken.
  void sort_by(const pickle::DictNode& paths) {
    KeyedMap<std::string_view, size_t> places;
    for (const auto& [key, path] : paths.items) {
      if (key.is(Kind::string)) places.emplace(key.as_string(), places.size());
    }
    const auto place = [&](const DcpValue& value) {
      const auto found = places.find(value.name);
      return found == places.end() ? places.size() : found->second;
    };
    std::stable_sort(metadata_.values.begin(), metadata_.values.end(),
                     [&](const DcpValue& a, const DcpValue& b) { return place(a) < place(b); });
  }

  DcpMetadata metadata_;
};

}  // namespace

std::string dcp_key(std::span<const DcpStep> path) {
  std::string key;
  for (size_t i = 0; i < path.size(); ++i) {
    if (i > 0) key += '.';
    const auto* name = std::get_if<std::string>(&path[i]);
    key += name != nullptr ? *name : std::to_string(std::get<int64_t>(path[i]));
  }
  return key;
}

void collect_unsupported(const DcpMetadata& metadata,
                         std::map<std::string, std::vector<std::string>>& names) {
  for (const DcpValue& value : metadata.values) {
    if (!value.unsupported.empty()) names[value.unsupported].push_back(value.name);
  }
}

std::string unsupported_text(const std::string& why, const std::vector<std::string>& names) {
  return counted(names.size(), "value") + (names.size() == 1 ? " is" : " are") + " left out, " +
         why + ": " + some_of(names);
}

std::optional<std::filesystem::path> dcp_file_path(const std::filesystem::path& folder,
                                                   const std::string& file) {
  const std::filesystem::path relative = std::filesystem::path(file).lexically_normal();
  const bool leads_out = relative.empty() || relative.is_absolute() || *relative.begin() == ".." ||
                         file.find('\0') != file.npos;
  return leads_out ? std::nullopt : std::optional(folder / relative);
}

DcpMetadata read_dcp_metadata(const InputFile& file) {
  return in_context({.file = file.display()}, [&] {
    const std::vector<std::byte> bytes = file.read(0, file.size());
    return MetadataReader().read(pickle::Document::parse(bytes).root());
  });
}

}  // namespace dsckpt
