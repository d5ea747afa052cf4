#include "inspect/dcp_items.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "dsckpt/error.h"
#include "pickle/pickle.h"

namespace dsckpt {
namespace {

using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystem = "torch.distributed.checkpoint.filesystem";

// The attributes of an object made as pickle makes those of plain classes: nothing else can have
// given it any.
Value attributes_of(const Value& value, std::string_view module, std::string_view name) {
  const bool is_it = value.is(Kind::object) && value.as_object().is_a(module, name);
  if (is_it) {
    const ObjectNode& object = value.as_object();
    if (object.made == ObjectNode::Made::newobj && object.arguments.as_sequence().empty() &&
        object.has_state && object.state.is(Kind::dict) && object.items.empty() &&
        object.mapping.items.empty()) {
      return object.state;
    }
  }
  throw CorruptError(
      {}, describe(value) + " where torch.distributed.checkpoint has its " + std::string(name));
}

uint64_t unsigned_of(const Value& attributes, std::string_view key) {
  const Value value = attributes.at(key);
  if (!value.is(Kind::integer) || value.as_int() < 0) {
    throw CorruptError({}, "'" + std::string(key) + "' of a value is no size");
  }
  return static_cast<uint64_t>(value.as_int());
}

std::string file_of(const Value& info) {
  const Value transforms = info.find_or_none("transform_descriptors");
  if (!transforms.is_none() && (!transforms.is(Kind::list) || !transforms.as_sequence().empty())) {
    throw UnsupportedError({}, "values are compressed or encrypted");
  }
  return std::string(info.at("relative_path").as_string());
}

std::vector<DcpFile> items_of(const Value& root) {
  const Value storage_data = attributes_of(root, kMetadata, "Metadata").at("storage_data");
  if (!storage_data.is(Kind::dict)) throw CorruptError({}, "'storage_data' is no dict");
  std::map<std::string, std::vector<DcpItem>> files;
  for (const auto& [key, value] : storage_data.as_dict().items) {
    const Value index = attributes_of(key, kMetadata, "MetadataIndex");
    const Value info = attributes_of(value, kFilesystem, "_StorageInfo");
    files[file_of(info)].push_back({.name = std::string(index.at("fqn").as_string()),
                                    .offset = unsigned_of(info, "offset"),
                                    .size = unsigned_of(info, "length")});
  }
  std::vector<DcpFile> result;
  for (auto& [name, items] : files) {
    result.push_back({name, {}});
    merge_items(result.back().items, std::move(items));
  }
  return result;
}

}  // namespace

bool is_dcp_metadata(std::string_view filename) {
  constexpr std::string_view kName = ".metadata";
  if (!filename.ends_with(kName)) return false;
  filename.remove_suffix(kName.size());
  if (filename.empty()) return true;
  // "__RANK.metadata", of one rank.
  return filename.size() > 2 && filename.starts_with("__") &&
         filename.find_first_not_of("0123456789", 2) == std::string_view::npos;
}

std::vector<DcpFile> dcp_items(const InputFile& metadata) {
  return in_context({.file = metadata.display()}, [&] {
    const std::vector<std::byte> bytes = metadata.read(0, metadata.size());
    return items_of(pickle::Document::parse(bytes).root());
  });
}

void merge_items(std::vector<DcpItem>& items, std::vector<DcpItem> more) {
  const auto range = [](const DcpItem& item) { return std::tuple(item.offset, item.size); };
  items.insert(items.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  std::stable_sort(items.begin(), items.end(),
                   [&](const DcpItem& a, const DcpItem& b) { return range(a) < range(b); });
  items.erase(std::unique(items.begin(), items.end(),
                          [&](const DcpItem& a, const DcpItem& b) { return range(a) == range(b); }),
              items.end());
}

}  // namespace dsckpt
