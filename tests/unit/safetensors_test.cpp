#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dsckpt/error.h"
#include "support/plan_runner.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

std::string testdata(const std::string& name) {
  return std::string(DSCKPT_TESTDATA) + "/formats/" + name;
}

const SafetensorsEntry& entry(const SafetensorsFile& file, const std::string& name) {
  const auto at = std::find_if(file.entries().begin(), file.entries().end(),
                               [&](const SafetensorsEntry& e) { return e.name == name; });
  if (at == file.entries().end()) throw std::runtime_error("no tensor " + name);
  return *at;
}

std::string tensor_bytes(const InputFiles& files, const SafetensorsEntry& e) {
  const auto bytes = files[e.extent.file].read(e.extent.offset, e.extent.size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(SafetensorsFile, ReadsEveryDtypeOfPython) {
  InputFiles files;
  const FileId id = files.add(testdata("types.safetensors"));
  EXPECT_TRUE(SafetensorsFile::probe(files[id]));
  const SafetensorsFile file = SafetensorsFile::open(files, id);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(file.entries().size(), 19U * 2 + 3);
  size_t seen = 0;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (safetensors_name(dtype).empty()) continue;
    if (is_opaque(dtype))
      continue;  // oracle/element_types_test.py: Python writes F4 and cannot read it
    const SafetensorsEntry& e = entry(file, std::string(torch_name(dtype)) + ".1");
    EXPECT_EQ(e.dtype, dtype);
    EXPECT_EQ(e.shape, Shape{3});
    // The script fills each tensor with 1, 2, 3, ... bytewise; bools alternate.
    std::string want;
    for (size_t byte = 1; byte <= 3 * size_of(dtype); ++byte) want += static_cast<char>(byte);
    if (dtype == DType::boolean) want = std::string("\1\0\1", 3);
    EXPECT_EQ(tensor_bytes(files, e), want) << torch_name(dtype);
    EXPECT_EQ(file.tensor(e).dtype(), dtype);
    ++seen;
  }
  EXPECT_EQ(seen, 19U);
  EXPECT_EQ(entry(file, "scalar").shape, Shape{});
  EXPECT_EQ(entry(file, "empty").shape, (Shape{0, 4}));
  EXPECT_EQ(entry(file, "é \"quoted\" \\ \n\x01").shape, Shape{1});
}

TEST(SafetensorsFile, EntriesAreInFileOrder) {
  InputFiles files;
  const SafetensorsFile file =
      SafetensorsFile::open(files, files.add(testdata("types.safetensors")));
  EXPECT_TRUE(std::is_sorted(
      file.entries().begin(), file.entries().end(),
      [](const auto& a, const auto& b) { return a.extent.offset < b.extent.offset; }));
}

TEST(SafetensorsFile, ReadsFileWithoutTensors) {
  InputFiles files;
  const SafetensorsFile file =
      SafetensorsFile::open(files, files.add(testdata("none.safetensors")));
  EXPECT_TRUE(file.entries().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(SafetensorsLayout, GivesBackPythonsBytes) {
  for (const char* name : {"types.safetensors", "small.safetensors", "none.safetensors"}) {
    InputFiles files;
    const SafetensorsFile file = SafetensorsFile::open(files, files.add(testdata(name)));
    std::vector<NamedSource> tensors;
    for (const SafetensorsEntry& e : file.entries()) {
      tensors.insert(tensors.begin(), {e.name, file.tensor(e)});
    }
    PlanBuilder plan;
    lay_out_safetensors(plan, "out", std::move(tensors), file.metadata());
    EXPECT_EQ(test::run_plan(plan.finish(), files).at(0), test::read_all(testdata(name))) << name;
  }
}

TEST(SafetensorsLayout, RefusesWhatTheFormatCannotHold) {
  const auto tensor = [](DType dtype) {
    return TensorSource::stored({0, 0, size_of(dtype)}, dtype, {});
  };
  const auto lay_out = [](std::vector<NamedSource> tensors) {
    PlanBuilder plan;
    lay_out_safetensors(plan, "out", std::move(tensors), {});
  };
  EXPECT_THROW(lay_out({{"a", tensor(DType::complex128)}}), UnsupportedError);
  EXPECT_THROW(lay_out({{"a", tensor(DType::complex32)}}), UnsupportedError);
  EXPECT_THROW(lay_out({{"a", tensor(DType::bits8)}}), UnsupportedError);
  EXPECT_THROW(lay_out({{"a", tensor(DType::float4_e2m1fn_x2)}}),
               UnsupportedError);  // no dimension
  EXPECT_THROW(lay_out({{"\xff", tensor(DType::int8)}}), UnsupportedError);
  EXPECT_THROW(lay_out({{"__metadata__", tensor(DType::int8)}}), InconsistentError);
  EXPECT_THROW(lay_out({{"a", tensor(DType::int8)}, {"a", tensor(DType::int64)}}),
               InconsistentError);
}

}  // namespace
}  // namespace dsckpt
