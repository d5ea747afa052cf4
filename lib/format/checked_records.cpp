#include "format/checked_records.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/typed_extents.h"
#include "format/zip.h"
#include "format/zip_records.h"

namespace dsckpt {
namespace {

struct Range {
  uint64_t begin;
  uint64_t end;
};

// Returns whether the first record is data.pkl, as in torch's zips (PyTorchStreamWriter).
bool is_torch_zip(const InputFile& file) {
  constexpr uint64_t kNameReach = 512;
  const std::vector<std::byte> head =
      file.read(0, std::min(file.size(), zip::kLocalSize + kNameReach));
  if (head.size() < zip::kLocalSize) return false;
  const std::string_view name =
      as_text(head).substr(zip::kLocalSize, load_le<uint16_t>(head.data() + 26));
  return name.ends_with("data.pkl");
}

// Returns nullopt for files that are not zips, and for zips that torch cannot have written, such as
// compressed ones. Plans can only copy those as bytes.
std::optional<ZipReader> open_zip(const InputFile& file, FileId id) {
  if (!ZipReader::probe(file)) return std::nullopt;
  try {
    return ZipReader::open(file, id);
  } catch (const CorruptError& error) {
    throw CorruptError(error).with_hint("move the file out of the folder to continue without it");
  } catch (const UnsupportedError&) {
    if (is_torch_zip(file)) throw;
    return std::nullopt;
  }
}

// Most plans read their inputs from front to back, so the newest range often just grows.
void add(std::vector<Range>& ranges, const Extent& extent) {
  if (extent.size == 0) return;
  if (!ranges.empty() && extent.offset >= ranges.back().begin &&
      extent.offset <= ranges.back().end) {
    ranges.back().end = std::max(ranges.back().end, extent.end());
  } else {
    ranges.push_back({extent.offset, extent.end()});
  }
}

// Sorts the ranges, and joins those that touch or overlap.
void join(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (const Range& range : ranges) {
    if (kept > 0 && range.begin <= ranges[kept - 1].end) {
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    } else {
      ranges[kept++] = range;
    }
  }
  ranges.resize(kept);
}

enum class Read : uint8_t { nothing, data, all };

// Returns what the plan reads of a record. The position of its data is unknown yet: a range that
// begins after the first byte of the header counts as data.
Read read_of(const ZipEntry& entry, const std::vector<Range>& ranges) {
  const auto range =
      std::upper_bound(ranges.begin(), ranges.end(), entry.header_offset,
                       [](uint64_t offset, const Range& each) { return offset < each.end; });
  if (range == ranges.end() || range->begin >= entry.limit) return Read::nothing;
  return range->begin <= entry.header_offset ? Read::all : Read::data;
}

// Adds the records of one zip. `name` is its tensor if the file has many zips.
void add_records(const ZipReader& zip, const std::string& name, const std::vector<Range>& ranges,
                 Frames frames, std::vector<InputRecord>& records) {
  for (const ZipEntry& entry : zip.entries()) {
    const Read read = read_of(entry, ranges);
    const bool has_sum = entry.size > 0 && zip.has_checksums();
    const bool is_checked = read == Read::all && frames == Frames::checked;
    if (read == Read::nothing || (!is_checked && !has_sum)) continue;
    const Extent data = is_checked ? zip.check_frame(entry) : zip.data(entry);
    if (!has_sum) continue;
    std::string member(entry.name);
    if (!name.empty()) member = name + " (" + member + ")";
    records.push_back({data, entry.crc32, std::move(member)});
  }
}

bool is_read(const Extent& part, const std::vector<Range>& ranges) {
  const auto range =
      std::upper_bound(ranges.begin(), ranges.end(), part.offset,
                       [](uint64_t offset, const Range& each) { return offset < each.end; });
  return range != ranges.end() && range->begin < part.end();
}

std::vector<InputRecord> records_in(const InputFiles& inputs, FileId id,
                                    const std::vector<Range>& ranges, Frames frames,
                                    const TorchArchive* open) {
  std::vector<InputRecord> records;
  const InputFile& file = inputs[id];
  if (const std::vector<FilePart>* parts = inputs.parts(id)) {
    for (const FilePart& part : *parts) {
      if (!is_read(part.extent, ranges)) continue;
      in_context({.file = file.display(), .tensor = part.name}, [&] {
        add_records(ZipReader::open(file, part.extent), part.name, ranges, frames, records);
      });
    }
  } else if (open != nullptr && open->is_zip()) {
    add_records(*open->zip(), "", ranges, frames, records);
  } else if (const std::optional<ZipReader> zip = open_zip(file, id)) {
    add_records(*zip, "", ranges, frames, records);
  }
  return records;
}

// `ranges`: for each file, by its number. Files without ranges are not opened.
std::vector<InputRecord> records_in(const InputFiles& inputs,
                                    const std::vector<std::vector<Range>>& ranges, Frames frames,
                                    const OpenArchives& open) {
  std::vector<std::vector<InputRecord>> found(ranges.size());
  tbb::parallel_for(size_t{0}, ranges.size(), [&](size_t file) {
    if (ranges[file].empty()) return;
    const auto id = static_cast<FileId>(file);
    found[file] =
        records_in(inputs, id, ranges[file], frames, file < open.size() ? open[file] : nullptr);
  });
  std::vector<InputRecord> records;
  for (auto& some : found) {
    std::move(some.begin(), some.end(), std::back_inserter(records));
  }
  return records;
}

// Bytes around the records are compared only when the plan runs: a checkpoint can have a million
// records, most of them empty.
void put_records(PlanBuilder& plan, OutputId out, FileId file, uint64_t size,
                 std::vector<Extent> records) {
  std::sort(records.begin(), records.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  std::vector<TypedExtent> parts;
  for (const Extent& record : records) parts.push_back({record, DType::uint8});
  put_file(plan, out, file, size, parts);
}

}  // namespace

std::vector<InputRecord> records_read(const CopyPlan& plan, const InputFiles& inputs,
                                      const std::set<FileId>& but, Frames frames,
                                      const OpenArchives& open) {
  std::vector<std::vector<Range>> ranges(inputs.size());
  for (const CopyItem& item : plan.items()) {
    plan.for_each_source(item, [&](const Rows& source, uint64_t rows) {
      add(ranges[source.file], source.span(rows));
    });
  }
  for (const FileId file : but) ranges[file].clear();
  tbb::parallel_for(size_t{0}, ranges.size(), [&](size_t file) { join(ranges[file]); });
  return records_in(inputs, ranges, frames, open);
}

std::vector<InputRecord> all_records(const InputFiles& inputs, std::vector<FileId> files,
                                     Frames frames, const OpenArchives& open) {
  std::vector<std::vector<Range>> ranges(inputs.size());
  for (const FileId file : files) ranges[file] = {{0, inputs[file].size()}};
  return records_in(inputs, ranges, frames, open);
}

void put_file(PlanBuilder& plan, OutputId out, const InputFiles& inputs, FileId file) {
  std::vector<Extent> records;
  const std::optional<ZipReader> zip = open_zip(inputs[file], file);
  if (zip && zip->has_checksums()) {
    for (const ZipEntry& entry : zip->entries()) {
      if (entry.size > 0) records.push_back(zip->data(entry));
    }
  }
  put_records(plan, out, file, inputs[file].size(), std::move(records));
}

void put_file(PlanBuilder& plan, OutputId out, const TorchArchive& archive, uint64_t size) {
  put_records(plan, out, archive.file(), size, archive.checked_records());
}

}  // namespace dsckpt
