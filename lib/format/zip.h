// Zip archives as torch writes them: every record stored (method 0), zip64 where needed.
//
// Reader after PKWARE's APPNOTE.TXT 6.3.10; writer byte for byte as torch's PyTorchFileWriter lays
// a file out. Byte layout in FORMATS.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/extent.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// One record of the central directory (APPNOTE 4.3.12).
struct ZipEntry {
  std::string_view name;  // as long as its reader lives
  uint32_t crc32 = 0;
  uint64_t size = 0;    // bytes of data
  uint64_t stored = 0;  // bytes that they take in the file; the same where nothing is deflated
  uint64_t header_offset = 0;  // of the local header
  uint64_t limit = 0;          // where the next record or the directory begins
  uint32_t modified = 0;       // MS-DOS time and date
  uint16_t flags = 0;
  uint16_t method = 0;  // zip::kDeflated, or as it is

  bool is_deflated() const { return method != 0; }
};

// Reads the directory of a zip file. Immutable after open; any thread. Does not own the file.
//
// open() throws CorruptError (with the offset) for anything that is not a whole, consistent zip.
// Examples are a missing end record, a directory outside the file, overlapping records, and sizes
// beyond the file. No bytes may lie before the first record, or between the directory and the end
// records.
//
// It also refuses files that torch, Python and others may understand differently. They have a
// second end record, or one whose comment does not end with the file. Or they have names that
// differ only in case, are longer than torch reads, or have control characters. Or an extra field
// has a second name.
//
// It throws UnsupportedError for compressed or encrypted records and multi-disk archives. A comment
// at the end is fine. Nothing is allocated from a count or a size before it is checked against the
// file's size. Move-only.
class ZipReader {
 public:
  // torch stores its records as they are.
  enum class Records : uint8_t { stored, stored_or_deflated };

  // `file` must outlive the reader.
  static ZipReader open(const InputFile& file, FileId id);
  // A zip that is `part` of the file, like one of torch.distributed.checkpoint's. All offsets count
  // from the start of the file.
  static ZipReader open(const InputFile& file, const Extent& part,
                        Records records = Records::stored);
  ZipReader(ZipReader&&) noexcept = default;
  ZipReader& operator=(ZipReader&&) noexcept = default;
  // True if the file starts with a local header or is an empty zip.
  static bool probe(const InputFile& file);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  // The entry called `name`, or nullptr.
  const ZipEntry* find(std::string_view name) const;

  // False if all records have a CRC32 of 0, as torch.serialization.set_crc32_options(False) writes
  // them. Then nothing can be checked.
  bool has_checksums() const { return has_checksums_; }

  // The place of an entry's data, deflated or not. Reads its local header (APPNOTE 4.3.7) and
  // compares it with the directory. Throws CorruptError if they disagree, or if more than a data
  // descriptor lies between the data and the next record.
  Extent data(const ZipEntry& entry) const;
  // The stored data. Throws CorruptError if its CRC32 is wrong.
  std::vector<std::byte> read(const ZipEntry& entry) const;
  // The same check without keeping the data.
  void check(const ZipEntry& entry) const;
  // data(), with a check of everything else in the file that belongs to `entry`, for callers that
  // copy the whole record. Throws CorruptError if the local header, torch's padding in it or the
  // data descriptor contradict the directory. Versions are not compared: writers raise them on the
  // way.
  Extent check_frame(const ZipEntry& entry) const;

 private:
  struct LocalHeader;
  void keep_names();
  LocalHeader read_header(const ZipEntry& entry) const;
  void check_descriptor(const ZipEntry& entry, uint64_t begin) const;
  void compare(const ZipEntry& entry, const Extent& extent, uint32_t crc) const;
  ZipReader(const InputFile& file, FileId id) : file_(&file), id_(id) {}
  const InputFile* file_;
  FileId id_;
  bool has_checksums_ = true;
  std::unique_ptr<char[]> names_;  // of the entries, one after the other
  std::vector<ZipEntry> entries_;
  std::vector<uint32_t> by_name_;  // indices of entries_, in the order of their names
};

// The zips in a file that consists of whole zips, each beginning where the one before ends, as
// torch.distributed.checkpoint writes them. Else none. Reads the file from end to end.
std::vector<Extent> zips_in_a_row(const InputFile& file, FileId id);

// Lays out a zip file in a plan, as torch's writer would write it. Local headers have flags 0x0808,
// and 0 as CRC and sizes. Data begins at multiples of 64 (an "FB" extra field of 'Z' bytes). A data
// descriptor follows every non-empty record. Then come the central directory, the zip64 end records
// and the end record. The CRCs of records with a source are digests of the plan.
class ZipLayout {
 public:
  // `prefix` is the archive's top folder ("pytorch_model"); records are named prefix/NAME.
  explicit ZipLayout(std::string prefix) : prefix_(std::move(prefix)) {}

  // Adds a record; records are written in this order. A source's elements are written row-major.
  void add(std::string_view name, std::string bytes);
  void add(std::string_view name, TensorSource data);

  // Adds the output `path` to the plan, with every byte of it.
  OutputId lay_out(PlanBuilder& plan, std::string path) &&;

  // A zip without the elements of its one record from a source. It is the same for all sources of
  // that size, wherever in a file the zip lies.
  struct Frame {
    std::string head;               // what comes before the elements; all if there are none
    uint64_t elements = 0;          // bytes of them
    std::string tail;               // what comes behind them
    std::vector<uint64_t> patches;  // where their CRC32 belongs, counted from the start of the zip

    uint64_t size() const { return head.size() + elements + tail.size(); }
  };
  // Throws std::logic_error if several records come from sources.
  Frame frame() const;

 private:
  struct Record {
    std::string name;   // below the prefix
    std::string bytes;  // if there is no source
    std::optional<TensorSource> source;
    uint64_t size = 0;
  };
  struct Placed;
  // The place of each record; `end` becomes the end of the directory.
  std::vector<Placed> place(const std::string& path, uint64_t& end) const;
  // The bytes behind the directory.
  std::string end_of(const std::vector<Placed>& placed, uint64_t directory_end) const;
  template <typename Sink>
  void write(const std::vector<Placed>& placed, std::string_view end, Sink& sink) const;
  std::string full_name(const Record& record) const { return prefix_ + "/" + record.name; }

  std::string prefix_;
  std::vector<Record> records_;
};

}  // namespace dsckpt
