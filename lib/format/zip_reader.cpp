#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "format/zip.h"
#include "format/zip_records.h"

namespace dsckpt {
namespace {

// The directory is held in memory while it is parsed: about ten million records.
constexpr uint64_t kMaxDirectory = uint64_t{1} << 30;

struct Directory {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t entries = 0;
};

// The last bytes of the archive, which the end records may occupy.
struct Tail {
  std::vector<std::byte> bytes;
  uint64_t offset = 0;

  ByteReader at(uint64_t position) const {
    return ByteReader(ByteSpan(bytes).subspan(static_cast<size_t>(position - offset)), position);
  }
};

Tail read_tail(const InputFile& file, const Extent& part) {
  constexpr uint64_t kReach = zip::kEndSize + 0xFFFF + zip::kLocatorSize + zip::kEnd64Size;
  // torch writes no comment. Then these bytes also have the directory of a few records: a file may
  // consist of a million such parts.
  constexpr uint64_t kFirst = 1024;
  for (const uint64_t reach : {kFirst, kReach}) {
    const uint64_t size = std::min(part.size, reach);
    Tail tail{file.read(part.end() - size, size), part.end() - size};
    const bool ends_with_record =
        size >= zip::kEndSize &&
        load_le<uint32_t>(tail.bytes.data() + size - zip::kEndSize) == zip::kEndSignature;
    if (ends_with_record || size == part.size || reach == kReach) return tail;
  }
  return {};
}

// APPNOTE 4.3.16. torch and Python's zipfile use the last signature, whatever follows it (miniz
// mz_zip_reader_locate_header_sig, zipfile _EndRecData). Other readers look for a comment of the
// right length, and would find another directory if the lengths differ.
uint64_t find_end_record(const Tail& tail) {
  for (size_t left = tail.bytes.size(); left >= zip::kEndSize; --left) {
    const size_t at = left - zip::kEndSize;
    const std::byte* record = tail.bytes.data() + at;
    if (load_le<uint32_t>(record) != zip::kEndSignature) continue;
    const size_t behind = tail.bytes.size() - left;
    const size_t comment = load_le<uint16_t>(record + 20);
    if (comment == behind) return tail.offset + at;
    throw CorruptError(
        {.offset = tail.offset + at},
        counted(behind, "byte") + " behind the end record, whose comment has " +
            std::to_string(comment) +
            (behind < comment ? ": the file is truncated" : ": readers could take another one"));
  }
  throw CorruptError({.offset = tail.offset + tail.bytes.size()},
                     "no end of central directory: the file is truncated or still being written");
}

// A field of the end record has its value, or "see the zip64 record" (APPNOTE 4.4.1.4).
template <typename Narrow>
void check_agrees(Narrow narrow, uint64_t wide, uint64_t where, const char* what) {
  if (narrow != static_cast<Narrow>(~Narrow{0}) && narrow != wide) {
    throw CorruptError({.offset = where}, std::string("the end records disagree about ") + what);
  }
}

// Offsets in the records count from `begin`, offsets in the result from the start of the file.
Directory read_end_records(const InputFile& file, const Tail& tail, uint64_t begin) {
  const uint64_t end = find_end_record(tail);
  ByteReader record = tail.at(end);
  record.take(4);
  const auto disk = record.read<uint16_t>();
  const auto directory_disk = record.read<uint16_t>();
  const auto entries_here = record.read<uint16_t>();
  const auto entries = record.read<uint16_t>();
  const auto size = record.read<uint32_t>();
  const auto offset = record.read<uint32_t>();

  Directory directory{offset, size, entries};
  uint64_t directory_end = end;
  bool one_disk = disk == 0 && directory_disk == 0 && entries_here == entries;
  const bool has_locator =
      end >= zip::kLocatorSize && end - zip::kLocatorSize >= tail.offset &&
      tail.at(end - zip::kLocatorSize).read<uint32_t>() == zip::kLocatorSignature;
  if (has_locator) {
    const uint64_t locator_offset = end - zip::kLocatorSize;
    ByteReader locator = tail.at(locator_offset);
    locator.take(4);
    const auto end64_disk = locator.read<uint32_t>();
    const uint64_t end64_offset = checked_add(locator.read<uint64_t>(), begin);
    const auto disks = locator.read<uint32_t>();
    if (end64_disk != 0 || disks > 1) {
      throw UnsupportedError({.offset = locator_offset}, "a zip split over several files");
    }
    if (end64_offset > locator_offset || locator_offset - end64_offset < zip::kEnd64Size) {
      throw CorruptError({.offset = locator_offset}, "the zip64 end record lies outside the file");
    }
    const std::vector<std::byte> bytes = file.read(end64_offset, zip::kEnd64Size);
    ByteReader end64(bytes, end64_offset);
    if (end64.read<uint32_t>() != zip::kEnd64Signature) {
      throw CorruptError(
          {.offset = end64_offset},
          "no zip64 end record here: bytes are missing, or something was put before the archive");
    }
    if (end64.read<uint64_t>() != locator_offset - end64_offset - 12) {
      throw CorruptError({.offset = end64_offset}, "the zip64 end record has a wrong length");
    }
    end64.take(4);  // versions
    const auto disk64 = end64.read<uint32_t>();
    const auto directory_disk64 = end64.read<uint32_t>();
    const auto entries_here64 = end64.read<uint64_t>();
    directory.entries = end64.read<uint64_t>();
    directory.size = end64.read<uint64_t>();
    directory.offset = end64.read<uint64_t>();
    directory_end = end64_offset;
    check_agrees(entries, directory.entries, end, "the number of records");
    check_agrees(entries_here, entries_here64, end, "the number of records");
    check_agrees(size, directory.size, end, "the directory's size");
    check_agrees(offset, directory.offset, end, "the directory's offset");
    check_agrees(disk, disk64, end, "the disk");
    check_agrees(directory_disk, directory_disk64, end, "the disk");
    one_disk = disk64 == 0 && directory_disk64 == 0 && entries_here64 == directory.entries;
  }
  if (!one_disk) {
    throw UnsupportedError({.offset = end}, "a zip split over several files");
  }
  directory.offset = checked_add(directory.offset, begin);
  if (directory.offset > directory_end || directory.size != directory_end - directory.offset) {
    throw CorruptError({.offset = end},
                       "the central directory does not lie where the end record says: bytes are "
                       "missing, or something was put before the archive");
  }
  if (directory.entries > directory.size / zip::kCentralSize) {
    throw CorruptError({.offset = end}, counted(directory.entries, "record") +
                                            " cannot be listed in " +
                                            counted(directory.size, "byte"));
  }
  if (directory.size > kMaxDirectory) {
    throw UnsupportedError({.offset = end},
                           "a central directory of " + counted(directory.size, "byte"));
  }
  return directory;
}

// APPNOTE 4.5.3: the field has only those of the three values whose own fields are all ones. They
// must fill `extra` exactly.
void apply_zip64_extra(ByteReader extra, uint64_t* usize, uint64_t* csize, uint64_t* offset) {
  std::vector<uint64_t*> wanted;
  for (uint64_t* field : {usize, csize, offset}) {
    if (field != nullptr && *field == zip::kMax32) wanted.push_back(field);
  }
  while (!extra.at_end()) {
    const auto id = extra.read<uint16_t>();
    const auto size = extra.read<uint16_t>();
    const uint64_t at = extra.offset();
    ByteReader field(extra.take(size), at);
    if (id == zip::kUnicodePathExtra) {
      throw CorruptError({.offset = at}, "another name in an extra field");
    }
    if (id != zip::kZip64Extra) continue;
    for (uint64_t* value : wanted) *value = field.read<uint64_t>();
    wanted.clear();
  }
  if (!wanted.empty()) throw CorruptError({.offset = extra.offset()}, "no zip64 sizes");
}

// Returns false for torch's padding with other content, or with one flipped bit in its id.
bool is_padding_whole(ByteReader extra) {
  while (!extra.at_end()) {
    const auto id = extra.read<uint16_t>();
    const auto size = extra.read<uint16_t>();
    const std::string_view field = as_text(extra.take(size));
    const bool is_filled = field.find_first_not_of('Z') == field.npos;
    if (id == zip::kPaddingExtra && !is_filled) return false;
    if (std::has_single_bit(static_cast<unsigned>(id ^ zip::kPaddingExtra)) && is_filled) {
      return false;
    }
  }
  return true;
}

// APPNOTE 4.3.12
ZipEntry read_entry(ByteReader& reader, ZipReader::Records records) {
  const uint64_t at = reader.offset();
  if (reader.read<uint32_t>() != zip::kCentralSignature) {
    throw CorruptError({.offset = at}, "no directory entry here");
  }
  ZipEntry entry;
  reader.take(4);  // versions
  entry.flags = reader.read<uint16_t>();
  entry.method = reader.read<uint16_t>();
  entry.modified = reader.read<uint32_t>();
  entry.crc32 = reader.read<uint32_t>();
  entry.stored = reader.read<uint32_t>();
  entry.size = reader.read<uint32_t>();
  const auto name_size = reader.read<uint16_t>();
  const auto extra_size = reader.read<uint16_t>();
  const auto comment_size = reader.read<uint16_t>();
  const auto disk = reader.read<uint16_t>();
  reader.take(2);  // internal attributes
  const auto attributes = reader.read<uint32_t>();
  entry.header_offset = reader.read<uint32_t>();
  entry.name = as_text(reader.take(name_size));
  const ByteSpan extra = reader.take(extra_size);
  const uint64_t extra_offset = reader.offset() - extra_size;
  reader.take(comment_size);

  const bool is_odd = std::any_of(entry.name.begin(), entry.name.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
  if (entry.name.empty() || entry.name.size() > zip::kMaxName || is_odd) {
    throw CorruptError({.offset = at},
                       "a record's name is empty, too long or has a control character");
  }
  const auto where = [&] { return Where{.member = std::string(entry.name), .offset = at}; };
  in_context(where, [&] {
    apply_zip64_extra(ByteReader(extra, extra_offset), &entry.size, &entry.stored,
                      &entry.header_offset);
    if (disk != 0) throw UnsupportedError({}, "a zip split over several files");
    if ((entry.flags & zip::kEncryptionFlags) != 0) throw UnsupportedError({}, "is encrypted");
    const bool may_be_deflated = records == ZipReader::Records::stored_or_deflated;
    if (entry.method != 0 && !(may_be_deflated && entry.method == zip::kDeflated)) {
      throw UnsupportedError({}, "is compressed (method " + std::to_string(entry.method) +
                                     "): not a file of torch.save; TorchScript archives "
                                     "(torch.jit.save) have such records");
    }
    const bool is_folder = (attributes & zip::kFolderAttribute) != 0 || entry.name.ends_with('/');
    if (is_folder && entry.size > 0) {
      throw CorruptError({}, "is marked as a folder: torch treats it as one and reads no data");
    }
    if (!entry.is_deflated() && entry.stored != entry.size) {
      throw CorruptError({}, "stored in " + counted(entry.stored, "byte") + ", but said to hold " +
                                 std::to_string(entry.size));
    }
  });
  return entry;
}

// Sets the limit of every entry. Checks that no two records overlap, and that the first begins at
// `begin`.
void set_limits(std::vector<ZipEntry>& entries, uint64_t begin, uint64_t directory_offset) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return entries[a].header_offset < entries[b].header_offset;
  });
  uint64_t limit = directory_offset;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    ZipEntry& entry = entries[*at];
    entry.limit = limit;
    const uint64_t least = checked_add(
        checked_add(entry.header_offset, zip::kLocalSize + entry.name.size()), entry.stored);
    if (least > limit) {
      throw CorruptError({.member = std::string(entry.name), .offset = entry.header_offset},
                         "the record reaches byte " + std::to_string(least) + ", beyond byte " +
                             std::to_string(limit) + " where the next one or the directory begins");
    }
    limit = entry.header_offset;
  }
  if (limit != begin) {
    throw CorruptError({.offset = begin},
                       counted(limit - begin, "byte") + " before the first record");
  }
}

// Returns the indices of `entries` in the order of their names. A checkpoint has a million names
// that begin with the same folder, but the eight bytes after it mostly differ.
std::vector<uint32_t> sorted_by_name(const std::vector<ZipEntry>& entries) {
  struct Key {
    uint64_t front;
    uint32_t index;
  };
  std::string_view folder = entries.empty() ? std::string_view() : entries.front().name;
  for (const ZipEntry& entry : entries) {
    const auto end =
        std::mismatch(folder.begin(), folder.end(), entry.name.begin(), entry.name.end()).first;
    folder = folder.substr(0, static_cast<size_t>(end - folder.begin()));
  }
  std::vector<Key> keys;
  keys.reserve(entries.size());
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const std::string_view name = std::string_view(entries[i].name).substr(folder.size());
    uint64_t front = 0;
    for (size_t k = 0; k < sizeof front; ++k) {
      front = front << 8 | (k < name.size() ? static_cast<unsigned char>(name[k]) : 0);
    }
    keys.push_back({front, i});
  }
  std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
    if (a.front != b.front) return a.front < b.front;
    return std::tie(entries[a.index].name, a.index) < std::tie(entries[b.index].name, b.index);
  });
  std::vector<uint32_t> order;
  order.reserve(keys.size());
  for (const Key& key : keys) order.push_back(key.index);
  return order;
}

// Lowers names like miniz (mz_zip_filename_compare): torch looks records up regardless of case.
std::string lower(std::string_view text) {
  std::string name(text);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

// `by_name`: sorted_by_name().
void check_names_differ(const std::vector<ZipEntry>& entries,
                        const std::vector<uint32_t>& by_name) {
  const auto same = std::adjacent_find(by_name.begin(), by_name.end(), [&](uint32_t a, uint32_t b) {
    return entries[a].name == entries[b].name;
  });
  if (same != by_name.end()) {
    throw CorruptError({.member = std::string(entries[*same].name)}, "two records have this name");
  }
  const auto has_capitals = [](const ZipEntry& entry) {
    return std::any_of(entry.name.begin(), entry.name.end(),
                       [](char c) { return c >= 'A' && c <= 'Z'; });
  };
  // The names of torch.save differ even without regard to case.
  if (std::none_of(entries.begin(), entries.end(), has_capitals)) return;
  KeyedMap<std::string, const ZipEntry*> seen;
  seen.reserve(entries.size());
  for (const ZipEntry& entry : entries) {
    const auto [other, is_new] = seen.emplace(lower(entry.name), &entry);
    if (is_new) continue;
    throw CorruptError(
        {.member = std::string(entry.name)},
        "torch treats this name and '" + std::string(other->second->name) + "' as the same");
  }
}

// Returns how many bytes of the directory were read before the file proved not to be a zip.
uint64_t directory_size(const InputFile& file, const Extent& part) {
  try {
    return read_end_records(file, read_tail(file, part), part.offset).size;
  } catch (const CorruptError&) {
    return 0;
  }
}

}  // namespace

bool ZipReader::probe(const InputFile& file) {
  if (file.size() < zip::kEndSize) return false;
  const std::vector<std::byte> start = file.read(0, 4);
  const auto signature = load_le<uint32_t>(start.data());
  return signature == zip::kLocalSignature || signature == zip::kEndSignature ||
         signature == zip::kEnd64Signature;
}

ZipReader ZipReader::open(const InputFile& file, FileId id) {
  return open(file, {id, 0, file.size()});
}

ZipReader ZipReader::open(const InputFile& file, const Extent& part, Records records) {
  return in_context({.file = file.display()}, [&] {
    const Tail tail = read_tail(file, part);
    const Directory directory = read_end_records(file, tail, part.offset);
    std::vector<std::byte> own;
    ByteSpan bytes;
    if (directory.offset >= tail.offset) {
      bytes = ByteSpan(tail.bytes)
                  .subspan(static_cast<size_t>(directory.offset - tail.offset),
                           static_cast<size_t>(directory.size));
    } else {
      own = file.read(directory.offset, directory.size);
      bytes = own;
    }

    ZipReader zip(file, part.file);
    ByteReader reader(bytes, directory.offset);
    zip.entries_.reserve(static_cast<size_t>(directory.entries));
    for (uint64_t i = 0; i < directory.entries; ++i) {
      ZipEntry& entry = zip.entries_.emplace_back(read_entry(reader, records));
      entry.header_offset = checked_add(entry.header_offset, part.offset);
    }
    if (!reader.at_end()) {
      throw CorruptError({.offset = reader.offset()}, "the central directory lists more than the " +
                                                          counted(directory.entries, "record") +
                                                          " of the end record");
    }
    zip.keep_names();
    set_limits(zip.entries_, part.offset, directory.offset);
    zip.has_checksums_ = std::any_of(zip.entries_.begin(), zip.entries_.end(),
                                     [](const ZipEntry& entry) { return entry.crc32 != 0; });
    zip.by_name_ = sorted_by_name(zip.entries_);
    check_names_differ(zip.entries_, zip.by_name_);
    return zip;
  });
}

std::vector<Extent> zips_in_a_row(const InputFile& file, FileId id) {
  constexpr int kMaxTries = 1000;  // false ends, such as bytes of tensors
  constexpr uint64_t kWindow = 1 << 20;
  constexpr std::string_view kEnd = "PK\5\6";
  std::vector<Extent> zips;
  uint64_t begin = 0;
  uint64_t budget = file.size();  // bytes that may be read in vain
  int tries = 0;
  for (uint64_t at = 0; at < file.size(); at += kWindow) {
    const std::vector<std::byte> window =
        file.read(at, std::min(kWindow + zip::kEndSize - 1, file.size() - at));
    const std::string_view text = as_text(window);
    for (size_t hit = text.find(kEnd); hit < kWindow; hit = text.find(kEnd, hit + 1)) {
      if (hit + zip::kEndSize > text.size()) break;
      const uint64_t end = at + hit + zip::kEndSize + load_le<uint16_t>(window.data() + hit + 20);
      if (at + hit < begin || end > file.size()) continue;
      const Extent zip{id, begin, end - begin};
      try {
        ZipReader::open(file, zip);
        zips.push_back(zip);
        begin = end;
      } catch (const CorruptError&) {
        const uint64_t read = directory_size(file, zip);
        if (++tries == kMaxTries || read > budget) return {};
        budget -= read;
      } catch (const UnsupportedError&) {
        return {};
      }
    }
  }
  if (begin != file.size()) zips.clear();
  return zips;
}

// Copies the names out of the directory, which is freed. One block takes a third of the memory of
// separate strings.
void ZipReader::keep_names() {
  size_t size = 0;
  for (const ZipEntry& entry : entries_) size += entry.name.size();
  names_ = std::make_unique_for_overwrite<char[]>(size);
  char* at = names_.get();
  for (ZipEntry& entry : entries_) {
    std::copy(entry.name.begin(), entry.name.end(), at);
    entry.name = {at, entry.name.size()};
    at += entry.name.size();
  }
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](uint32_t i, std::string_view key) { return entries_[i].name < key; });
  return found == by_name_.end() || entries_[*found].name != name ? nullptr : &entries_[*found];
}

// A local header that agrees with the directory.
struct ZipReader::LocalHeader {
  Extent data;
  uint32_t modified = 0;
  std::vector<std::byte> bytes;
  ByteSpan extra;  // of `bytes`
};

Extent ZipReader::data(const ZipEntry& entry) const {
  return read_header(entry).data;
}

ZipReader::LocalHeader ZipReader::read_header(const ZipEntry& entry) const {
  const Where where{
      .file = file_->display(), .member = std::string(entry.name), .offset = entry.header_offset};
  return in_context(where, [&]() -> LocalHeader {
    // One read usually covers torch's padding too. Only a longer extra field needs another.
    const uint64_t fixed = zip::kLocalSize + entry.name.size();
    const uint64_t header_limit = entry.limit - entry.header_offset - entry.stored;
    std::vector<std::byte> bytes =
        file_->read(entry.header_offset, std::min(header_limit, fixed + 128));
    const uint64_t extra_size = load_le<uint16_t>(bytes.data() + 28);
    if (fixed + extra_size > header_limit) {
      throw CorruptError({}, "the local header leaves no room for the record's data");
    }
    if (fixed + extra_size > bytes.size()) {
      bytes = file_->read(entry.header_offset, fixed + extra_size);
    }
    ByteReader reader(bytes, entry.header_offset);
    if (reader.read<uint32_t>() != zip::kLocalSignature) {
      throw CorruptError({}, "no local header here");
    }
    reader.take(2);  // version needed
    const auto flags = reader.read<uint16_t>();
    const auto method = reader.read<uint16_t>();
    LocalHeader header;
    header.modified = reader.read<uint32_t>();
    const auto crc32 = reader.read<uint32_t>();
    uint64_t csize = reader.read<uint32_t>();
    uint64_t usize = reader.read<uint32_t>();
    const auto name_size = reader.read<uint16_t>();
    reader.take(2);  // extra_size
    if (name_size != entry.name.size() || reader.text(name_size) != entry.name) {
      throw CorruptError({}, "the local header has another name");
    }
    header.extra = reader.take(extra_size);
    if (method != entry.method || flags != entry.flags) {
      throw CorruptError({}, "the local header and the directory disagree about method or flags");
    }
    // This is checked even if the sizes are deferred: the length of the extra field places the
    // data, and nothing else confirms it.
    apply_zip64_extra(ByteReader(header.extra, reader.offset() - extra_size), &usize, &csize,
                      nullptr);
    const bool deferred = (flags & zip::kDescriptorFlag) != 0;
    const auto agrees = [&](uint64_t here, uint64_t there) {
      return here == there || (deferred && here == 0);
    };
    if (!agrees(usize, entry.size) || !agrees(csize, entry.stored) || !agrees(crc32, entry.crc32)) {
      throw CorruptError({}, "the local header and the directory disagree about size or CRC32");
    }
    // Records follow each other without gaps, which confirms the length of the extra field.
    const uint64_t rest = entry.limit - reader.offset() - entry.stored;
    const bool fits = deferred ? rest == zip::kDescriptorSize || rest == zip::kDescriptor64Size ||
                                     (rest == 0 && entry.stored == 0)
                               : rest == 0;
    if (!fits) {
      throw CorruptError(
          {}, counted(rest, "byte") + " between the record's data and " + "the next record");
    }
    header.data = {id_, reader.offset(), entry.stored};
    header.bytes = std::move(bytes);
    return header;
  });
}

// APPNOTE 4.3.9
void ZipReader::check_descriptor(const ZipEntry& entry, uint64_t begin) const {
  const uint64_t size = entry.limit - begin;
  if (size == 0) return;
  const std::vector<std::byte> bytes = file_->read(begin, size);
  ByteReader reader(bytes, begin);
  const auto signature = reader.read<uint32_t>();
  const auto crc = reader.read<uint32_t>();
  const bool is_narrow = size == zip::kDescriptorSize;
  const auto next = [&] { return is_narrow ? reader.read<uint32_t>() : reader.read<uint64_t>(); };
  const uint64_t stored = next();
  const uint64_t whole = next();
  if (signature == zip::kDescriptorSignature && crc == entry.crc32 && stored == entry.stored &&
      whole == entry.size) {
    return;
  }
  throw CorruptError(
      {.file = file_->display(), .member = std::string(entry.name), .offset = begin},
      "the CRC32 or size in the descriptor behind the record is not the directory's");
}

Extent ZipReader::check_frame(const ZipEntry& entry) const {
  const LocalHeader header = read_header(entry);
  const Where where{
      .file = file_->display(), .member = std::string(entry.name), .offset = entry.header_offset};
  if (header.modified != entry.modified) {
    throw CorruptError(where, "the local header and the directory disagree about the time");
  }
  if (!is_padding_whole(ByteReader(header.extra, entry.header_offset))) {
    throw CorruptError(where, "the padding before the data is damaged");
  }
  check_descriptor(entry, header.data.end());
  return header.data;
}

std::vector<std::byte> ZipReader::read(const ZipEntry& entry) const {
  const Extent extent = data(entry);
  std::vector<std::byte> bytes = file_->read(extent.offset, extent.size);
  compare(entry, extent, crc32(0, bytes));
  return bytes;
}

void ZipReader::check(const ZipEntry& entry) const {
  constexpr uint64_t kAtOnce = 1 << 20;
  const Extent extent = data(entry);
  uint32_t crc = 0;
  for (uint64_t at = extent.offset; at < extent.end(); at += kAtOnce) {
    crc = crc32(crc, file_->read(at, std::min(kAtOnce, extent.end() - at)));
  }
  compare(entry, extent, crc);
}

void ZipReader::compare(const ZipEntry& entry, const Extent& extent, uint32_t crc) const {
  if (!has_checksums_ || crc == entry.crc32) return;
  throw CorruptError(
      {.file = file_->display(), .member = std::string(entry.name), .offset = extent.offset},
      "the data does not match its CRC32: the file was damaged after it was written");
}

}  // namespace dsckpt
