#include "checkpoint/dcp_files.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/boxes.h"
#include "dsckpt/error.h"
#include "io/content_name.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// The number of the rank in the name of its file; "" if there is none.
std::string rank_in(const std::string& path) {
  const std::string file = fs::path(path).filename().string();
  if (!file.starts_with("__")) return "";
  std::string rank = file.substr(2, file.find('_', 2) - 2);
  return is_digits(rank) ? rank : "";
}

}  // namespace

DcpFiles::DcpFiles(CheckpointDraft& draft) : draft_(draft) {
  for (const fs::path& path : draft.folder.dcp_metadata) {
    Folder& folder = folders_.emplace_back();
    folder.path = path.parent_path();
    folder.metadata_file = draft.inputs.add(path, draft.folder.display_root());
    folder.metadata = read_dcp_metadata(draft.inputs[folder.metadata_file]);
    draft.files.data.push_back({path, folder.metadata_file});
  }
  open_files();
  if (draft.options.allow_missing) lose_cut_off();
  set_parts();
}

bool DcpFiles::is_lost(const DcpEntry& entry) const {
  if (lost_.empty()) return false;
  if (!entry.is_tensor()) return is_lost(extent_of(entry, entry.value->pickle).file);
  const auto& chunks = entry.value->tensor->chunks;
  return std::any_of(chunks.begin(), chunks.end(), [&](const DcpChunk& chunk) {
    return numel(chunk.sizes) != 0 && is_lost(extent_of(entry, chunk.place).file);
  });
}

bool DcpFiles::lacks_values() const {
  for (size_t i = 0; i < folders_.size(); ++i) {
    for (const DcpValue& value : folders_[i].metadata.values) {
      const DcpEntry entry{&value, i};
      if (!value.tensor && (is_left_out(entry) || is_lost(entry))) return true;
    }
  }
  return false;
}

std::map<std::string, std::vector<std::string>> DcpFiles::unsupported() const {
  std::map<std::string, std::vector<std::string>> names;
  for (const Folder& folder : folders_) collect_unsupported(folder.metadata, names);
  return names;
}

void DcpFiles::check_supported(const DcpEntry& entry) const {
  if (entry.value->unsupported.empty()) return;
  throw UnsupportedError({.file = metadata_name(entry), .tensor = entry.name()},
                         entry.value->unsupported);
}

std::vector<DcpEntry> DcpFiles::entries() const {
  std::vector<DcpEntry> entries;
  KeyedSet<std::string_view> names;
  for (size_t i = 0; i < folders_.size(); ++i) {
    for (const DcpValue& value : folders_[i].metadata.values) {
      if (!names.insert(value.name).second) {
        throw InconsistentError({.file = display(folders_[i].metadata_file), .tensor = value.name},
                                "is in " + display(folders_[0].metadata_file) + " too");
      }
      const DcpEntry entry{&value, i};
      if (entry.is_tensor() || !is_lost(entry)) entries.push_back(entry);
    }
  }
  return entries;
}

Extent DcpFiles::extent_of(const DcpEntry& entry, const DcpPlace& place) const {
  return {folders_[entry.folder].files.at(place.file), place.offset, place.size};
}

TorchArchive DcpFiles::open_value(const DcpEntry& entry) const {
  check_supported(entry);
  const DcpPlace* place = &entry.value->pickle;
  if (entry.is_tensor()) {
    const auto& chunks = entry.value->tensor->chunks;
    const auto whole = std::find_if(chunks.begin(), chunks.end(), [&](const DcpChunk& chunk) {
      return chunk.sizes == entry.value->tensor->shape;
    });
    if (whole == chunks.end()) {
      throw UnsupportedError({.file = metadata_name(entry), .tensor = entry.name()},
                             "is cut into chunks, where one number was expected");
    }
    place = &whole->place;
  }
  return in_context({.tensor = entry.name()},
                    [&] { return TorchArchive::open(draft_.inputs, extent_of(entry, *place)); });
}

uint32_t DcpFiles::ranks() const {
  std::set<std::string> ranks;
  for (const Folder& folder : folders_) {
    for (const auto& [name, id] : folder.files) {
      const std::string rank = rank_in(name);
      if (!rank.empty()) ranks.insert(rank);
    }
  }
  return static_cast<uint32_t>(std::max<size_t>(1, ranks.size()));
}

// The others do not change without it: nothing is read of the stand-in.
void DcpFiles::lose(Folder& folder, const std::string& file, std::string why) {
  const fs::path path = folder.path / file;
  const std::string shown = draft_.folder.display(path);
  const FileId id = draft_.inputs.add_again(folder.path / kDcpMetadataName, shown);
  ShardName name;
  const std::string number = rank_in(file);
  if (number.size() < 10 && !number.empty()) {
    name.dp_rank = static_cast<uint32_t>(std::stoul(number));
  }
  draft_.lost_files.push_back({name, shown, std::move(why)});
  draft_.lost_ids.push_back(id);
  lost_.insert(id);
  folder.files[file] = id;
}

void DcpFiles::lose_cut_off() {
  std::set<FileId> cut_off;
  for (Folder& folder : folders_) {
    std::map<std::string, uint64_t> ends;
    for_each_place(folder.metadata, [&](const std::string&, const DcpPlace& place) {
      const uint64_t end = place.size > ~place.offset ? ~uint64_t{0} : place.offset + place.size;
      ends[place.file] = std::max(ends[place.file], end);
    });
    for (const auto& [file, end] : ends) {
      const FileId id = folder.files.at(file);
      const uint64_t size = draft_.inputs[id].size();
      if (is_lost(id) || end <= size) continue;
      cut_off.insert(id);
      lose(folder, file,
           "is truncated: it has " + counted(size, "byte") + " of at least " + std::to_string(end));
    }
  }
  std::erase_if(draft_.files.data, [&](const DataFile& each) { return cut_off.contains(each.id); });
}

void DcpFiles::open_files() {
  std::vector<std::string> missing;
  for (Folder& folder : folders_) {
    const std::string shown = display(folder.metadata_file);
    std::map<std::string, std::string> first;  // of each file, a value in it
    for_each_place(folder.metadata, [&](const std::string& name, const DcpPlace& place) {
      first.emplace(place.file, name);
    });
    const OpeningFiles opening(draft_.inputs.progress(), first.size());
    for (const auto& [file, value] : first) {
      const std::optional<fs::path> path = dcp_file_path(folder.path, file);
      if (!path) {
        throw CorruptError({.file = shown, .tensor = value},
                           "lies outside the folder, in " + printable(file));
      }
      const fs::path stored = draft_.folder.in_roots(*path);
      if (!is_stored(stored)) {
        missing.push_back(draft_.folder.display(*path) + ", with '" + value + "'");
        if (draft_.options.allow_missing) lose(folder, file, "is missing");
        continue;
      }
      const FileId id = draft_.inputs.add(stored, draft_.folder.display_root());
      folder.files.emplace(file, id);
      draft_.files.data.push_back({stored, id});
      opening.throw_if_cancelled();
      opening.opened_one();
    }
  }
  const bool some_left = draft_.files.data.size() > folders_.size();
  if (missing.empty() || (draft_.options.allow_missing && some_left)) return;
  throw InconsistentError({.file = draft_.folder.path.string()},
                          counted(missing.size(), "data file") +
                              (missing.size() == 1 ? " is" : " are") +
                              " missing:" + listed(missing))
      .with_hint("--root DIR reads the files that another node has kept, too");
}

void DcpFiles::set_parts() {
  std::map<FileId, std::vector<FilePart>> parts;
  for (const Folder& folder : folders_) {
    for_each_place(folder.metadata, [&](const std::string& name, const DcpPlace& place) {
      const FileId id = folder.files.at(place.file);
      if (is_lost(id)) return;
      const InputFile& file = draft_.inputs[id];
      if (place.offset > file.size() || place.size > file.size() - place.offset) {
        throw CorruptError({.file = file.display(), .tensor = name, .offset = place.offset},
                           counted(place.size, "byte") + " from there on, but the file has " +
                               std::to_string(file.size()) + ": it is truncated");
      }
      parts[id].push_back({{id, place.offset, place.size}, name});
    });
  }
  for (auto& [id, some] : parts) {
    std::stable_sort(some.begin(), some.end(), [](const FilePart& a, const FilePart& b) {
      return std::pair(a.extent.offset, a.extent.size) < std::pair(b.extent.offset, b.extent.size);
    });
    some.erase(
        std::unique(some.begin(), some.end(),
                    [](const FilePart& a, const FilePart& b) { return a.extent == b.extent; }),
        some.end());
    for (size_t i = 1; i < some.size(); ++i) {
      const FilePart& before = some[i - 1];
      if (before.extent.end() <= some[i].extent.offset) continue;
      throw CorruptError(
          {.file = display(id), .tensor = some[i].name, .offset = some[i].extent.offset},
          "lies within what '" + before.name + "' has, which begins at " +
              std::to_string(before.extent.offset) + " and ends at " +
              std::to_string(before.extent.end()));
    }
    draft_.inputs.set_parts(id, std::move(some));
  }
}

namespace {

TensorSource lost_chunk(FileId file, DType dtype, const DcpChunk& chunk) {
  const auto count = static_cast<uint64_t>(numel(chunk.sizes));
  return TensorSource::stored({file, 0, checked_mul(count, size_of(dtype))}, dtype, chunk.sizes);
}

}  // namespace

void DcpTensors::want(const DcpEntry& entry) {
  files_.check_supported(entry);
  for (const DcpChunk& chunk : entry.value->tensor->chunks) {
    if (numel(chunk.sizes) == 0) continue;
    const Extent extent = files_.extent_of(entry, chunk.place);
    if (files_.is_lost(extent.file)) continue;
    if (numbers_.emplace(std::pair(extent.file, extent.offset), items_.size()).second) {
      items_.push_back({extent, &entry.name(), std::nullopt});
    }
  }
}

void DcpTensors::open() {
  const OpeningFiles opening(draft_.inputs.progress(), 0);
  tbb::parallel_for(size_t{0}, items_.size(), [&](size_t i) {
    opening.throw_if_cancelled();
    Item& item = items_[i];
    in_context({.file = draft_.inputs[item.extent.file].display(),
                .tensor = *item.name,
                .offset = item.extent.offset},
               [&] {
                 const TorchArchive archive = TorchArchive::open(draft_.inputs, item.extent);
                 item.value = archive.tensor(archive.root());
               });
  });
}

TensorSource DcpTensors::whole(const DcpEntry& entry) const {
  const DcpTensor& tensor = *entry.value->tensor;
  std::vector<TensorBox> boxes;
  std::map<Shape, const Shape*> known;  // sizes by offsets: replicated chunks come again
  for (const DcpChunk& chunk : tensor.chunks) {
    if (numel(chunk.sizes) == 0) continue;
    const auto [same, is_new] = known.emplace(chunk.offsets, &chunk.sizes);
    if (!is_new && *same->second == chunk.sizes) continue;
    const FileId file = files_.extent_of(entry, chunk.place).file;
    boxes.push_back({chunk.offsets, files_.is_lost(file) ? lost_chunk(file, tensor.dtype, chunk)
                                                         : value_of(entry, chunk)});
  }
  return in_context({.file = files_.metadata_name(entry), .tensor = entry.name()},
                    [&] { return join_boxes(tensor.dtype, tensor.shape, std::move(boxes)); });
}

const TensorSource& DcpTensors::value_of(const DcpEntry& entry, const DcpChunk& chunk) const {
  const Extent extent = files_.extent_of(entry, chunk.place);
  const TensorSource& value = *items_[numbers_.at(std::pair(extent.file, extent.offset))].value;
  const DType dtype = entry.value->tensor->dtype;
  if (value.shape() == chunk.sizes && value.dtype() == dtype) return value;
  throw CorruptError({.file = draft_.inputs[extent.file].display(),
                      .tensor = entry.name(),
                      .offset = extent.offset},
                     "holds " + std::string(torch_name(value.dtype())) + " " +
                         to_text(value.shape()) + ", but its chunk at " + to_text(chunk.offsets) +
                         " is " + std::string(torch_name(dtype)) + " " + to_text(chunk.sizes) +
                         " by " + files_.metadata_name(entry));
}

}  // namespace dsckpt
