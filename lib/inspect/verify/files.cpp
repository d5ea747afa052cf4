// Checks every file by itself: whether it opens, has the bytes that were saved, and belongs to the
// rank in its name. Its tensors must lie inside it.

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "exec/extent_sums.h"
#include "format/tensors_in.h"
#include "inspect/verify/verification.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace {

constexpr uint64_t kPieceBytes = 4 << 20;

// Opens `file`, which has been added to the inputs, as far as possible. Throws like the readers.
void open_file(Verification& v, CheckedFile& file) {
  const InputFile& input = v.inputs[file.id];
  if (!file.name && SafetensorsFile::probe(input)) {
    file.safetensors = SafetensorsFile::open(v.inputs, file.id);
    return;
  }
  if (ZipReader::probe(input)) file.zip = ZipReader::open(input, file.id);
  const ShardName name = file.name.value_or(ShardName{.kind = ShardName::Kind::universal});
  file.shard = Shard{name, file.path, file.display, TorchArchive::open(v.inputs, file.id), false};
}

std::filesystem::path root_of(const Verification& v) {
  return v.report.form == "zero" || v.report.form == "universal" ? v.folder.display_root()
                                                                 : v.report.folder;
}

// The damaged records of all zips in one file.
class DamageOfFile {
 public:
  void add(const CheckedFile& file, const std::unordered_set<const ZipEntry*>& damaged) {
    ++zips_;
    for (const ZipEntry& entry : file.zip->entries()) {
      const bool is_damaged = damaged.contains(&entry);
      is_damaged_ = is_damaged_ || is_damaged;
      // Messages have names with and without the top folder.
      add(file, entry.name, is_damaged);
      const size_t slash = entry.name.find('/');
      if (slash != entry.name.npos) add(file, entry.name.substr(slash + 1), is_damaged);
    }
  }

  // Returns whether a damaged record explains why something is unreadable. It does not if the
  // finding names another record.
  bool explains(const Finding& finding) const {
    const auto named = by_name_.find(finding.member);
    if (finding.member.empty() || named == by_name_.end()) return is_damaged_;
    return named->second.is_damaged || (named->second.zips < zips_ && is_damaged_);
  }

 private:
  struct Named {
    const CheckedFile* last = nullptr;
    size_t zips = 0;  // zips that have such a record
    bool is_damaged = false;
  };

  void add(const CheckedFile& file, std::string_view name, bool is_damaged) {
    Named& named = by_name_[name];
    if (named.last != &file) ++named.zips;
    named.last = &file;
    named.is_damaged = named.is_damaged || is_damaged;
  }

  size_t zips_ = 0;
  bool is_damaged_ = false;
  KeyedMap<std::string_view, Named> by_name_;
};

// Drops findings of unreadable content whose bytes are already reported as damaged.
void drop_explained(Verification& v, const std::unordered_set<const ZipEntry*>& damaged) {
  if (damaged.empty()) return;
  const auto is_unreadable = [](const Finding& finding) {
    return finding.check == Check::unreadable;
  };
  KeyedMap<std::string, DamageOfFile> files;
  for (const Finding& finding : v.report.findings) {
    if (is_unreadable(finding)) files.try_emplace(finding.file);
  }
  for (const CheckedFile& file : v.files) {
    const auto found = files.find(file.display);
    if (found != files.end() && file.zip) found->second.add(file, damaged);
  }
  std::erase_if(v.report.findings, [&](const Finding& finding) {
    return is_unreadable(finding) && files.at(finding.file).explains(finding);
  });
}

struct Record {
  CheckedFile* file;
  const ZipEntry* entry;
  Extent extent;
};

// Checks the bytes around the data of a record whose header is readable.
void check_frame(Verification& v, const CheckedFile& file, const ZipEntry& entry) {
  try {
    file.zip->check_frame(entry);
  } catch (const CorruptError& error) {
    v.add({.check = Check::crc,
           .message = error.message(),
           .file = file.display,
           .rank = file.rank(),
           .member = std::string(entry.name),
           .tensor = file.part,
           .offset = error.where().offset});
  }
}

// Returns the positions of the records with a known CRC32.
std::vector<Record> find_records(Verification& v) {
  std::vector<std::vector<Record>> of_file(v.files.size());
  for_each_index(v.files.size(), [&](size_t i) {
    CheckedFile& file = v.files[i];
    if (!file.zip || !file.zip->has_checksums()) return;
    for (const ZipEntry& entry : file.zip->entries()) {
      v.attempt(Check::unreadable, file, [&] {
        of_file[i].push_back({&file, &entry, file.zip->data(entry)});
        check_frame(v, file, entry);
      });
    }
  });
  std::vector<Record> records;
  for (const auto& some : of_file) records.insert(records.end(), some.begin(), some.end());
  return records;
}

// The records' bytes in pieces, and the record of each piece.
struct Pieces {
  std::vector<Extent> extents;
  std::vector<size_t> records;
};

Pieces cut(const std::vector<Record>& records) {
  Pieces pieces;
  for (size_t r = 0; r < records.size(); ++r) {
    const Extent& extent = records[r].extent;
    for (uint64_t at = 0; at < extent.size; at += kPieceBytes) {
      const uint64_t size = std::min(kPieceBytes, extent.size - at);
      pieces.extents.push_back({extent.file, extent.offset + at, size});
      pieces.records.push_back(r);
    }
  }
  return pieces;
}

// "a.pt" or "a.pt and 383 more"
std::string first_of(const std::vector<std::string>& names) {
  const std::string more = std::to_string(names.size() - 1);
  return names.front() + (names.size() == 1 ? "" : " and " + more + " more");
}

void note_unchecked(Verification& v) {
  std::vector<std::string> without;
  std::vector<std::string> legacy;
  for (const CheckedFile& file : v.files) {
    if (file.zip && !file.zip->has_checksums()) {
      without.push_back(file.display);
    } else if (file.safetensors) {
      v.skip(Check::crc, "files of safetensors have no CRC32s", true);
    } else if (file.shard && !file.zip) {
      legacy.push_back(file.display);
    }
  }
  if (!without.empty()) {
    v.skip(Check::crc, "saved without CRC32s: " + first_of(without), true);
  }
  if (!legacy.empty()) {
    v.skip(Check::crc, "of torch's old form, which has no CRC32s: " + first_of(legacy), true);
  }
}

// Adds one note on all tensors of unsupported kinds.
void note_unsupported(Verification& v, const std::vector<std::vector<std::string>>& of_files) {
  std::vector<std::string> all;
  for (const auto& some : of_files) all.insert(all.end(), some.begin(), some.end());
  if (!all.empty()) v.skip(Check::layout, "not all of it: " + first_of(all), true);
}

// Finds the persistent values of storages whose views are the tensors of one file.
class StorageFinder {
 public:
  // Returns None if there is none.
  pickle::Value storage_of(const pickle::Value& value) {
    if (value.is(pickle::Kind::persistent)) return value;
    if (!value.is(pickle::Kind::object) && !value.is(pickle::Kind::tuple)) return {};
    // Tuples can hold the same tuple any number of times.
    const auto [known, is_new] = known_.emplace(value.identity(), pickle::Value());
    if (!is_new) return known->second;
    const pickle::Value found = value.is(pickle::Kind::object)
                                    ? storage_of(value.as_object().arguments)
                                    : first_in(value.as_sequence());
    known_[value.identity()] = found;
    return found;
  }

 private:
  pickle::Value first_in(std::span<const pickle::Value> items) {
    for (const pickle::Value& item : items) {
      const pickle::Value found = storage_of(item);
      if (!found.is_none()) return found;
    }
    return {};
  }

  std::unordered_map<const void*, pickle::Value> known_;
};

// Describes the defect of a tensor, in its storage or in the view.
Finding finding_of(const CheckedFile& file, const FoundTensor& found, const Error& error,
                   StorageFinder& finder) {
  Finding finding{.check = Check::layout,
                  .message = error.message(),
                  .file = file.display,
                  .rank = file.rank(),
                  .member = found.path,
                  .offset = error.where().offset};
  try {
    file.shard->archive.storage(finder.storage_of(found.value));
  } catch (const Error& of_storage) {
    if (of_storage.where().member.empty()) return finding;
    finding.check = Check::unreadable;
    finding.message = of_storage.message() + " (" + found.path + ")";
    finding.member = of_storage.where().member;
  }
  return finding;
}

}  // namespace

void open_files(Verification& v) {
  for (CheckedFile& file : v.files) {
    const std::filesystem::path relative = file.path.lexically_relative(root_of(v));
    file.display = (relative.empty() ? file.path : relative).string();
    try {
      file.id = v.inputs.add(file.path, root_of(v));
      file.display = v.inputs[file.id].display();
      v.report.bytes += v.inputs[file.id].size();
    } catch (const Error& error) {
      v.add(Check::unreadable, file, error);
      file.suspect = true;
    }
  }
  v.report.files = v.files.size();
  const OpeningFiles opening(&v.progress, v.files.size());
  for_each_index(v.files.size(), [&](size_t i) {
    CheckedFile& file = v.files[i];
    if (file.suspect) return;
    v.stop_if_cancelled();
    v.attempt(Check::unreadable, file, [&] { open_file(v, file); });
    opening.opened_one();
  });
}

void check_records(Verification& v) {
  note_unchecked(v);
  const std::vector<Record> records = find_records(v);
  const Pieces pieces = cut(records);
  std::vector<uint32_t> crcs(pieces.extents.size());
  std::vector<char> unread(records.size());
  const auto on_sum = [&](size_t i, std::string_view sum, const Error* failure) {
    const size_t record = pieces.records[i];
    if (failure == nullptr) {
      crcs[i] = load_le<uint32_t>(as_byte_span(sum).data());
      return;
    }
    v.add(Check::unreadable, *records[record].file,
          failure->within({.member = std::string(records[record].entry->name),
                           .tensor = records[record].file->part}));
    unread[record] = 1;
  };
  sum_extents(v.inputs, pieces.extents, SumKind::crc32, v.reading(), on_sum);
  // A plan has what is asked if nothing is damaged.
  if (v.reading().only_plans()) return;

  std::unordered_set<const ZipEntry*> damaged;
  std::vector<Extent> extents;
  size_t piece = 0;
  for (size_t r = 0; r < records.size(); ++r) {
    uint32_t crc = 0;
    for (; piece < crcs.size() && pieces.records[piece] == r; ++piece) {
      crc = crc32_combine(crc, crcs[piece], pieces.extents[piece].size);
    }
    const auto& [file, entry, extent] = records[r];
    if (unread[r] != 0) {
      file->suspect = true;
      continue;
    }
    ++v.report.records;
    if (crc == entry->crc32) continue;
    extents.push_back(extent);
    damaged.insert(entry);
    v.add({.check = Check::crc,
           .message = "CRC32 mismatch: the data has changed since it was saved",
           .file = file->display,
           .rank = file->rank(),
           .member = std::string(entry->name),
           .tensor = file->part,
           .offset = extent.offset,
           .size = extent.size});
  }
  v.set_damaged(std::move(extents));
  drop_explained(v, damaged);
}

void check_saved_names(Verification& v) {
  std::set<std::string> stems;  // of the parameters' files: "fp32", "exp_avg"
  for (const CheckedFile& file : v.files) {
    if (file.name && file.name->kind == ShardName::Kind::universal) {
      stems.insert(file.path.stem().string());
    }
  }
  for (CheckedFile& file : v.files) {
    if (!file.whole() || file.left_out || !file.shard) continue;
    const std::string prefix(file.shard->archive.prefix());
    if (file.name->kind == ShardName::Kind::universal) {
      if (prefix == file.path.stem() || !stems.contains(prefix)) continue;
    } else {
      const auto saved = parse_shard_name(prefix + ".pt");
      if (!saved || saved->same_rank(*file.name)) continue;
    }
    file.suspect = true;
    v.add(Check::wrong_rank, file, "",
          "was saved as " + prefix + ".pt: another file is in its place");
  }
}

void check_tensors_in_files(Verification& v) {
  std::vector<std::vector<std::string>> unsupported(v.files.size());  // of each file
  std::set<std::pair<std::string, std::string>> reported;             // of file and member
  for (const Finding& finding : v.report.findings) reported.emplace(finding.file, finding.member);
  for_each_index(v.files.size(), [&](size_t i) {
    CheckedFile& file = v.files[i];
    if (!file.whole() || file.left_out || !file.shard) return;
    std::set<std::string> storages;
    StorageFinder finder;
    for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
      try {
        file.shard->archive.tensor(found.value);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::unsupported) {
          unsupported[i].push_back(
              error.within({.file = file.display, .tensor = found.path}).what());
          continue;
        }
        Finding finding = finding_of(file, found, error, finder);
        const bool is_new =
            finding.check == Check::layout || (!reported.contains({file.display, finding.member}) &&
                                               storages.insert(finding.member).second);
        if (is_new) v.add(std::move(finding));
        file.suspect = true;
      }
    }
  });
  note_unsupported(v, unsupported);
}

}  // namespace dsckpt
