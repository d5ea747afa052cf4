#include "format/zip.h"

#include <gtest/gtest.h>

#include "dsckpt/error.h"
#include "support/plan_runner.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

std::string testdata(const std::string& name) {
  return std::string(DSCKPT_TESTDATA) + "/formats/" + name;
}

std::string content(const ZipReader& zip, const std::string& name) {
  const ZipEntry* entry = zip.find(name);
  EXPECT_NE(entry, nullptr) << name;
  if (entry == nullptr) return {};
  const auto bytes = zip.read(*entry);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Written by Python's zipfile: no zip64 records, a comment at the end.
TEST(ZipReader, ReadsPlainZipWithComment) {
  const InputFile file(testdata("stored.zip"));
  EXPECT_TRUE(ZipReader::probe(file));
  const ZipReader zip = ZipReader::open(file, 3);
  ASSERT_EQ(zip.entries().size(), 2U);
  EXPECT_EQ(content(zip, "top/one"), "one");
  EXPECT_EQ(content(zip, "top/two"), "");
  EXPECT_EQ(zip.find("top/three"), nullptr);
  EXPECT_EQ(zip.find("one"), nullptr);
  // 30 bytes of local header and seven of name
  EXPECT_EQ(zip.data(zip.entries()[0]), (Extent{3, 37, 3}));
}

TEST(ZipReader, ReadsRecordsOfTorchInOrder) {
  const InputFile file(testdata("small.pt"));
  const ZipReader zip = ZipReader::open(file, 0);
  std::vector<std::string> names;
  for (const ZipEntry& entry : zip.entries()) names.emplace_back(entry.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"small/data.pkl", "small/.format_version",
                                      "small/.storage_alignment", "small/byteorder", "small/data/0",
                                      "small/version", "small/.data/serialization_id"}));
  EXPECT_EQ(content(zip, "small/version"), "3\n");
  EXPECT_EQ(content(zip, "small/byteorder"), "little");
  for (const ZipEntry& entry : zip.entries()) EXPECT_EQ(zip.data(entry).offset % 64, 0U);
}

TEST(ZipReader, StaysValidWhenMoved) {
  const InputFile file(testdata("small.pt"));
  ZipReader first = ZipReader::open(file, 0);
  const ZipReader zip = std::move(first);
  EXPECT_EQ(content(zip, "small/.storage_alignment"), "64");
}

TEST(ZipReader, ReadsWhatIsAPartOfAFile) {
  const test::TempFolder folder;
  const std::string small = test::read_all(testdata("small.pt"));
  const std::string stored = test::read_all(testdata("stored.zip"));
  const InputFile file(folder.write("row", small + stored + small));
  const std::vector<Extent> zips = zips_in_a_row(file, 5);
  const uint64_t begin = small.size() + stored.size();
  ASSERT_EQ(zips,
            (std::vector<Extent>{
                {5, 0, small.size()}, {5, small.size(), stored.size()}, {5, begin, small.size()}}));
  const InputFile alone(testdata("small.pt"));
  const ZipReader expected = ZipReader::open(alone, 0);
  const ZipReader zip = ZipReader::open(file, zips[2]);
  ASSERT_EQ(zip.entries().size(), expected.entries().size());
  for (const ZipEntry& entry : expected.entries()) {
    const ZipEntry* found = zip.find(entry.name);
    ASSERT_NE(found, nullptr) << entry.name;
    const Extent data = expected.data(entry);
    EXPECT_EQ(zip.check_frame(*found), (Extent{5, begin + data.offset, data.size}));
    EXPECT_EQ(zip.read(*found), expected.read(entry));
  }
}

TEST(ZipReader, FindsZipsInARowOnlyWhereNothingElseIs) {
  const test::TempFolder folder;
  const std::string small = test::read_all(testdata("small.pt"));
  const auto count = [&](const std::string& content) {
    return zips_in_a_row(InputFile(folder.write("row", content)), 0).size();
  };
  EXPECT_EQ(count(small), 1U);
  EXPECT_EQ(count(small + small), 2U);
  for (const std::string& content : {small + "x", "x" + small, small + "x" + small,
                                     small.substr(1) + small, small + small.substr(0, 100)}) {
    EXPECT_EQ(count(content), 0U);
  }
  // The end of a zip that is the data of another one ends nothing.
  ZipLayout outer("outer");
  outer.add("data/0", small);
  PlanBuilder plan;
  std::move(outer).lay_out(plan, "outer.pt");
  const std::string nested = test::run_plan(plan.finish(), InputFiles()).front();
  EXPECT_EQ(count(nested + small), 2U);
}

TEST(ZipReader, ProbeIsFalseForOtherFiles) {
  const test::TempFolder folder;
  EXPECT_FALSE(ZipReader::probe(InputFile(folder.write("empty", ""))));
  EXPECT_FALSE(ZipReader::probe(InputFile(folder.write("short", "PK\3\4"))));
  EXPECT_FALSE(ZipReader::probe(InputFile(testdata("small.safetensors"))));
}

// The layout of records at and beyond 4 GiB. torch.save wrote them for {"t": int8 zeros of 4.3e9,
// "u": arange(7), "e": empty} into big.bin. There are offsets, and the bytes of the local header,
// descriptor and directory entries.
TEST(ZipLayout, BeyondFourGiBAsTorch) {
  constexpr uint64_t kBig = 4'300'000'000;
  ZipLayout layout("big");
  layout.add("data.pkl", std::string(325, 'p'));
  layout.add(".format_version", std::string("1"));
  layout.add(".storage_alignment", std::string("64"));
  layout.add("byteorder", std::string("little"));
  const auto source = [](uint64_t size) {
    return TensorSource::stored({0, 0, size}, DType::uint8, {static_cast<int64_t>(size)});
  };
  layout.add("data/0", source(kBig));
  layout.add("data/1", source(56));
  layout.add("data/2", source(0));
  layout.add("version", std::string("3\n"));
  layout.add(".data/serialization_id", std::string(40, '0'));
  PlanBuilder builder;
  std::move(layout).lay_out(builder, "big.bin");
  const CopyPlan plan = builder.finish();
  plan.validate({{"in", kBig}});

  ASSERT_EQ(plan.outputs().size(), 1U);
  EXPECT_EQ(plan.outputs()[0].size, 4'300'002'185U);
  ASSERT_EQ(plan.digests().size(), 2U);
  EXPECT_EQ(plan.digests()[0].begin, 896U);
  EXPECT_EQ(plan.digests()[0].end, 896 + kBig);
  EXPECT_EQ(plan.digests()[1].begin, 4'300'001'024U);
  EXPECT_EQ(plan.digests()[1].end, 4'300'001'080U);

  // The literal between data/0 and data/1.
  std::string between;
  std::string rest;
  for (const CopyItem& item : plan.items()) {
    if (item.op != Op::literal) continue;
    if (item.dst == 896 + kBig)
      between = plan.literals().substr(item.source.offset, item.source.row_bytes);
    if (item.dst == 4'300'001'080)
      rest = plan.literals().substr(item.source.offset, item.source.row_bytes);
  }
  const auto hex = [](std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
      out += "0123456789abcdef"[static_cast<uint8_t>(c) >> 4];
      out += "0123456789abcdef"[static_cast<uint8_t>(c) & 15];
    }
    return out;
  };
  std::string padding;
  for (int i = 0; i < 48; ++i) padding += "5a";
  EXPECT_EQ(hex(between),
            "504b07080000000000cb4c000100000000cb4c0001000000"
            "504b0304"
            "0000"
            "0808"
            "0000"
            "00000000"
            "00000000"
            "0000000000000000"
            "0a00"
            "4000"
            "6269672f646174612f31"
            "0100080098ce4c0001000000"
            "46423000" +
                padding);
  EXPECT_EQ(hex(rest.substr(0, 24)),
            "504b0708000000003800000000000000"
            "3800000000000000");
  const std::string directory = hex(rest);
  EXPECT_NE(
      directory.find("ffffffffffffffff0a00140000000000000000000000160300006269672f646174612f30"
                     "0100100000cb4c000100000000cb4c0001000000"),
      std::string::npos);
  EXPECT_NE(directory.find("38000000380000000a000c000000000000000000"
                           "0000ffffffff6269672f646174612f310100080098ce4c0001000000"),
            std::string::npos);
  EXPECT_TRUE(directory.ends_with(
      "504b06062c000000000000001e032d00000000000000000009000000000000000900000000000000"
      "6702000000000000c0d04c0001000000"
      "504b06070000000027d34c000100000001000000"
      "504b050600000000090009006702"
      "0000ffffffff0000"));
}

TEST(ZipLayout, HasAFrameThatIsTheSameWhereverTheZipLies) {
  const test::TempFolder folder;
  InputFiles inputs;
  const std::string bytes = "0123456789abcdef";
  const FileId id = inputs.add(folder.write("data", bytes));
  const TensorSource source = TensorSource::stored({id, 0, bytes.size()}, DType::float32, {4});
  const auto layout = [&] {
    ZipLayout zip("archive");
    zip.add("data.pkl", std::string("pickle"));
    zip.add("data/0", source);
    zip.add("version", std::string("3\n"));
    return zip;
  };
  PlanBuilder alone;
  layout().lay_out(alone, "archive.pt");
  const std::string expected = test::run_plan(alone.finish(), inputs).front();

  const ZipLayout::Frame frame = layout().frame();
  ASSERT_EQ(frame.size(), expected.size());
  PlanBuilder plan;
  constexpr uint64_t kBegin = 5;
  const OutputId out = plan.add_output("row", kBegin + frame.size());
  plan.put_literal(out, 0, "front");
  plan.put_literal(out, kBegin, frame.head);
  const uint64_t begin = kBegin + frame.head.size();
  plan.put(out, begin, source);
  plan.put_literal(out, begin + frame.elements, frame.tail);
  plan.add_digest({.out = out,
                   .begin = begin,
                   .end = begin + frame.elements,
                   .patches = {kBegin + frame.patches.at(0), kBegin + frame.patches.at(1)}});
  EXPECT_EQ(test::run_plan(plan.finish(), inputs).front(), "front" + expected);
}

TEST(ZipLayout, HasAFrameOfOneSourceAtMost) {
  ZipLayout zip("archive");
  zip.add("a", std::string("bytes"));
  const ZipLayout::Frame whole = zip.frame();
  EXPECT_EQ(whole.elements, 0U);
  EXPECT_EQ(whole.tail, "");
  EXPECT_TRUE(whole.patches.empty());
  zip.add("b", TensorSource::zeros(DType::float32, {1}));
  zip.add("c", TensorSource::zeros(DType::float32, {1}));
  EXPECT_THROW(zip.frame(), std::logic_error);
}

TEST(ZipLayout, RefusesNamesThatDoNotFit) {
  ZipLayout layout("p");
  layout.add(std::string(65534, 'n'), std::string("x"));
  PlanBuilder builder;
  EXPECT_THROW(std::move(layout).lay_out(builder, "out"), UnsupportedError);
}

}  // namespace
}  // namespace dsckpt
