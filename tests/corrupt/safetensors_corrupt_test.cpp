#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <tuple>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/safetensors.h"
#include "fuzz/memory_file.h"
#include "support/defects.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

std::tuple<std::map<std::string, std::string>, size_t> open(const std::string& bytes) {
  const MemoryFile memory(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  InputFiles files;
  const SafetensorsFile file = SafetensorsFile::open(files, files.add(memory.path()));
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_LE(entry.extent.end(), bytes.size());
    EXPECT_EQ(file.tensor(entry).nbytes(), entry.extent.size);
  }
  return {file.metadata(), file.entries().size()};
}

std::string with_header(const std::string& header, size_t data) {
  std::string bytes;
  append_le(bytes, static_cast<uint64_t>(header.size()));
  return bytes + header + std::string(data, 'd');
}

TEST(CorruptSafetensors, TruncatedAtEverySize) {
  const std::string bytes =
      test::read_all(std::string(DSCKPT_TESTDATA) + "/formats/types.safetensors");
  test::for_each_truncation(bytes, [&](const std::string& damaged, size_t size) {
    EXPECT_EQ(test::error_kind([&] { open(damaged); }), ErrorKind::corrupt) << size;
  });
}

TEST(CorruptSafetensors, FlippedBitsOfTheHeaderNeverLeaveTheFile) {
  const std::string bytes =
      test::read_all(std::string(DSCKPT_TESTDATA) + "/formats/small.safetensors");
  const auto header = load_le<uint64_t>(reinterpret_cast<const std::byte*>(bytes.data()));
  size_t refused = 0;
  test::for_each_bit_flip(bytes, 0, 8 + header, [&](const std::string& damaged, size_t at) {
    try {
      open(damaged);  // a changed name, or F32 as I32
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::unsupported)
          << at << ": " << error.what();
      ++refused;
    }
  });
  EXPECT_GT(refused, header * 4);
}

struct Defect {
  const char* header;
  size_t data;
  ErrorKind kind;
  const char* message;
};

constexpr const char* kOne = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";

const Defect kDefects[] = {
    {R"([])", 0, ErrorKind::corrupt, "does not start with {"},
    {R"( {})", 0, ErrorKind::corrupt, "does not start with {"},
    {R"({)", 0, ErrorKind::corrupt, "not valid JSON"},
    {R"({} x)", 0, ErrorKind::corrupt, "not valid JSON"},
    {R"({"a":1})", 0, ErrorKind::corrupt, "a number is out of place"},
    {R"({"a":null})", 0, ErrorKind::corrupt, "null is out of place"},
    {R"({"a":[[[[]]]]})", 0, ErrorKind::corrupt, "an array is out of place"},
    {R"({"a":{"shape":{"b":{}}}})", 0, ErrorKind::corrupt, "an object is out of place"},
    {R"({"a":{"dtype":"F32","shape":[1]}})", 4, ErrorKind::corrupt, "missing"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, ErrorKind::corrupt, "missing"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, ErrorKind::corrupt,
     "a number is out of place"},
    {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, ErrorKind::corrupt,
     "a negative number"},
    {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, ErrorKind::corrupt,
     "the number 1.0"},
    {R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}})", 4,
     ErrorKind::corrupt, "the number 99999999999999999999"},
    {R"({"a":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[0,4]}})", 4,
     ErrorKind::corrupt, ""},
    {R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4, ErrorKind::corrupt,
     "unknown dtype"},
    {R"({"a":{"dtype":"F4","shape":[9],"data_offsets":[0,4]}})", 4, ErrorKind::unsupported,
     "do not fill bytes"},
    {R"({"a":{"dtype":"F4","shape":[],"data_offsets":[0,4]}})", 4, ErrorKind::unsupported,
     "do not fill bytes"},
    {R"({"a":{"dtype":"F4","shape":[6],"data_offsets":[0,4]}})", 4, ErrorKind::corrupt,
     "needs 3 bytes"},
    {R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3, ErrorKind::unsupported,
     "six bits"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, ErrorKind::corrupt,
     "needs 8 bytes"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, ErrorKind::corrupt,
     "do not lie"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4,
     ErrorKind::corrupt, "do not lie"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, ErrorKind::corrupt,
     "belong to no tensor"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     4, ErrorKind::corrupt, "belong to two tensors"},
    {kOne, 5, ErrorKind::corrupt, "after the last tensor"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0061":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
     4, ErrorKind::corrupt, "\"a\" twice"},
    {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
     ErrorKind::corrupt, "\"dtype\" twice"},
    {R"({"__metadata__":{"k":"1","k":"2"}})", 0, ErrorKind::corrupt, "\"k\" twice"},
    {R"({"__metadata__":{},"__metadata__":{}})", 0, ErrorKind::corrupt, "twice"},
    {R"({"__metadata__":{"k":1}})", 0, ErrorKind::corrupt, "a number is out of place"},
    {R"({"__metadata__":{"k":{}}})", 0, ErrorKind::corrupt, "an object is out of place"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, ErrorKind::unsupported,
     "the field \"x\""},
    {"{\"\xff\":{}}", 0, ErrorKind::corrupt, "not valid JSON"},
};

TEST(CorruptSafetensors, EveryDefectIsNamed) {
  EXPECT_NO_THROW(open(with_header(kOne, 4)));
  for (const Defect& defect : kDefects) {
    SCOPED_TRACE(defect.header);
    try {
      open(with_header(defect.header, defect.data));
      ADD_FAILURE() << "was not noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), defect.kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(defect.message), std::string::npos) << error.what();
    }
  }
}

TEST(CorruptSafetensors, NulAfterTheJsonIsRefused) {
  EXPECT_EQ(test::error_kind([&] { open(with_header(kOne + std::string(3, '\0'), 4)); }),
            ErrorKind::corrupt);
}

TEST(CorruptSafetensors, HugeHeaderLengthIsRefusedBeforeItIsRead) {
  std::string bytes = with_header(kOne, 4);
  for (const uint64_t size : {~uint64_t{0}, uint64_t{1} << 40, uint64_t{100'000'001}}) {
    std::memcpy(bytes.data(), &size, sizeof size);
    EXPECT_EQ(test::error_kind([&] { open(bytes); }), ErrorKind::corrupt);
  }
}

TEST(CorruptSafetensors, DeepNestingDoesNotRecurse) {
  EXPECT_EQ(
      test::error_kind([&] { open(with_header("{\"a\":" + std::string(1'000'000, '['), 0)); }),
      ErrorKind::corrupt);
}

}  // namespace
}  // namespace dsckpt
