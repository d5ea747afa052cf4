#include "io/content_name.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "dsckpt/error.h"
#include "io/input_file.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

TEST(ContentName, IsTheNameWithoutWhatSaysHowItIsStored) {
  struct Case {
    fs::path stored;
    Encoding encoding;
    fs::path content;
  };
  for (const Case& c :
       {Case{"a/x.pt", Encoding::plain, "a/x.pt"},
        Case{"a/x.pt.dspack", Encoding::packed, "a/x.pt"},
        Case{"a/x.pt.zst", Encoding::zstd, "a/x.pt"}, Case{"x.dspack", Encoding::packed, "x"},
        Case{"x.y.dspack.zst", Encoding::zstd, "x.y.dspack"},
        Case{"x.zst.dspack", Encoding::packed, "x.zst"},
        Case{"x.pt.dspac", Encoding::plain, "x.pt.dspac"},
        Case{"x.pt.ZST", Encoding::plain, "x.pt.ZST"},
        Case{"x.dspack/y.pt", Encoding::plain, "x.dspack/y.pt"},
        Case{"xdspack", Encoding::plain, "xdspack"},
        // Nothing would be left.
        Case{"a/.dspack", Encoding::plain, "a/.dspack"}, Case{".zst", Encoding::plain, ".zst"},
        Case{"", Encoding::plain, ""}}) {
    EXPECT_EQ(encoding_of(c.stored), c.encoding) << c.stored;
    EXPECT_EQ(content_path(c.stored), c.content) << c.stored;
  }
}

TEST(ContentName, FindsTheFileThatHoldsAContent) {
  const TempFolder folder;
  const fs::path content = folder.path() / "x.pt";
  EXPECT_EQ(stored_path(content), std::nullopt);
  EXPECT_FALSE(is_stored(content));
  const fs::path zst = folder.write("x.pt.zst", "z");
  EXPECT_EQ(stored_path(content), zst);
  EXPECT_EQ(stored_path(zst), zst);
  EXPECT_TRUE(is_stored(content));
  const fs::path packed = folder.write("x.pt.dspack", "p");
  EXPECT_EQ(stored_path(content), packed);
  folder.write("x.pt", "");
  EXPECT_EQ(stored_path(content), content);
  EXPECT_EQ(stored_path(packed), packed);
}

TEST(ContentName, RefusesTwoFormsOfOneContent) {
  const TempFolder folder;
  const fs::path content = folder.path() / "x.pt";
  EXPECT_NO_THROW(refuse_two_forms(content));
  folder.write("x.pt.zst", "z");
  EXPECT_NO_THROW(refuse_two_forms(content));
  folder.write("x.pt.dspack", "p");
  EXPECT_ERROR(refuse_two_forms(content), InconsistentError,
               "exists as x.pt.dspack and as x.pt.zst");
  folder.write("x.pt", "");
  EXPECT_ERROR(refuse_two_forms(content), InconsistentError, "exists as x.pt and as x.pt.dspack");
}

// Whichever form is there, under either of its names.
TEST(InputFileOfAnotherForm, IsItsContent) {
  const std::string content = test::make_content(test::Content::text, 3000);
  const std::string packed =
      test::packed_bytes({{content, test::raw_frame({}, content)}}, {}, std::string(32, '\1'));
  std::string zstd(ZSTD_compressBound(content.size()), '\0');
  zstd.resize(ZSTD_compress(zstd.data(), zstd.size(), content.data(), content.size(), 1));
  const TempFolder folder;
  folder.write("a.pt.dspack", packed);
  folder.write("b.pt.zst", zstd);
  folder.write("c.pt", content);
  struct Case {
    const char* name;
    Encoding encoding;
    size_t stored;
  };
  for (const Case& c :
       {Case{"a.pt", Encoding::packed, packed.size()},
        Case{"a.pt.dspack", Encoding::packed, packed.size()},
        Case{"b.pt", Encoding::zstd, zstd.size()}, Case{"b.pt.zst", Encoding::zstd, zstd.size()},
        Case{"c.pt", Encoding::plain, content.size()}}) {
    InputFiles files;
    const InputFile& file = files[files.add(folder.path() / c.name, folder.path())];
    EXPECT_EQ(file.encoding(), c.encoding) << c.name;
    EXPECT_EQ(file.stored_size(), c.stored) << c.name;
    EXPECT_EQ(file.size(), content.size()) << c.name;
    EXPECT_EQ(file.path().filename(), std::string(c.name).substr(0, 4));
    EXPECT_EQ(file.display(), std::string(c.name).substr(0, 4));
    EXPECT_EQ(as_text(file.read(0, file.size())), content);
    EXPECT_EQ(as_text(file.read(2990, 10)), content.substr(2990));
    EXPECT_EQ(file.sha256().has_value(), c.encoding == Encoding::packed);
    EXPECT_TRUE(file.is_cached(10));
    EXPECT_ERROR(file.read(2990, 11), CorruptError, "11 bytes expected, 10 left");
    std::vector<std::byte> out(11);
    EXPECT_ERROR(file.read_at(2990, out), IoError, "file ends 1 byte early");
    EXPECT_ERROR(file.read_at(~uint64_t{0} - 3, out), IoError, "at 18446744073709551612: ");
  }
}

TEST(InputFileOfAnotherForm, NamesWhatIsStoredWhereThatIsDamaged) {
  const TempFolder folder;
  const std::string content(100, 'c');
  std::string packed = test::packed_bytes({{content, test::raw_frame({}, content)}});
  packed[50] ^= 1;
  folder.write("a.pt.dspack", packed);
  InputFiles files;
  const FileId id = files.add(folder.path() / "a.pt", folder.path());
  EXPECT_ERROR(files[id].read(0, 1), CorruptError, "a.pt.dspack: at 16: ");
  folder.write("b.pt.dspack", "short");
  EXPECT_ERROR(files.add(folder.path() / "b.pt", folder.path()), CorruptError, "b.pt.dspack: at 5");
  folder.write("b.pt.zst", "short");
  EXPECT_ERROR(files.add(folder.path() / "b.pt.zst", folder.path()), CorruptError,
               "b.pt.zst: at 0");
}

}  // namespace
}  // namespace dsckpt
