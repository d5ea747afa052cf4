#include "format/torch_archive.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "base/widen.h"
#include "dsckpt/error.h"
#include "format/foreign_file.h"
#include "format/torch_form.h"
#include "format/torch_legacy.h"
#include "format/zip.h"

namespace dsckpt {
namespace {

using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

constexpr int kMaxFormatVersion = 10;  // caffe2/serialize/versions.h kMaxSupportedFileFormatVersion

enum class Rebuild : uint8_t { none, v1, v2, v3, parameter, parameter_with_state, from_type };

struct RebuildRow {
  std::string_view module;
  std::string_view name;
  Rebuild what;
  size_t min_arguments;
  size_t max_arguments;
};

// torch/_utils.py and torch/_tensor.py
constexpr RebuildRow kRebuilds[] = {
    {"torch._utils", "_rebuild_tensor_v2", Rebuild::v2, 6, 7},
    {"torch._utils", "_rebuild_parameter", Rebuild::parameter, 3, 3},
    {"torch._utils", "_rebuild_tensor_v3", Rebuild::v3, 7, 8},
    {"torch._utils", "_rebuild_parameter_with_state", Rebuild::parameter_with_state, 4, 4},
    {"torch._tensor", "_rebuild_from_type_v2", Rebuild::from_type, 4, 4},
    {"torch._utils", "_rebuild_tensor", Rebuild::v1, 4, 4},
};

const RebuildRow* rebuild_of(const Value& callable) {
  if (!callable.is(Kind::global)) return nullptr;
  const auto [module, name] = callable.as_global();
  for (const RebuildRow& row : kRebuilds) {
    if (row.name == name && row.module == module) return &row;
  }
  return nullptr;
}

bool rebuilds_tensor(const Value& callable, const Value& arguments) {
  const RebuildRow* row = rebuild_of(callable);
  if (row == nullptr || !arguments.is(Kind::tuple)) return false;
  const auto args = arguments.as_sequence();
  switch (row->what) {
    case Rebuild::parameter:
    case Rebuild::parameter_with_state:
      return !args.empty() && TorchArchive::is_tensor(args[0]);
    case Rebuild::from_type:
      return args.size() > 2 && rebuilds_tensor(args[0], args[2]);
    default:
      return true;
  }
}

// The parts of a tensor's pickle, unresolved.
struct Rebuilt {
  Value storage;
  Value offset;
  Value shape;
  Value strides;
  bool requires_grad = false;
  std::optional<DType> dtype;  // _rebuild_tensor_v3
  Value attributes;
};

// _set_obj_state: a dict, or (dict, slots).
Value attributes_of(const Value& state) {
  if (state.is(Kind::tuple) && state.as_sequence().size() == 2) return state.as_sequence()[0];
  return state;
}

void refuse_lazy_bits(const Value& metadata) {
  if (metadata.is_none()) return;
  for (const auto& [key, value] : metadata.as_dict().items) {
    if (!value.is(Kind::boolean) || value.as_bool()) {
      throw UnsupportedError({}, "a tensor whose \"" + std::string(key.as_string()) +
                                     "\" bit is set: its stored values are not its values");
    }
  }
}

Rebuilt take_apart(const Value& callable, const Value& arguments) {
  const RebuildRow* row = rebuild_of(callable);
  if (row == nullptr) {
    throw CorruptError({}, "not a tensor: it is made by " + describe(callable));
  }
  const auto args = arguments.as_sequence();
  if (args.size() < row->min_arguments || args.size() > row->max_arguments) {
    throw CorruptError({}, std::string(row->name) + " with " + counted(args.size(), "argument"));
  }
  Rebuilt tensor;
  switch (row->what) {
    case Rebuild::parameter:
    case Rebuild::parameter_with_state: {
      const ObjectNode& data = args[0].as_object();
      tensor = take_apart(data.callable, data.arguments);
      tensor.requires_grad = args[1].as_bool();
      if (args.size() == 4) tensor.attributes = attributes_of(args[3]);
      return tensor;
    }
    case Rebuild::from_type:
      tensor = take_apart(args[0], args[2]);
      tensor.attributes = attributes_of(args[3]);
      return tensor;
    default:
      break;
  }
  tensor.storage = args[0];
  tensor.offset = args[1];
  tensor.shape = args[2];
  tensor.strides = args[3];
  if (row->what != Rebuild::v1) tensor.requires_grad = args[4].as_bool();
  if (row->what == Rebuild::v3) {
    const auto [module, name] = args[6].as_global();
    tensor.dtype = module == "torch" ? dtype_from_torch_name(name) : std::nullopt;
    if (!tensor.dtype) {
      throw UnsupportedError({},
                             "a tensor of type " + std::string(module) + "." + std::string(name));
    }
  }
  if (args.size() == row->max_arguments && row->max_arguments > row->min_arguments) {
    refuse_lazy_bits(args.back());
  }
  return tensor;
}

// torch uses the top folder of the first record as the archive's name.
std::string prefix_of(const ZipReader& zip) {
  if (zip.entries().empty()) throw CorruptError({}, "a zip file without records");
  const std::string_view first = zip.entries().front().name;
  const size_t slash = first.find('/');
  return slash == std::string_view::npos ? "" : std::string(first.substr(0, slash));
}

// Limits the memory for pickles that files may share.
constexpr size_t kMaxSharedBytes = size_t{32} << 20;

std::shared_ptr<const pickle::Document> parsed(const std::vector<std::byte>& bytes,
                                               const pickle::Limits& limits) {
  return std::make_shared<const pickle::Document>(
      pickle::Document::parse(bytes, 0, nullptr, limits));
}

struct Checked {
  TensorInfo info;
  const ZipEntry* entry = nullptr;  // of the storage, in a zip
  uint64_t begin = 0;               // bytes from the start of the storage to the first element
  uint64_t size = 0;                // bytes from there to the end of the last one
};

}  // namespace

struct TorchArchive::Impl {
  // A record of a zip, or a storage of the legacy form.
  struct Place {
    uint64_t begin;
    uint64_t end;
    std::string_view name;  // the name of the record, or the key
  };

  const InputFile* file = nullptr;
  Extent part;  // of the file
  std::optional<ZipReader> zip;
  std::string prefix;
  std::shared_ptr<const pickle::Document> document;
  KeyedMap<std::string, Extent> legacy_storages;

  // The offset of each storage's data, by the number of its record. It is found on demand, since
  // that needs a read of the local header. An unknown offset is 0; the list is empty until the
  // first is found.
  mutable std::mutex mutex;
  mutable std::vector<uint64_t> found;
  mutable std::vector<bool> is_checked;  // by the number of the record; empty if none is
  mutable std::vector<Place> places;     // by offset; empty until they are asked for
  // Results of scalar(), by position: many parameters share one step.
  mutable std::map<std::pair<uint64_t, DType>, double> scalars;

  std::string member(const std::string& key) const {
    return zip ? prefix + "/data/" + key : "storage " + key;
  }

  void open_zip(SharedPickles* shared) {
    zip = ZipReader::open(*file, part);
    prefix = prefix_of(*zip);
    if (zip->find(prefix + "/constants.pkl") != nullptr) {
      throw UnsupportedError({}, "a TorchScript archive (torch.jit.save), not a checkpoint");
    }
    const ZipEntry* data = zip->find(prefix + "/data.pkl");
    if (data == nullptr) {
      throw CorruptError({}, "a zip file, but not one of torch.save: it has no record data.pkl");
    }
    // torch refuses such a file (PyTorchStreamReader::getAllRecords).
    const std::string folder = prefix + "/";
    for (const ZipEntry& entry : zip->entries()) {
      if (!entry.name.starts_with(folder)) {
        throw CorruptError({.member = std::string(entry.name)},
                           "lies outside of the folder '" + prefix + "' of the first record");
      }
    }
    if (const ZipEntry* order = zip->find(prefix + "/byteorder"); order != nullptr) {
      const std::string text = small_record(*order);
      if (text == "big") {
        throw UnsupportedError({.member = std::string(order->name)},
                               "written on a big-endian machine");
      }
      if (text != "little")
        throw CorruptError({.member = std::string(order->name)}, "neither little nor big");
    }
    if (const ZipEntry* version = zip->find(prefix + "/version"); version != nullptr) {
      const std::string text = small_record(*version);
      const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
      if (digits == 0 || digits > 4) {
        throw CorruptError({.member = std::string(version->name)}, "not a number");
      }
      const int number = std::stoi(text.substr(0, digits));
      if (number > kMaxFormatVersion) {
        throw UnsupportedError({.member = std::string(version->name)},
                               "format version " + std::to_string(number) + " is newer than " +
                                   std::to_string(kMaxFormatVersion));
      }
    }
    in_context({.member = std::string(data->name)}, [&] {
      const pickle::Limits limits;
      if (data->size > limits.max_bytes) {
        throw UnsupportedError({}, "a pickle of " + counted(data->size, "byte"));
      }
      std::vector<std::byte> bytes = zip->read(*data);
      document =
          shared != nullptr ? shared->parse(std::move(bytes), limits) : parsed(bytes, limits);
    });
  }

  // Returns the record or storage that holds byte `offset`, or nullptr.
  const Place* place_at(uint64_t offset) const {
    const std::lock_guard lock(mutex);
    if (places.empty()) {
      for (const auto& [key, extent] : legacy_storages) {
        places.push_back({extent.offset, extent.end(), key});
      }
      const size_t records = zip ? zip->entries().size() : 0;
      for (size_t i = 0; i < records; ++i) {
        const ZipEntry& entry = zip->entries()[i];
        places.push_back({entry.header_offset, entry.limit, entry.name});
      }
      std::sort(places.begin(), places.end(),
                [](const Place& a, const Place& b) { return a.begin < b.begin; });
    }
    const auto behind =
        std::upper_bound(places.begin(), places.end(), offset,
                         [](uint64_t at, const Place& place) { return at < place.begin; });
    if (behind == places.begin() || offset >= std::prev(behind)->end) return nullptr;
    return &*std::prev(behind);
  }

  std::string small_record(const ZipEntry& entry) const {
    if (entry.size > 64) throw CorruptError({.member = std::string(entry.name)}, "is too long");
    const std::vector<std::byte> bytes = zip->read(entry);
    return std::string(as_text(bytes));
  }

  // Returns the entry of `storage`, whose record is `name`, or nullptr in files that are not zips.
  // Throws if the file lacks it, or if its size differs from the pickle's.
  const ZipEntry* checked_storage(const StorageId& storage, const std::string& name) const {
    const ZipEntry* entry = zip ? zip->find(name) : nullptr;
    const auto legacy = zip ? legacy_storages.end() : legacy_storages.find(storage.key);
    if (entry == nullptr && legacy == legacy_storages.end()) {
      throw CorruptError({}, "a tensor's storage is not in the file");
    }
    const uint64_t stored = entry != nullptr ? entry->size : legacy->second.size;
    if (stored != storage.nbytes) {
      throw CorruptError(
          {}, counted(stored, "byte") + ", but the pickle says " + std::to_string(storage.nbytes));
    }
    return entry;
  }

  Extent storage_extent(const std::string& key, const ZipEntry* entry) const {
    return entry != nullptr ? record_extent(*entry) : legacy_storages.at(key);
  }

  Extent record_extent(const ZipEntry& entry) const {
    // Files of stage 3 have an empty storage for every parameter. Reads of all their headers would
    // take most of the time.
    if (entry.size == 0) return {part.file, 0, 0};
    const auto index = static_cast<size_t>(&entry - zip->entries().data());
    {
      const std::lock_guard lock(mutex);
      if (!found.empty() && found[index] != 0) return {part.file, found[index], entry.size};
    }
    const Extent extent = zip->data(entry);
    const std::lock_guard lock(mutex);
    if (found.empty()) found.resize(zip->entries().size());
    found[index] = extent.offset;
    return extent;
  }

  // A value that decides something is checked like bytes that are copied. Throws CorruptError.
  void check_record(const ZipEntry& entry) const {
    if (!zip->has_checksums()) return;
    const auto index = static_cast<size_t>(&entry - zip->entries().data());
    {
      const std::lock_guard lock(mutex);
      if (!is_checked.empty() && is_checked[index]) return;
    }
    zip->check(entry);
    const std::lock_guard lock(mutex);
    if (is_checked.empty()) is_checked.resize(zip->entries().size());
    is_checked[index] = true;
  }

  Checked check(const Value& value) const {
    const ObjectNode& object = value.as_object();
    const Rebuilt parts = take_apart(object.callable, object.arguments);
    const StorageId storage = StorageId::parse(parts.storage.persistent_id());
    const Where where{.member = member(storage.key)};
    return in_context(where, [&] {
      Checked tensor;
      tensor.entry = checked_storage(storage, where.member);
      TensorInfo& info = tensor.info;
      info.dtype = parts.dtype.value_or(storage.dtype);
      if (is_quantised(info.dtype)) {
        throw UnsupportedError({}, "a tensor of type torch." + std::string(torch_name(info.dtype)));
      }
      info.storage_key = storage.key;
      info.requires_grad = parts.requires_grad;
      info.attributes = parts.attributes;
      info.shape = shape_from_pickle(parts.shape);
      info.strides = shape_from_pickle(parts.strides);
      if (info.strides.size() != info.shape.size()) {
        throw CorruptError({}, "a tensor with " + counted(info.shape.size(), "size") + " and " +
                                   counted(info.strides.size(), "stride"));
      }
      const int64_t offset = parts.offset.as_int();
      if (offset < 0) {
        throw CorruptError({}, "a tensor that starts at element " + std::to_string(offset));
      }
      const uint64_t item = size_of(info.dtype);
      tensor.begin =
          checked_add(storage.view_begin, checked_mul(static_cast<uint64_t>(offset), item));
      info.storage_offset = static_cast<int64_t>(tensor.begin / item);
      if (numel(info.shape) == 0) return tensor;

      uint64_t last = 0;
      for (size_t i = 0; i < info.shape.size(); ++i) {
        last = checked_add(last, checked_mul(static_cast<uint64_t>(info.shape[i] - 1),
                                             static_cast<uint64_t>(info.strides[i])));
      }
      tensor.size = checked_mul(checked_add(last, 1), item);
      if (const uint64_t end = checked_add(tensor.begin, tensor.size); end > storage.view_end) {
        throw CorruptError({.offset = tensor.begin},
                           "a tensor of the pickle ends at byte " + std::to_string(end) +
                               " of its storage, which has " + std::to_string(storage.view_end));
      }
      return tensor;
    });
  }

  // Returns the range of the tensor's own bytes.
  Extent extent(const Checked& tensor) const {
    if (tensor.size == 0) return {part.file, 0, 0};
    const Extent storage = storage_extent(tensor.info.storage_key, tensor.entry);
    return {storage.file, storage.offset + tensor.begin, tensor.size};
  }
};

std::shared_ptr<const pickle::Document> SharedPickles::find(
    const std::vector<std::byte>& bytes) const {
  const auto found = parsed_.find(as_text(bytes));
  return found == parsed_.end() ? nullptr : found->second.document;
}

std::shared_ptr<const pickle::Document> SharedPickles::parse(std::vector<std::byte> bytes,
                                                             const pickle::Limits& limits) {
  {
    const std::lock_guard lock(mutex_);
    if (auto known = find(bytes)) return known;
  }
  auto document = parsed(bytes, limits);
  const std::lock_guard lock(mutex_);
  if (auto known = find(bytes)) return known;
  if (bytes.size() <= kMaxSharedBytes - kept_bytes_) {
    kept_bytes_ += bytes.size();
    const std::string_view key = as_text(bytes);  // moving the vector does not move its bytes
    parsed_.emplace(key, Parsed{std::move(bytes), document});
  }
  return document;
}

TorchArchive::TorchArchive(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TorchArchive::TorchArchive(TorchArchive&&) noexcept = default;
TorchArchive& TorchArchive::operator=(TorchArchive&&) noexcept = default;
TorchArchive::~TorchArchive() = default;

TorchArchive TorchArchive::open(const InputFiles& files, FileId id, SharedPickles* shared) {
  auto impl = std::make_unique<Impl>();
  impl->file = &files[id];
  impl->part = {id, 0, impl->file->size()};
  in_context({.file = impl->file->display()}, [&] {
    const TorchForm form = torch_form(*impl->file);
    if (form == TorchForm::zip || ZipReader::probe(*impl->file)) {
      impl->open_zip(shared);
    } else if (form == TorchForm::pickles) {
      TorchLegacy legacy = TorchLegacy::read(*impl->file, id);
      impl->document = std::make_shared<const pickle::Document>(std::move(legacy.document));
      impl->legacy_storages = std::move(legacy.storages);
    } else {
      throw foreign_file(*impl->file, "a file written by torch.save");
    }
  });
  return TorchArchive(std::move(impl));
}

namespace {

void check_is_zip(const InputFile& file, const Extent& part) {
  if (part.offset > file.size() || part.size > file.size() - part.offset) {
    throw CorruptError({.offset = part.offset},
                       counted(part.size, "byte") + " from there on, but the file ends at " +
                           std::to_string(file.size()) + ": it is truncated");
  }
  constexpr size_t kLocalHeader = 4;
  constexpr size_t kHeaderSize = 8;  // of safetensors, before its JSON
  const std::vector<std::byte> head =
      file.read(part.offset, std::min<uint64_t>(part.size, kHeaderSize + 1));
  const std::string_view text = as_text(head);
  if (text.substr(0, kLocalHeader) == "PK\3\4") return;
  if (text.size() > kHeaderSize && text[kHeaderSize] == '{' &&
      load_le<uint64_t>(head.data()) < part.size) {
    throw UnsupportedError({.offset = part.offset},
                           "is safetensors (SerializationFormat.SAFETENSORS), which is not read "
                           "there");
  }
  throw CorruptError({.offset = part.offset}, "no archive of torch.save begins there");
}

}  // namespace

TorchArchive TorchArchive::open(const InputFiles& files, const Extent& part) {
  auto impl = std::make_unique<Impl>();
  impl->file = &files[part.file];
  impl->part = part;
  in_context({.file = impl->file->display(), .offset = part.offset}, [&] {
    check_is_zip(*impl->file, part);
    impl->open_zip(nullptr);
  });
  return TorchArchive(std::move(impl));
}

TorchArchive TorchArchive::of_values(const InputFiles& files, const Extent& place,
                                     pickle::Document values) {
  auto impl = std::make_unique<Impl>();
  impl->file = &files[place.file];
  impl->part = place;
  impl->document = std::make_shared<const pickle::Document>(std::move(values));
  return TorchArchive(std::move(impl));
}

FileId TorchArchive::file() const {
  return impl_->part.file;
}
const Extent& TorchArchive::extent() const {
  return impl_->part;
}
bool TorchArchive::is_zip() const {
  return impl_->zip.has_value();
}
const ZipReader* TorchArchive::zip() const {
  return impl_->zip ? &*impl_->zip : nullptr;
}
std::string_view TorchArchive::prefix() const {
  return impl_->prefix;
}
const pickle::Document& TorchArchive::document() const {
  return *impl_->document;
}

bool TorchArchive::is_tensor(const Value& value) {
  if (!value.is(Kind::object)) return false;
  const ObjectNode& object = value.as_object();
  return object.made == ObjectNode::Made::reduce &&
         rebuilds_tensor(object.callable, object.arguments);
}

Value TorchArchive::view_arguments(const Value& value) {
  if (!is_tensor(value)) throw CorruptError({}, "not a tensor, but " + describe(value));
  Value callable = value.as_object().callable;
  Value arguments = value.as_object().arguments;
  for (const RebuildRow* row = rebuild_of(callable);; row = rebuild_of(callable)) {
    const auto args = arguments.as_sequence();
    if (row->what == Rebuild::from_type) {
      callable = args[0];
      arguments = args[2];
    } else if (row->what == Rebuild::parameter || row->what == Rebuild::parameter_with_state) {
      callable = args[0].as_object().callable;
      arguments = args[0].as_object().arguments;
    } else if (args.size() >= row->min_arguments) {
      return arguments;
    } else {
      throw CorruptError({}, std::string(row->name) + " with " + counted(args.size(), "argument"));
    }
  }
}

TensorInfo TorchArchive::info(const Value& value) const {
  return in_context({.file = impl_->file->display()}, [&] { return impl_->check(value).info; });
}

TensorSource TorchArchive::tensor(const Value& value) const {
  return in_context({.file = impl_->file->display()}, [&] {
    Checked tensor = impl_->check(value);
    return TensorSource::stored(impl_->extent(tensor), tensor.info.dtype,
                                std::move(tensor.info.shape), std::move(tensor.info.strides));
  });
}

TensorSource TorchArchive::storage(const Value& value) const {
  return in_context({.file = impl_->file->display()}, [&] {
    const StorageId storage = StorageId::parse(value.persistent_id());
    const Where where{.member = impl_->member(storage.key)};
    return in_context(where, [&] {
      const ZipEntry* entry = impl_->checked_storage(storage, where.member);
      return TensorSource::stored(impl_->storage_extent(storage.key, entry), storage.dtype,
                                  {storage.numel});
    });
  });
}

std::optional<Extent> TorchArchive::bytes_of_storage(const Value& value) const {
  const std::optional<std::string> key = storage_key(value);
  if (!key) return std::nullopt;
  if (!impl_->zip) {
    const auto found = impl_->legacy_storages.find(*key);
    return found == impl_->legacy_storages.end() ? std::nullopt : std::optional(found->second);
  }
  const ZipEntry* entry = impl_->zip->find(impl_->member(*key));
  if (entry == nullptr) return std::nullopt;
  return impl_->record_extent(*entry);
}

std::vector<Extent> TorchArchive::storages() const {
  std::vector<Extent> found;
  if (!impl_->zip) {
    for (const auto& [key, extent] : impl_->legacy_storages) found.push_back(extent);
    return found;
  }
  const std::string folder = impl_->prefix + "/data/";
  for (const ZipEntry& entry : impl_->zip->entries()) {
    if (entry.size > 0 && entry.name.starts_with(folder)) {
      found.push_back(impl_->record_extent(entry));
    }
  }
  return found;
}

std::vector<Extent> TorchArchive::checked_records() const {
  std::vector<Extent> found;
  if (!impl_->zip || !impl_->zip->has_checksums()) return found;
  for (const ZipEntry& entry : impl_->zip->entries()) {
    if (entry.size > 0) found.push_back(impl_->record_extent(entry));
  }
  return found;
}

std::optional<double> TorchArchive::scalar(const Value& value) const {
  switch (value.kind()) {
    case Kind::boolean:
      return value.as_bool() ? 1.0 : 0.0;
    case Kind::integer:
    case Kind::real:
      return value.as_real();
    default:
      break;
  }
  if (!is_tensor(value)) return std::nullopt;
  return in_context({.file = impl_->file->display()}, [&]() -> std::optional<double> {
    const Checked tensor = impl_->check(value);
    if (numel(tensor.info.shape) != 1) return std::nullopt;
    const Extent extent = impl_->extent(tensor);
    const DType dtype = tensor.info.dtype;
    if (real_part(dtype) != dtype) return std::nullopt;
    const std::pair place(extent.offset, dtype);
    {
      const std::lock_guard lock(impl_->mutex);
      if (const auto known = impl_->scalars.find(place); known != impl_->scalars.end()) {
        return known->second;
      }
    }
    if (tensor.entry != nullptr) impl_->check_record(*tensor.entry);
    const std::vector<std::byte> bytes = impl_->file->read(extent.offset, extent.size);
    double number = 0;
    to_float64(dtype, bytes.data(), &number, 1);
    const std::lock_guard lock(impl_->mutex);
    impl_->scalars.emplace(place, number);
    return number;
  });
}

void TorchArchive::check_records() const {
  if (!impl_->zip) return;
  in_context({.file = impl_->file->display()}, [&] {
    for (const ZipEntry& entry : impl_->zip->entries()) impl_->check_record(entry);
  });
}

void TorchArchive::check_record_of(const Value& tensor) const {
  in_context({.file = impl_->file->display()}, [&] {
    const ZipEntry* entry = impl_->check(tensor).entry;
    if (entry != nullptr) impl_->check_record(*entry);
  });
}

std::vector<uint32_t> TorchArchive::checksums(const Value& value) const {
  std::vector<uint32_t> found;
  if (!impl_->zip || !impl_->zip->has_checksums()) return found;
  for (const Value& persistent : persistent_values(value)) {
    const std::optional<std::string> key = storage_key(persistent);
    const ZipEntry* entry = key ? impl_->zip->find(impl_->member(*key)) : nullptr;
    if (entry != nullptr) found.push_back(entry->crc32);
  }
  return found;
}

std::string TorchArchive::record_at(uint64_t offset) const {
  const Impl::Place* place = impl_->place_at(offset);
  if (place == nullptr) return "";
  return impl_->zip ? std::string(place->name) : impl_->member(std::string(place->name));
}

Shape shape_from_pickle(const Value& value) {
  if (value.is(Kind::object)) {
    const ObjectNode& object = value.as_object();
    const auto arguments = object.arguments.as_sequence();
    if (!object.is_a("torch", "Size") || arguments.size() != 1 || arguments[0].is(Kind::object)) {
      throw CorruptError({}, "not a torch.Size, but " + describe(value));
    }
    return shape_from_pickle(arguments[0]);
  }
  if (!value.is(Kind::tuple) && !value.is(Kind::list)) {
    throw CorruptError({}, describe(value) + " where a shape was expected");
  }
  if (value.as_sequence().size() > kMaxDims) {
    throw UnsupportedError({}, "a shape of " + counted(value.as_sequence().size(), "dimension") +
                                   "; tensors have " + std::to_string(kMaxDims) + " at most");
  }
  Shape shape;
  shape.reserve(value.as_sequence().size());
  for (const Value& size : value.as_sequence()) {
    shape.push_back(size.as_int());
    if (shape.back() < 0) {
      throw CorruptError({}, "a negative size or stride, " + std::to_string(shape.back()));
    }
  }
  return shape;
}

}  // namespace dsckpt
