#include "format/torch_form.h"

#include <gtest/gtest.h>

#include "support/tar_header.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using namespace std::literals;

TorchForm form_of(const std::string& name) {
  return torch_form(InputFile(std::filesystem::path(DSCKPT_TESTDATA) / "formats" / name));
}

TEST(TorchForm, OfFilesThatTorchWrote) {
  EXPECT_EQ(form_of("small.pt"), TorchForm::zip);
  EXPECT_EQ(form_of("torchscript.pt"), TorchForm::zip);
  EXPECT_EQ(form_of("small_legacy.pt"), TorchForm::pickles);
  EXPECT_EQ(form_of("rich_legacy.pt"), TorchForm::pickles);
  EXPECT_EQ(form_of("small.safetensors"), TorchForm::none);
}

TEST(TorchForm, OfAPickleOfAnyProtocol) {
  const std::string magic(kTorchMagic);
  EXPECT_EQ(torch_form("\x80\2\x8a\x0a" + magic + "."), TorchForm::pickles);
  EXPECT_EQ(torch_form("\x80\4\x95\x0d\0\0\0\0\0\0\0\x8a\x0a"s + magic + "."), TorchForm::pickles);
  EXPECT_EQ(torch_form("L119547037146038801333356L\n."), TorchForm::pickles);
  EXPECT_EQ(torch_form("\x80\2}."), TorchForm::none);
}

// Old tars lack "ustar". torch asks whether Python's tarfile takes it.
TEST(TorchForm, OfATarOfAnyAge) {
  const std::string old = test::with_tar_checksum("storages");
  EXPECT_EQ(torch_form(old), TorchForm::tar);
  EXPECT_EQ(torch_form(std::string_view(old).substr(0, 511)), TorchForm::none);
  std::string wrong = old;
  wrong[0] = 'S';
  EXPECT_EQ(torch_form(wrong), TorchForm::none);
  EXPECT_EQ(torch_form(std::string(512, '\0')), TorchForm::none);
}

// Sums were once made of signed bytes, and can be negative then.
TEST(TorchForm, OfATarWhoseSumIsSigned) {
  EXPECT_EQ(torch_form(test::with_tar_checksum("st\xF6rages", true)), TorchForm::tar);
  const std::string negative =
      test::with_tar_checksum(std::string(100, '\xFF') + "\x80\x80\x80", true);
  EXPECT_EQ(torch_form(negative), TorchForm::tar);
  const std::string very = test::with_tar_checksum(std::string(140, '\x80'), true);
  EXPECT_EQ(very[148], '\xFF');
  EXPECT_EQ(torch_form(very), TorchForm::tar);
}

// torch tries a tar before the pickles, and nothing else once a file begins with a record.
TEST(TorchForm, OfWhatIsTwoThings) {
  const std::string pickles = "\x80\2\x8a\x0a" + std::string(kTorchMagic) + ".";
  EXPECT_EQ(torch_form(test::with_tar_checksum(pickles)), TorchForm::tar);
  EXPECT_EQ(torch_form(test::with_tar_checksum("PK\3\4")), TorchForm::zip);
}

}  // namespace
}  // namespace dsckpt
