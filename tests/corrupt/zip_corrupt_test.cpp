#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/zip.h"
#include "fuzz/memory_file.h"
#include "support/defects.h"
#include "support/temp_file.h"
#include "support/zip_bytes.h"

namespace dsckpt {
namespace {

std::string testdata(const std::string& name) {
  return test::read_all(std::string(DSCKPT_TESTDATA) + "/formats/" + name);
}

// Every record and its data.
std::map<std::string, std::string> read_zip(const std::string& bytes) {
  const MemoryFile memory(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const InputFile file(memory.path());
  const ZipReader zip = ZipReader::open(file, 0);
  std::map<std::string, std::string> records;
  for (const ZipEntry& entry : zip.entries()) {
    const auto data = zip.read(entry);
    records[std::string(entry.name)] = as_text(data);
  }
  return records;
}

std::optional<Error> error_of(const std::string& bytes) {
  try {
    read_zip(bytes);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST(CorruptZip, TruncatedAtEverySize) {
  for (const char* name : {"small.pt", "stored.zip"}) {
    test::for_each_truncation(testdata(name), [&](const std::string& bytes, size_t size) {
      const auto error = error_of(bytes);
      ASSERT_TRUE(error) << name << " " << size;
      EXPECT_EQ(error->kind(), ErrorKind::corrupt) << error->what();
      EXPECT_NE(std::string(error->what()).find("truncated"), std::string::npos) << error->what();
    });
  }
}

// A flipped bit is refused, or it is one that says nothing about the records and their data (a
// date, padding, a descriptor).
TEST(CorruptZip, NoFlippedBitChangesWhatIsRead) {
  for (const char* name : {"small.pt", "stored.zip"}) {
    const std::string bytes = testdata(name);
    const auto whole = read_zip(bytes);
    size_t refused = 0;
    test::for_each_bit_flip(bytes, 0, bytes.size(), [&](const std::string& damaged, size_t at) {
      try {
        ASSERT_EQ(read_zip(damaged), whole) << name << ": byte " << at;
      } catch (const Error& error) {
        EXPECT_TRUE(error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::unsupported)
            << error.what();
        ++refused;
      }
    });
    EXPECT_GT(refused, bytes.size()) << name;
  }
}

// A copy of records with all bytes around them has no flipped bit that anything tells.
TEST(CorruptZip, AFlippedBitAroundTheDataIsRefusedUnlessNothingUsesIt) {
  for (const char* name : {"small.pt", "stored.zip"}) {
    const std::string bytes = testdata(name);
    const auto check_all = [](const std::string& content) {
      const MemoryFile memory(reinterpret_cast<const uint8_t*>(content.data()), content.size());
      const InputFile file(memory.path());
      const ZipReader zip = ZipReader::open(file, 0);
      for (const ZipEntry& entry : zip.entries()) {
        zip.check_frame(entry);
        zip.check(entry);
      }
      return test::unused_bytes(content, zip);
    };
    const std::set<uint64_t> unused = check_all(bytes);
    EXPECT_LT(unused.size(), bytes.size() / 5);
    test::for_each_bit_flip(bytes, 0, bytes.size(), [&](const std::string& damaged, size_t at) {
      const auto kind = test::error_kind([&] { check_all(damaged); });
      if (unused.contains(at)) return;
      ASSERT_TRUE(kind) << name << ": byte " << at;
      EXPECT_TRUE(kind == ErrorKind::corrupt || kind == ErrorKind::unsupported) << at;
    });
  }
}

enum class Defect {
  compressed,
  encrypted,
  other_compressed_size,
  duplicate_name,
  overlapping_records,
  record_in_directory,
  header_beyond_file,
  nul_in_name,
  other_local_name,
  other_local_flags,
  no_local_signature,
  local_extra_too_long,
  wrong_crc,
  something_before,
  something_after_directory,
  too_many_entries,
  too_few_entries,
  zip64_offset_outside,
  zip64_disagrees,
  many_disks,
  missing_zip64_extra,
  trailing_bytes,
  end_record_in_the_comment,
  name_of_other_case,
  folder_with_data,
  last,
};

struct Damaged {
  std::string bytes;
  ErrorKind kind = ErrorKind::corrupt;
  std::string message;
};

// Offsets in small.pt, found by signature.
Damaged make(Defect defect) {
  std::string zip = testdata("small.pt");
  const size_t directory = zip.find("PK\1\2");
  const size_t second = zip.find("PK\1\2", directory + 4);
  const size_t end64 = zip.rfind("PK\6\6");
  const size_t locator = zip.rfind("PK\6\7");
  const size_t end = zip.rfind("PK\5\6");
  const auto set16 = [&](size_t at, uint16_t v) { std::memcpy(zip.data() + at, &v, sizeof v); };
  const auto set32 = [&](size_t at, uint32_t v) { std::memcpy(zip.data() + at, &v, sizeof v); };
  const auto set64 = [&](size_t at, uint64_t v) { std::memcpy(zip.data() + at, &v, sizeof v); };
  const auto get32 = [&](size_t at) {
    return load_le<uint32_t>(reinterpret_cast<const std::byte*>(zip.data() + at));
  };
  switch (defect) {
    case Defect::compressed:
      return {testdata("deflated.zip"), ErrorKind::unsupported, "compressed (method 8)"};
    case Defect::encrypted:
      set16(directory + 8, 0x0809);
      return {zip, ErrorKind::unsupported, "encrypted"};
    case Defect::other_compressed_size:
      set32(directory + 20, 1);
      return {zip, ErrorKind::corrupt, "stored in 1 byte, but"};
    case Defect::duplicate_name: {
      Damaged plain{testdata("stored.zip"), ErrorKind::corrupt, "two records have this name"};
      size_t at = 0;
      while ((at = plain.bytes.find("top/two", at)) != std::string::npos) {
        plain.bytes.replace(at, 7, "top/one");
      }
      return plain;
    }
    case Defect::overlapping_records:
      set32(directory + 20, get32(directory + 20) + 400);
      set32(directory + 24, get32(directory + 24) + 400);
      return {zip, ErrorKind::corrupt, "where the next one or the directory begins"};
    case Defect::record_in_directory:
      set32(second + 42, static_cast<uint32_t>(directory));
      return {zip, ErrorKind::corrupt, "where the next one or the directory begins"};
    case Defect::header_beyond_file:
      set32(second + 42, 0x7FFFFFFF);
      return {zip, ErrorKind::corrupt, "where the next one or the directory begins"};
    case Defect::nul_in_name:
      zip[directory + 46 + 3] = '\0';
      return {zip, ErrorKind::corrupt, "has a control character"};
    case Defect::other_local_name:
      zip[30] = 'S';
      return {zip, ErrorKind::corrupt, "another name"};
    case Defect::other_local_flags:
      set16(6, 0x0008);
      return {zip, ErrorKind::corrupt, "disagree about method or flags"};
    case Defect::no_local_signature:
      zip[0] = 'Q';
      return {zip, ErrorKind::corrupt, "no local header here"};
    case Defect::local_extra_too_long:
      set16(28, 0xFFFF);
      return {zip, ErrorKind::corrupt, "no room"};
    case Defect::wrong_crc:
      set32(directory + 16, 1);
      return {zip, ErrorKind::corrupt, "CRC32"};
    case Defect::something_before:
      return {"#!/bin/sh\n" + zip, ErrorKind::corrupt, "something was put before"};
    case Defect::something_after_directory:
      zip.insert(end64, "....");
      set64(locator + 4 + 8, end64 + 4);
      return {zip, ErrorKind::corrupt, "does not lie where the end record says"};
    case Defect::too_many_entries:
      set64(end64 + 24, 100);
      set64(end64 + 32, 100);
      set16(end + 8, 100);
      set16(end + 10, 100);
      return {zip, ErrorKind::corrupt, "100 records cannot be listed"};
    case Defect::too_few_entries:
      set64(end64 + 24, 6);
      set64(end64 + 32, 6);
      set16(end + 8, 6);
      set16(end + 10, 6);
      return {zip, ErrorKind::corrupt, "lists more than the 6 records"};
    case Defect::zip64_offset_outside:
      set64(locator + 8, ~uint64_t{0});
      return {zip, ErrorKind::corrupt, "lies outside the file"};
    case Defect::zip64_disagrees:
      set32(end + 12, get32(end + 12) + 1);
      return {zip, ErrorKind::corrupt, "disagree about the directory's size"};
    case Defect::many_disks:
      set32(locator + 16, 2);
      return {zip, ErrorKind::unsupported, "several files"};
    case Defect::missing_zip64_extra:
      set32(directory + 24, 0xFFFFFFFF);
      return {zip, ErrorKind::corrupt, "no zip64 sizes"};
    case Defect::trailing_bytes:
      return {zip + "x", ErrorKind::corrupt, "1 byte behind the end record"};
    case Defect::end_record_in_the_comment: {
      // A search for a comment of the right length takes the first one, torch the second.
      const std::string comment = zip.substr(end) + "JUNK";
      set16(end + 20, static_cast<uint16_t>(comment.size()));
      return {zip + comment, ErrorKind::corrupt, "readers could take another one"};
    }
    case Defect::name_of_other_case: {
      Damaged plain{testdata("stored.zip"), ErrorKind::corrupt, "as the same"};
      size_t at = 0;
      while ((at = plain.bytes.find("top/two", at)) != std::string::npos) {
        plain.bytes.replace(at, 7, "top/ONE");
      }
      return plain;
    }
    case Defect::folder_with_data:
      set32(directory + 38, 0x10);
      return {zip, ErrorKind::corrupt, "marked as a folder"};
    case Defect::last:
      break;
  }
  return {};
}

TEST(CorruptZip, EveryDefectIsNamed) {
  for (int i = 0; i < static_cast<int>(Defect::last); ++i) {
    const Damaged damaged = make(static_cast<Defect>(i));
    const auto error = error_of(damaged.bytes);
    ASSERT_TRUE(error) << "defect " << i << " was not noticed";
    EXPECT_EQ(error->kind(), damaged.kind) << i << ": " << error->what();
    EXPECT_NE(std::string(error->what()).find(damaged.message), std::string::npos)
        << i << ": " << error->what();
  }
}

}  // namespace
}  // namespace dsckpt
