#include "format/typed_extents.h"

#include <algorithm>
#include <map>

#include "dsckpt/error.h"
#include "format/safetensors.h"
#include "format/torch_legacy.h"

namespace dsckpt {
namespace {

std::vector<TypedExtent> of_torch(const InputFiles& files, FileId id, SharedPickles* shared) {
  const TorchArchive archive = TorchArchive::open(files, id, shared);
  std::map<uint64_t, TypedExtent> by_offset;
  for (const Extent& extent : archive.storages()) {
    if (extent.size > 0) by_offset.emplace(extent.offset, TypedExtent{extent, DType::uint8});
  }
  for (const pickle::Value& value : persistent_values(archive.root())) {
    const std::optional<Extent> extent = archive.bytes_of_storage(value);
    const auto found = extent ? by_offset.find(extent->offset) : by_offset.end();
    if (found == by_offset.end()) continue;
    try {
      found->second.dtype = archive.storage(value).dtype();
    } catch (const Error&) {
      // A storage that is not valid for a tensor is copied as bytes.
    }
  }
  std::vector<TypedExtent> out;
  uint64_t end = 0;
  for (const auto& [offset, typed] : by_offset) {
    // Storages of the legacy form may overlap.
    if (offset < end) continue;
    out.push_back(typed);
    end = typed.extent.end();
  }
  return out;
}

std::vector<TypedExtent> of_safetensors(const InputFiles& files, FileId id) {
  std::vector<TypedExtent> out;
  const SafetensorsFile file = SafetensorsFile::open(files, id);
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.extent.size > 0) out.push_back({entry.extent, entry.dtype});
  }
  return out;
}

}  // namespace

std::vector<TypedExtent> typed_extents(const InputFiles& files, FileId id, SharedPickles* shared) {
  return SafetensorsFile::probe(files[id]) ? of_safetensors(files, id)
                                           : of_torch(files, id, shared);
}

void put_file(PlanBuilder& plan, OutputId out, FileId file, uint64_t size,
              const std::vector<TypedExtent>& parts) {
  uint64_t at = 0;
  const auto put = [&](uint64_t bytes, DType dtype) {
    const uint64_t numel = bytes / size_of(dtype);
    const uint64_t whole = numel * size_of(dtype);
    if (whole > 0) {
      plan.put(out, at,
               TensorSource::stored({file, at, whole}, dtype, {static_cast<int64_t>(numel)}));
    }
    at += whole;
  };
  for (const TypedExtent& part : parts) {
    put(part.extent.offset - at, DType::uint8);
    put(part.extent.size, part.dtype);
  }
  put(size - at, DType::uint8);
}

}  // namespace dsckpt
