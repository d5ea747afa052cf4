#include <libdeflate.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/zip.h"
#include "format/zip_records.h"

namespace dsckpt {
namespace {

uint32_t low32(uint64_t value) {
  return static_cast<uint32_t>(std::min(value, zip::kMax32));
}

// Returns the zip64 extra field like miniz, or "" if it is not needed. Its compressed size is 0 in
// the local header, which has, against APPNOTE, the header's own offset too.
std::string zip64_extra(uint64_t usize, uint64_t csize, uint64_t header_offset) {
  std::string values;
  if (usize >= zip::kMax32) {
    append_le(values, usize);
    append_le(values, csize);
  }
  if (header_offset >= zip::kMax32) append_le(values, header_offset);
  std::string extra;
  if (values.empty()) return extra;
  append_le(extra, zip::kZip64Extra);
  append_le(extra, static_cast<uint16_t>(values.size()));
  return extra + values;
}

std::string local_header(const std::string& name, uint16_t flags, uint64_t size, uint64_t offset) {
  std::string extra = zip64_extra(size, 0, offset);
  const uint64_t start = offset + zip::kLocalSize + name.size() + extra.size() + 4;
  const uint64_t padding = round_up(start, zip::kAlignment) - start;
  append_le(extra, zip::kPaddingExtra);
  append_le(extra, static_cast<uint16_t>(padding));
  extra.append(static_cast<size_t>(padding), 'Z');

  std::string out;
  append_le(out, zip::kLocalSignature);
  append_le(out, uint16_t{0});  // version needed
  append_le(out, flags);
  append_le(out, uint16_t{0});  // method
  append_le(out, uint32_t{0});  // time and date
  append_le(out, uint32_t{0});  // CRC32
  append_le(out, uint64_t{0});  // sizes
  append_le(out, static_cast<uint16_t>(name.size()));
  append_le(out, static_cast<uint16_t>(extra.size()));
  return out + name + extra;
}

std::string descriptor(uint32_t crc32, uint64_t size, uint64_t header_offset) {
  std::string out;
  append_le(out, zip::kDescriptorSignature);
  append_le(out, crc32);
  if (size >= zip::kMax32 || header_offset >= zip::kMax32) {
    append_le(out, size);
    append_le(out, size);
  } else {
    append_le(out, static_cast<uint32_t>(size));
    append_le(out, static_cast<uint32_t>(size));
  }
  return out;
}

std::string central_entry(const std::string& name, uint16_t flags, uint32_t crc32, uint64_t size,
                          uint64_t header_offset) {
  const std::string extra = zip64_extra(size, size, header_offset);
  std::string out;
  append_le(out, zip::kCentralSignature);
  append_le(out, uint16_t{0});  // version made by
  append_le(out, uint16_t{0});  // version needed
  append_le(out, flags);
  append_le(out, uint16_t{0});  // method
  append_le(out, uint32_t{0});  // time and date
  append_le(out, crc32);
  append_le(out, low32(size));
  append_le(out, low32(size));
  append_le(out, static_cast<uint16_t>(name.size()));
  append_le(out, static_cast<uint16_t>(extra.size()));
  append_le(out, uint16_t{0});  // comment
  append_le(out, uint16_t{0});  // disk
  append_le(out, uint16_t{0});  // internal attributes
  append_le(out, uint32_t{0});  // external attributes
  append_le(out, low32(header_offset));
  return out + name + extra;
}

std::string end_records(uint64_t entries, uint64_t directory_offset, uint64_t directory_size) {
  std::string out;
  append_le(out, zip::kEnd64Signature);
  append_le(out, zip::kEnd64Size - 12);
  append_le(out, uint16_t{0x031e});  // made by: Unix, 3.0
  append_le(out, uint16_t{45});      // version needed
  append_le(out, uint64_t{0});       // disks
  append_le(out, entries);
  append_le(out, entries);
  append_le(out, directory_size);
  append_le(out, directory_offset);

  append_le(out, zip::kLocatorSignature);
  append_le(out, uint32_t{0});  // disk
  append_le(out, directory_offset + directory_size);
  append_le(out, uint32_t{1});  // disks

  append_le(out, zip::kEndSignature);
  append_le(out, uint32_t{0});  // disks
  const auto entries16 = static_cast<uint16_t>(std::min(entries, zip::kMax16));
  append_le(out, entries16);
  append_le(out, entries16);
  append_le(out, low32(directory_size));
  append_le(out, low32(directory_offset));
  append_le(out, uint16_t{0});  // comment
  return out;
}

}  // namespace

void ZipLayout::add(std::string_view name, std::string bytes) {
  const uint64_t size = bytes.size();
  records_.push_back({std::string(name), std::move(bytes), std::nullopt, size});
}

void ZipLayout::add(std::string_view name, TensorSource data) {
  const uint64_t size = data.nbytes();
  records_.push_back({std::string(name), {}, std::move(data), size});
}

namespace {

// Writes into a plan. Bytes between the data of two sources are collected into few items.
class PlanSink {
 public:
  PlanSink(PlanBuilder& plan, OutputId out) : plan_(plan), out_(out) {}

  void literal(std::string_view bytes) {
    bytes_ += bytes;
    if (bytes_.size() >= kAtOnce) flush();
  }
  void source(const TensorSource& data, std::vector<uint64_t> patches) {
    flush();
    plan_.put(out_, at_, data);
    const uint64_t end = at_ + data.nbytes();
    plan_.add_digest({.out = out_, .begin = at_, .end = end, .patches = std::move(patches)});
    at_ = end;
  }
  void flush() {
    plan_.put_literal(out_, at_, bytes_);
    at_ += bytes_.size();
    bytes_.clear();
  }

 private:
  static constexpr size_t kAtOnce = size_t{1} << 20;
  PlanBuilder& plan_;
  OutputId out_;
  uint64_t at_ = 0;
  std::string bytes_;
};

class FrameSink {
 public:
  explicit FrameSink(ZipLayout::Frame& frame) : frame_(frame) {}

  void literal(std::string_view bytes) {
    (frame_.elements == 0 ? frame_.head : frame_.tail) += bytes;
  }
  void source(const TensorSource& data, std::vector<uint64_t> patches) {
    if (frame_.elements != 0) throw std::logic_error("a frame around several records");
    frame_.elements = data.nbytes();
    frame_.patches = std::move(patches);
  }

 private:
  ZipLayout::Frame& frame_;
};

}  // namespace

// All positions must be known first, since an output has its size from the start.
struct ZipLayout::Placed {
  uint64_t header_offset = 0;
  uint64_t data_offset = 0;
  uint64_t descriptor_offset = 0;  // or the end of the data, without a descriptor
  uint64_t entry_offset = 0;       // in the directory
};

std::vector<ZipLayout::Placed> ZipLayout::place(const std::string& path, uint64_t& end) const {
  std::vector<Placed> placed(records_.size());
  uint64_t offset = 0;
  for (size_t i = 0; i < records_.size(); ++i) {
    const std::string name = full_name(records_[i]);
    if (name.size() > zip::kMax16) {
      throw UnsupportedError({.file = path, .member = name.substr(0, 80) + "..."},
                             "the name is too long for a zip record");
    }
    placed[i].header_offset = offset;
    placed[i].data_offset = offset + local_header(name, 0, records_[i].size, offset).size();
    placed[i].descriptor_offset = checked_add(placed[i].data_offset, records_[i].size);
    offset = placed[i].descriptor_offset;
    if (records_[i].size > 0) {
      offset += descriptor(0, records_[i].size, placed[i].header_offset).size();
    }
  }
  for (size_t i = 0; i < records_.size(); ++i) {
    placed[i].entry_offset = offset;
    offset += central_entry(full_name(records_[i]), 0, 0, records_[i].size, placed[i].header_offset)
                  .size();
  }
  end = offset;
  return placed;
}

// Writes in the order of the offsets, so that the plan need not be sorted.
template <typename Sink>
void ZipLayout::write(const std::vector<Placed>& placed, std::string_view end, Sink& sink) const {
  const auto flags_of = [](const Record& record) {
    return static_cast<uint16_t>(zip::kUtf8Flag | (record.size > 0 ? zip::kDescriptorFlag : 0));
  };
  // 0 is a placeholder that a digest replaces.
  const auto crc_of = [](const Record& record) {
    return record.source ? 0 : libdeflate_crc32(0, record.bytes.data(), record.bytes.size());
  };
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const Placed& at = placed[i];
    sink.literal(local_header(full_name(record), flags_of(record), record.size, at.header_offset));
    if (record.source && record.size > 0) {
      // The CRC32 is the second field of a descriptor, and lies at byte 16 of an entry in the
      // directory.
      in_context({.member = full_name(record)}, [&] {
        sink.source(*record.source, {at.descriptor_offset + 4, at.entry_offset + 16});
      });
    } else {
      sink.literal(record.bytes);
    }
    if (record.size > 0) {
      sink.literal(descriptor(crc_of(record), record.size, at.header_offset));
    }
  }
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    sink.literal(central_entry(full_name(record), flags_of(record), crc_of(record), record.size,
                               placed[i].header_offset));
  }
  sink.literal(end);
}

OutputId ZipLayout::lay_out(PlanBuilder& plan, std::string path) && {
  uint64_t directory_end = 0;
  const std::vector<Placed> placed = place(path, directory_end);
  const std::string end = end_of(placed, directory_end);
  const OutputId out = plan.add_output(std::move(path), directory_end + end.size());

  uint64_t literal_bytes = directory_end + end.size();
  for (const Record& record : records_) literal_bytes -= record.source ? record.size : 0;
  plan.expect_literals(literal_bytes);
  PlanSink sink(plan, out);
  write(placed, end, sink);
  sink.flush();
  return out;
}

ZipLayout::Frame ZipLayout::frame() const {
  uint64_t directory_end = 0;
  const std::vector<Placed> placed = place(prefix_, directory_end);
  Frame frame;
  FrameSink sink(frame);
  write(placed, end_of(placed, directory_end), sink);
  return frame;
}

std::string ZipLayout::end_of(const std::vector<Placed>& placed, uint64_t directory_end) const {
  const uint64_t directory = placed.empty() ? 0 : placed.front().entry_offset;
  return end_records(records_.size(), directory, directory_end - directory);
}

}  // namespace dsckpt
