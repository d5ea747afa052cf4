#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"
#include "format/torch_archive.h"
#include "format/torch_legacy.h"
#include "format/zip.h"
#include "pickle/python_objects.h"

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::ObjectNode;
using pickle::Value;

// inline_container.cc basename(): the file name up to its last dot. For a path that is not ASCII
// torch.save opens a stream, and the archive's name is "archive".
std::string archive_name(std::string_view path) {
  const bool ascii = std::all_of(path.begin(), path.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  const size_t slash = path.find_last_of("/\\");
  std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  name = name.substr(0, name.find_last_of('.'));
  return ascii && !name.empty() ? std::string(name) : "archive";
}

class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  void add(uint64_t value) {
    std::string bytes;
    append_le(bytes, value);
    add(bytes);
  }
  // 20 decimal digits
  std::string digits() const {
    const std::string text = std::to_string(state_);
    return std::string(20 - text.size(), '0') + text;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

constexpr uint32_t kMaxDepth = 1000;

std::string data_name(size_t key) {
  return "data/" + std::to_string(key);
}

}  // namespace

TorchArchiveWriter::StorageId TorchArchiveWriter::storage(TensorSource data) {
  if (is_quantised(data.dtype())) throw std::logic_error("a quantised type without its scale");
  storages_.push_back({std::move(data), {}});
  return storages_.size() - 1;
}

Value TorchArchiveWriter::tensor(StorageId storage, Shape shape, int64_t storage_offset,
                                 std::optional<Strides> strides, bool requires_grad) {
  Storage& in = storages_.at(storage);
  const DType dtype = in.data.dtype();
  if (!strides) strides = contiguous_strides(shape);
  if (storage_offset < 0) throw InconsistentError({}, "a tensor that starts before its storage");
  // This checks that every element lies inside.
  const auto begin = static_cast<uint64_t>(storage_offset);
  const auto numel = static_cast<uint64_t>(in.data.numel());
  if (dsckpt::numel(shape) > 0) {
    if (begin > numel) throw InconsistentError({}, "a tensor that starts behind its storage");
    TensorSource::stored({0, 0, (numel - begin) * size_of(dtype)}, dtype, shape, *strides);
  }

  const std::string_view class_name = dsckpt::storage_class(dtype);
  const bool typed = !class_name.empty();
  if (in.key.is_none()) {
    in.key = document_.string(std::to_string(order_.size()));
    order_.push_back(storage);
  }
  const Value id = document_.tuple(
      {document_.intern("storage"),
       typed ? document_.global("torch", class_name)
             : document_.global("torch.storage", "UntypedStorage"),
       in.key, document_.intern("cpu"),
       Document::integer(typed ? in.data.numel() : static_cast<int64_t>(in.data.nbytes()))});
  std::vector<Value> arguments = {
      document_.persistent(id),
      Document::integer(storage_offset),
      document_.tuple(integers(shape)),
      document_.tuple(integers(*strides)),
      Document::boolean(requires_grad),
      document_.object(ObjectNode::Made::reduce, document_.global("collections", "OrderedDict"),
                       document_.tuple({})),
  };
  if (!typed) arguments.push_back(document_.global("torch", torch_name(dtype)));
  return document_.object(
      ObjectNode::Made::reduce,
      document_.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"),
      document_.tuple(std::move(arguments)));
}

Value TorchArchiveWriter::tensor(TensorSource data) {
  Shape shape = data.shape();
  return tensor(storage(std::move(data)), std::move(shape));
}

namespace {

std::span<const Value> id_of(const Value& persistent) {
  return persistent.persistent_id().as_sequence();
}

std::string key_of(const Value& persistent) {
  return std::string(id_of(persistent)[2].as_string());
}

}  // namespace

void TorchArchiveWriter::import_storages(const TorchArchive& from, const Value& value,
                                         const ImportChanges& changes) {
  ValueSet dropped;
  for (const Value& tensor : changes.dropped) dropped.insert(tensor.identity());
  for (const Value& persistent : persistent_values(value, dropped)) {
    const TensorSource data = from.storage(persistent);
    const auto id = id_of(persistent);
    const std::string key = key_of(persistent);
    if (id.size() == 6 && !id[5].is_none()) {
      throw UnsupportedError({.member = "storage " + key},
                             "a view of a storage, as the legacy form may hold");
    }
    const auto [found, is_new] = imported_.try_emplace({archive_id(from), key}, storages_.size());
    if (!is_new) continue;
    const auto changed = changes.storages.find(key);
    storages_.push_back({changed == changes.storages.end() ? data : changed->second,
                         document_.string(std::to_string(order_.size()))});
    order_.push_back(found->second);
  }
}

Value TorchArchiveWriter::import(const TorchArchive& from, const Value& value,
                                 const ImportChanges& changes) {
  import_storages(from, value, changes);
  Document::Copies& copies = copies_[archive_id(from)];
  const auto renumbered = [&](const Value& persistent) {
    const auto id = id_of(persistent);
    const std::string key = key_of(persistent);
    const Storage& storage = storages_[imported_.at({archive_id(from), key})];
    const Value count =
        changes.storages.contains(key) ? Document::integer(storage.data.numel()) : id[4];
    const auto leaf = [&](const Value& field) {
      return document_.copy(field, copies, [](const Value&) -> Value {
        throw CorruptError({}, "a persistent value within a persistent id");
      });
    };
    return document_.persistent(document_.tuple(
        {document_.intern("storage"), leaf(id[1]), storage.key, leaf(id[3]), count}));
  };
  for (const Value& tensor : changes.dropped) {
    const TensorInfo info = from.info(tensor);
    copies.emplace(tensor.identity(),
                   make_meta_tensor(document_, {.dtype = info.dtype,
                                                .shape = info.shape,
                                                .strides = info.strides,
                                                .requires_grad = info.requires_grad}));
  }
  for (const ImportChanges::View& view : changes.views) {
    std::vector<Value> arguments;
    for (const Value& argument : view.arguments.as_sequence()) {
      switch (arguments.size()) {
        case 1:
          arguments.push_back(Document::integer(view.storage_offset));
          break;
        case 3:
          arguments.push_back(document_.tuple(integers(view.strides)));
          break;
        default:
          arguments.push_back(document_.copy(argument, copies, renumbered));
      }
    }
    copies.emplace(view.arguments.identity(), document_.tuple(std::move(arguments)));
  }
  return document_.copy(value, copies, renumbered);
}

TorchArchiveWriter::Written TorchArchiveWriter::write() && {
  size_t next = 0;
  const auto check_order = [&](const Value& value) {
    const size_t key = std::stoul(key_of(value));
    if (key > next) throw std::logic_error("tensors were not made in the order of the root");
    if (key == next) ++next;
  };
  Written archive{.pickle = pickle::write_protocol2(document_.root(), kMaxDepth, check_order),
                  .data = {},
                  .serialization_id = {}};
  document_ = {};
  if (next != storages_.size()) throw std::logic_error("a storage that the root does not use");
  Fnv1a names;
  Fnv1a contents;
  contents.add(archive.pickle);
  archive.data.reserve(order_.size());
  for (size_t key = 0; key < order_.size(); ++key) {
    archive.data.push_back(std::move(storages_[order_[key]].data));
    names.add(data_name(key));
    contents.add(archive.data.back().nbytes());
  }
  archive.serialization_id = names.digits() + contents.digits();
  return archive;
}

ZipLayout TorchArchiveWriter::zip_of(Written archive, std::string name) {
  ZipLayout zip(std::move(name));
  zip.add("data.pkl", std::move(archive.pickle));
  zip.add(".format_version", std::string("1"));
  zip.add(".storage_alignment", std::string("64"));
  zip.add("byteorder", std::string("little"));
  for (size_t key = 0; key < archive.data.size(); ++key) {
    zip.add(data_name(key), std::move(archive.data[key]));
  }
  zip.add("version", std::string("3\n"));
  zip.add(".data/serialization_id", std::move(archive.serialization_id));
  return zip;
}

OutputId TorchArchiveWriter::lay_out(Written archive, PlanBuilder& plan, std::string path) {
  return zip_of(std::move(archive), archive_name(path)).lay_out(plan, std::move(path));
}

}  // namespace dsckpt
