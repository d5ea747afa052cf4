#include <libdeflate.h>

#include <algorithm>
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

// The zip64 extra field as miniz writes it, "" if nothing needs it. In the local header miniz gives
// the compressed size as 0 and, against APPNOTE, the header's own offset.
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
  records_.push_back({prefix_ + "/" + std::string(name), std::move(bytes), std::nullopt, size});
}

void ZipLayout::add(std::string_view name, TensorSource data) {
  const uint64_t size = data.nbytes();
  records_.push_back({prefix_ + "/" + std::string(name), {}, std::move(data), size});
}

OutputId ZipLayout::lay_out(PlanBuilder& plan, std::string path) && {
  struct Placed {
    uint16_t flags = 0;
    uint64_t header_offset = 0;
    uint64_t data_offset = 0;
    uint32_t crc32 = 0;  // 0 where a digest will fill it in
    std::vector<uint64_t> crc_places;
  };
  // Everything between the data of two sources is one literal.
  std::vector<std::pair<uint64_t, std::string>> literals{{0, ""}};
  std::vector<Placed> placed;
  uint64_t offset = 0;
  const auto literal = [&](std::string_view bytes) {
    literals.back().second += bytes;
    offset += bytes.size();
  };

  for (const Record& record : records_) {
    if (record.name.size() > zip::kMax16) {
      throw UnsupportedError({.file = path, .member = record.name.substr(0, 80) + "..."},
                             "the name is too long for a zip record");
    }
    Placed& place = placed.emplace_back();
    place.flags = zip::kUtf8Flag;
    if (record.size > 0) place.flags |= zip::kDescriptorFlag;
    place.header_offset = offset;
    literal(local_header(record.name, place.flags, record.size, offset));
    place.data_offset = offset;
    if (record.source) {
      if (record.size > 0) {
        offset = checked_add(offset, record.size);
        literals.push_back({offset, ""});
      }
    } else {
      place.crc32 = libdeflate_crc32(0, record.bytes.data(), record.bytes.size());
      literal(record.bytes);
    }
    if (record.size > 0) {
      place.crc_places.push_back(offset + 4);
      literal(descriptor(place.crc32, record.size, place.header_offset));
    }
  }

  const uint64_t directory_offset = offset;
  for (size_t i = 0; i < records_.size(); ++i) {
    Placed& place = placed[i];
    place.crc_places.push_back(offset + 16);
    literal(central_entry(records_[i].name, place.flags, place.crc32, records_[i].size,
                          place.header_offset));
  }
  literal(end_records(records_.size(), directory_offset, offset - directory_offset));

  const OutputId out = plan.add_output(std::move(path), offset);
  // In the order of the offsets, so that the plan has nothing to sort.
  auto literal_at = literals.begin();
  const auto put_literal = [&] {
    plan.put_literal(out, literal_at->first, literal_at->second);
    ++literal_at;
  };
  put_literal();
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    if (!record.source || record.size == 0) continue;
    const uint64_t begin = placed[i].data_offset;
    plan.put(out, begin, *record.source);
    put_literal();
    plan.add_digest({.out = out,
                     .begin = begin,
                     .end = begin + record.size,
                     .patches = std::move(placed[i].crc_places)});
  }
  return out;
}

}  // namespace dsckpt
