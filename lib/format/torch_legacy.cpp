#include "format/torch_legacy.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/dtype_names.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "format/torch_form.h"
#include "io/file_source.h"
#include "pickle/trace.h"

namespace dsckpt {
namespace {

using namespace std::literals;

constexpr int64_t kProtocolVersion = 1001;

// A pickle does not store its length, and storages of any size follow it.
pickle::Document read_pickle(const InputFile& file, uint64_t& offset) {
  const pickle::Limits limits;
  const ByteSource rest = source_of(file).from(offset);
  const uint64_t size = pickle::length(rest.part(0, limits.max_bytes), offset);
  pickle::Document document = pickle::Document::parse(rest.read(0, size), offset);
  offset += size;
  return document;
}

DType storage_dtype(const pickle::Value& storage_class) {
  const auto [module, name] = storage_class.as_global();
  const bool from_torch = module == "torch" || module.starts_with("torch.");
  if (from_torch && (name == "UntypedStorage" || name == "_UntypedStorage")) return DType::uint8;
  const std::optional<DType> dtype = dtype_from_storage_class(name);
  if (!from_torch || !dtype) {
    throw UnsupportedError({},
                           "a storage of class " + std::string(module) + "." + std::string(name));
  }
  return *dtype;
}

uint64_t non_negative(const pickle::Value& value, const char* what) {
  const int64_t number = value.as_int();
  if (number < 0) throw CorruptError({}, std::string(what) + " is " + std::to_string(number));
  return static_cast<uint64_t>(number);
}

// torch's keys are short numbers, and each tensor has a copy of its key.
constexpr size_t kMaxStorageKey = 1000;

}  // namespace

std::optional<std::string> storage_key(const pickle::Value& persistent) {
  const auto id = persistent.persistent_id().sequence_or_empty();
  if (id.size() < 3 || !id[2].is(pickle::Kind::string)) return std::nullopt;
  if (id[2].as_string().size() > kMaxStorageKey) return std::nullopt;
  return std::string(id[2].as_string());
}

StorageId StorageId::parse(const pickle::Value& id) {
  const auto fields = id.as_sequence();
  if ((fields.size() != 5 && fields.size() != 6) || fields[0].as_string() != "storage") {
    throw CorruptError({}, "a persistent id that is not a storage");
  }
  if (const size_t size = fields[2].as_string().size(); size > kMaxStorageKey) {
    throw CorruptError({}, "a storage whose key has " + counted(size, "byte"));
  }
  StorageId storage;
  storage.key = fields[2].as_string();
  return in_context({.member = "storage " + storage.key}, [&] {
    storage.dtype = storage_dtype(fields[1]);
    const uint64_t item = size_of(storage.dtype);
    const uint64_t count = non_negative(fields[4], "its number of elements");
    storage.numel = static_cast<int64_t>(count);
    storage.nbytes = checked_mul(count, item);
    storage.view_end = storage.nbytes;
    if (fields.size() == 6 && !fields[5].is_none()) {
      const auto view = fields[5].as_sequence();
      if (view.size() != 3) throw CorruptError({}, "a view of a storage with other than 3 fields");
      storage.view_begin = checked_mul(non_negative(view[1], "a view's offset"), item);
      storage.view_end = checked_add(storage.view_begin,
                                     checked_mul(non_negative(view[2], "a view's length"), item));
      if (storage.view_end > storage.nbytes) {
        throw CorruptError({}, "a view that ends at byte " + std::to_string(storage.view_end) +
                                   " of " + std::to_string(storage.nbytes));
      }
    }
    return std::move(storage);
  });
}

namespace {

bool may_hold_others(const pickle::Value& value) {
  using pickle::Kind;
  switch (value.kind()) {
    case Kind::persistent:
    case Kind::tuple:
    case Kind::list:
    case Kind::set:
    case Kind::frozen_set:
    case Kind::dict:
    case Kind::object:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::vector<pickle::Value> persistent_values(const pickle::Value& root, const ValueSet& without,
                                             std::unordered_map<const void*, size_t>* references) {
  using pickle::Kind;
  using pickle::Value;
  std::vector<Value> found;
  std::unordered_set<const void*> seen;
  std::vector<Value> open;
  if (may_hold_others(root)) open.push_back(root);
  std::vector<Value> children;
  const auto add_items = [&](const pickle::DictNode& dict) {
    for (const auto& [key, value] : dict.items) {
      children.push_back(key);
      children.push_back(value);
    }
  };
  while (!open.empty()) {
    const Value value = open.back();
    open.pop_back();
    if (references != nullptr && (value.is(Kind::persistent) || value.is(Kind::tuple))) {
      ++(*references)[value.identity()];
    }
    if (without.contains(value.identity()) || !seen.insert(value.identity()).second) continue;
    children.clear();
    if (value.is(Kind::persistent)) {
      found.push_back(value);
    } else if (value.is(Kind::dict)) {
      add_items(value.as_dict());
    } else if (value.is(Kind::object)) {
      const pickle::ObjectNode& object = value.as_object();
      children = {object.callable, object.arguments, object.keywords};
      children.insert(children.end(), object.items.begin(), object.items.end());
      add_items(object.mapping);
      children.push_back(object.state);
    } else {
      const auto items = value.as_sequence();
      children.assign(items.begin(), items.end());
    }
    std::copy_if(children.rbegin(), children.rend(), std::back_inserter(open), may_hold_others);
  }
  return found;
}

TorchLegacy TorchLegacy::read(const InputFile& file, FileId id) {
  TorchLegacy legacy;
  uint64_t offset = 0;
  in_context({.member = "magic number"}, [&] {
    const pickle::Document magic = read_pickle(file, offset);
    if (!magic.root().is(pickle::Kind::big_integer) || magic.root().as_bytes() != kTorchMagic) {
      throw CorruptError({.offset = 0}, "not torch's number");
    }
  });
  in_context({.member = "protocol version"}, [&] {
    const pickle::Document version = read_pickle(file, offset);
    if (version.root().as_int() != kProtocolVersion) {
      throw UnsupportedError({}, std::to_string(version.root().as_int()) + ", not " +
                                     std::to_string(kProtocolVersion));
    }
  });
  in_context({.member = "system info"}, [&] {
    const pickle::Document system = read_pickle(file, offset);
    if (!system.root().at("little_endian").as_bool()) {
      throw UnsupportedError({}, "written on a big-endian machine");
    }
  });
  in_context({.member = "object"}, [&] { legacy.document = read_pickle(file, offset); });

  KeyedMap<std::string, StorageId> known;
  for (const pickle::Value& value : persistent_values(legacy.document.root())) {
    StorageId storage = StorageId::parse(value.persistent_id());
    const auto [found, fresh] = known.try_emplace(storage.key, storage);
    if (!fresh && found->second.nbytes != storage.nbytes) {
      throw CorruptError({.member = "storage " + storage.key},
                         "two sizes: " + std::to_string(found->second.nbytes) + " and " +
                             counted(storage.nbytes, "byte"));
    }
  }

  const pickle::Document keys =
      in_context({.member = "storage keys"}, [&] { return read_pickle(file, offset); });
  const auto key_values =
      in_context({.member = "storage keys"}, [&] { return keys.root().as_sequence(); });
  for (const pickle::Value& value : key_values) {
    const std::string key(
        in_context({.member = "storage keys"}, [&] { return value.as_string(); }));
    in_context({.member = "storage " + key, .offset = offset}, [&] {
      const auto found = known.find(key);
      if (found == known.end()) throw CorruptError({}, "no tensor of the object uses it");
      const StorageId& storage = found->second;
      if (file.size() - offset < sizeof(int64_t) ||
          file.size() - offset - sizeof(int64_t) < storage.nbytes) {
        throw CorruptError({}, counted(storage.nbytes, "byte") +
                                   " expected, the file ends at byte " +
                                   std::to_string(file.size()) + ": it is truncated");
      }
      const auto numel = load_le<int64_t>(file.read(offset, sizeof(int64_t)).data());
      if (numel != storage.numel) {
        throw CorruptError({}, counted(numel, "element") + ", but the object says " +
                                   std::to_string(storage.numel));
      }
      offset += sizeof(int64_t);
      if (!legacy.storages.emplace(key, Extent{id, offset, storage.nbytes}).second) {
        throw CorruptError({}, "is listed twice");
      }
      offset += storage.nbytes;
    });
  }
  if (offset != file.size()) {
    throw CorruptError({.offset = offset},
                       counted(file.size() - offset, "byte") + " after the last storage");
  }
  return legacy;
}

}  // namespace dsckpt
