#include "base/text.h"

#include <gtest/gtest.h>

namespace dsckpt {
namespace {

TEST(Printable, KeepsText) {
  for (const char* text :
       {"", "layers.0.weight", "größe \xe2\x82\xac \xf0\x9f\x98\x80", "\xef\xbf\xbd"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, ShowsControlsOfAscii) {
  EXPECT_EQ(printable("a\nb\tc\x1b[2J\x7f"), "a\\nb\\tc\\x1b[2J\\x7f");
  EXPECT_EQ(printable("a\nb\r", Newlines::keep), "a\nb\\x0d");
  EXPECT_EQ(printable(std::string("\0", 1)), "\\x00");
}

// U+009B is CSI, as ESC [ is.
TEST(Printable, ShowsControlsBeyondAscii) {
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\u{009b}2J");
  EXPECT_EQ(printable("\xc2\x80\xc2\x9f\xc2\xa0"), "\\u{0080}\\u{009f}\xc2\xa0");
  EXPECT_EQ(printable("\xe2\x80\xa8"), "\\u{2028}");
}

TEST(Printable, ShowsWhatTurnsText) {
  EXPECT_EQ(printable("\xe2\x80\xae.exe"), "\\u{202e}.exe");
  EXPECT_EQ(printable("\xe2\x81\xa6\xe2\x81\xa9\xd8\x9c\xe2\x80\x8f"),
            "\\u{2066}\\u{2069}\\u{061c}\\u{200f}");
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\x9b\xff"), "\\x9b\\xff");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");           // cut off
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // longer than need be
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

}  // namespace
}  // namespace dsckpt
