#include <gtest/gtest.h>

#include "base/text.h"
#include "report/html/page.h"
#include "report/html/text.h"

namespace dsckpt {
namespace {

TEST(HtmlText, MarkupIsText) {
  EXPECT_EQ(html_text("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
}

TEST(HtmlText, CharactersThatDoSomethingAreShown) {
  EXPECT_EQ(html_text("a\n\t\x1b\x7f" + std::string(1, '\0')), "a\\n\\t\\x1b\\x7f\\x00");
  EXPECT_EQ(html_text("\u202e\u2066\u200f"), "\\u{202e}\\u{2066}\\u{200f}");
  EXPECT_EQ(html_text("\u0085\ufffe\U0001ffff"), "\\u{0085}\\u{fffe}\\u{1ffff}");
}

TEST(HtmlText, WhatIsNoUtf8IsReplaced) {
  const std::string mark = "\ufffd";
  EXPECT_EQ(html_text("\xff"), mark);
  EXPECT_EQ(html_text("\xc0\xaf"), mark + mark);             // "/", too long
  EXPECT_EQ(html_text("\xe2\x82"), mark + mark);             // cut off
  EXPECT_EQ(html_text("\xed\xa0\x80"), mark + mark + mark);  // a surrogate
  EXPECT_EQ(html_text("\xf4\x90\x80\x80x"), mark + mark + mark + mark + "x");
  EXPECT_EQ(html_text("gr\u00fc\u00df \u4f60 \U0001f600"), "gr\u00fc\u00df \u4f60 \U0001f600");
}

TEST(HtmlText, LongTextLosesItsMiddleBetweenCharacters) {
  EXPECT_EQ(html_text("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(html_text("abcdefghijk", 4), "ab…jk");
  EXPECT_EQ(html_text("\u4f60\u4f60\u4f60\u4f60", 8), "\u4f60…\u4f60");
}

TEST(HtmlText, NumbersAreGroupedAndShort) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(18446744073709551615U), "18,446,744,073,709,551,615");
  EXPECT_EQ(decimal(12.5, 3), "12.5");
  EXPECT_EQ(decimal(-0.0001, 2), "0");
  EXPECT_EQ(decimal(100, 0), "100");
  EXPECT_EQ(percent(1, 8), "12.5 %");
  EXPECT_EQ(percent(1, 100000), "< 0.1 %");
  EXPECT_EQ(percent(0, 0), "0.0 %");
}

TEST(HtmlReport, NothingToSayIsAPageWithoutSections) {
  const std::string page = html_of({});
  EXPECT_EQ(page.find("<section"), std::string::npos);
  EXPECT_EQ(page.find("<svg"), std::string::npos);
}

// More of everything than fits a page: 4096 ranks, 50000 tensors, as many parts of one.
TEST(HtmlReport, SizeIsBoundedForHugeModels) {
  HtmlReport report;
  const std::string long_name(100, 'n');
  std::vector<NamedTensor> tensors;
  HtmlReport::ShardMap map{long_name, "float32 [50000]", 50000, {}};
  for (int64_t i = 0; i < 50000; ++i) {
    const std::string name = "m" + std::to_string(i % 300) + "." + std::to_string(i) + long_name;
    tensors.push_back(
        {name, "", ParamKind::trainable, TensorSource::zeros(DType::float32, {1000 + i}), ""});
    map.extents.push_back({long_name, {}});
    map.extents.back().extent.first = i;
    map.extents.back().extent.row_elements = 1;
    if (i < 4096) {
      report.ranks.push_back({static_cast<uint32_t>(i), 0, 5, {{"a", 3}, {"b", 2}}});
      report.notes.push_back(long_name);
      report.tensors.push_back({name, "float32", {}});
    }
  }
  report.modules = tree_of(tensors, true);
  report.maps = {map};
  EXPECT_LT(html_of(report).size(), 400'000U);
}

}  // namespace
}  // namespace dsckpt
