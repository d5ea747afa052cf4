#include "base/byte_source.h"

#include <gtest/gtest.h>

#include <string>

#include "io/file_source.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

std::string read(const ByteSource& source, uint64_t offset, uint64_t size) {
  return std::string(as_text(source.read(offset, size)));
}

// The same of memory and of a file.
void expect_views(const ByteSource& source) {
  EXPECT_EQ(source.size(), 10u);
  EXPECT_EQ(read(source, 0, 10), "0123456789");
  EXPECT_EQ(read(source, 7, 100), "789");
  EXPECT_EQ(read(source, 10, 1), "");
  EXPECT_EQ(read(source, ~uint64_t{0}, 1), "");

  const ByteSource middle = source.part(2, 5).from(1);
  EXPECT_EQ(middle.size(), 4u);
  EXPECT_EQ(read(middle, 0, 100), "3456");
  EXPECT_EQ(read(middle, 3, ~uint64_t{0}), "6");
  EXPECT_EQ(read(middle.part(1, 100), 0, 100), "456");
  EXPECT_EQ(source.from(11).size(), 0u);
  EXPECT_EQ(read(source.from(11), 0, 1), "");
}

TEST(ByteSource, ViewsMemory) {
  expect_views(ByteSource(as_byte_span("0123456789")));
}

TEST(ByteSource, ViewsAFile) {
  const test::TempFolder folder;
  const InputFile file(folder.write("bytes", "0123456789"));
  expect_views(source_of(file));
}

}  // namespace
}  // namespace dsckpt
