#include "format/torch_archive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "support/defects.h"
#include "support/expect_error.h"
#include "support/hand_made.h"
#include "support/plan_runner.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using pickle::Value;

std::string testdata(const std::string& name) {
  return std::string(DSCKPT_TESTDATA) + "/formats/" + name;
}

std::string tensor_bytes(const InputFiles& files, const TensorSource& source) {
  PlanBuilder plan;
  plan.put(plan.add_output("tensor", source.nbytes()), 0, source);
  return test::run_plan(plan.finish(), files).at(0);
}

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    out += "0123456789abcdef"[static_cast<uint8_t>(c) >> 4];
    out += "0123456789abcdef"[static_cast<uint8_t>(c) & 15];
  }
  return out;
}

struct Opened {
  explicit Opened(const std::string& name)
      : archive(TorchArchive::open(files, files.add(testdata(name)))) {}
  InputFiles files;
  TorchArchive archive;
};

class RichArchive : public testing::TestWithParam<const char*> {};

// rich.json is what Python sees in the same object.
TEST_P(RichArchive, EveryTensorIsWhatPythonSees) {
  const Opened opened(GetParam());
  std::ifstream truth_file(testdata("rich.json"));
  const auto truth = nlohmann::json::parse(truth_file);
  ASSERT_GE(truth.size(), 30U);
  for (const auto& [name, want] : truth.items()) {
    SCOPED_TRACE(name);
    const Value root = opened.archive.root();
    const Value value = root.find(name) ? root.at(name) : root.at("types").at(name);
    ASSERT_TRUE(TorchArchive::is_tensor(value));
    const TensorInfo info = opened.archive.info(value);
    EXPECT_EQ(torch_name(info.dtype), want["dtype"].get<std::string>());
    EXPECT_EQ(info.shape, want["shape"].get<Shape>());
    EXPECT_EQ(info.strides, want["stride"].get<Strides>());
    EXPECT_EQ(info.storage_offset, want["offset"].get<int64_t>());
    EXPECT_EQ(info.requires_grad, want["requires_grad"].get<bool>());
    EXPECT_EQ(hex(tensor_bytes(opened.files, opened.archive.tensor(value))),
              want["bytes"].get<std::string>());
  }
}

TEST_P(RichArchive, AttributesAreKept) {
  const Opened opened(GetParam());
  const Value root = opened.archive.root();
  EXPECT_EQ(opened.archive.info(root.at("marked")).attributes.at("ds_id").as_int(), 7);
  EXPECT_EQ(opened.archive.info(root.at("tagged")).attributes.at("note").as_string(), "kept");
  EXPECT_TRUE(opened.archive.info(root.at("flat")).attributes.is_none());
}

TEST_P(RichArchive, ViewsShareTheirStorage) {
  const Opened opened(GetParam());
  const Value root = opened.archive.root();
  const std::string key = opened.archive.info(root.at("flat")).storage_key;
  EXPECT_EQ(opened.archive.info(root.at("view")).storage_key, key);
  EXPECT_EQ(opened.archive.info(root.at("tied")).storage_key, key);
  EXPECT_NE(opened.archive.info(root.at("step")).storage_key, key);
  EXPECT_EQ(root.at("flat").identity(), root.at("tied").identity());
}

TEST_P(RichArchive, ScalarsOfEveryKind) {
  const Opened opened(GetParam());
  const TorchArchive& archive = opened.archive;
  const Value root = archive.root();
  EXPECT_EQ(archive.scalar(root.at("scalar")), -2.5);
  EXPECT_EQ(archive.scalar(root.at("step")), 12.0);
  EXPECT_EQ(archive.scalar(root.at("one_bf16")), 1.5);
  EXPECT_EQ(archive.scalar(root.at("one_fp16")), -0.25);
  EXPECT_EQ(archive.scalar(root.at("plain").at("int")), 3.0);
  EXPECT_EQ(archive.scalar(root.at("plain").at("float")), 1.25);
  EXPECT_EQ(archive.scalar(root.at("plain").at("bool")), 1.0);
  EXPECT_EQ(archive.scalar(root.at("plain").at("text")), std::nullopt);
  EXPECT_EQ(archive.scalar(root.at("flat")), std::nullopt);
  EXPECT_EQ(archive.scalar(root.at("numpy")), std::nullopt);
}

TEST_P(RichArchive, OtherObjectsAreNoTensors) {
  const Opened opened(GetParam());
  const Value root = opened.archive.root();
  for (const char* name : {"size", "numpy", "plain", "types"}) {
    EXPECT_FALSE(TorchArchive::is_tensor(root.at(name))) << name;
    EXPECT_EQ(test::error_kind([&] { opened.archive.info(root.at(name)); }), ErrorKind::corrupt)
        << name;
  }
  EXPECT_EQ(shape_from_pickle(root.at("size")), (Shape{2, 3}));
  EXPECT_THROW(shape_from_pickle(root.at("numpy")), CorruptError);
}

INSTANTIATE_TEST_SUITE_P(TorchArchive, RichArchive,
                         testing::Values("rich.pt", "rich_stream.pt", "rich_legacy.pt"),
                         [](const auto& test) {
                           const std::string name = test.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(TorchArchive, PrefixIsTheNameItWasSavedUnder) {
  EXPECT_EQ(Opened("rich.pt").archive.prefix(), "rich");
  EXPECT_EQ(Opened("rich_stream.pt").archive.prefix(), "archive");
  EXPECT_EQ(Opened("rich_legacy.pt").archive.prefix(), "");
  EXPECT_TRUE(Opened("rich.pt").archive.is_zip());
  EXPECT_FALSE(Opened("rich_legacy.pt").archive.is_zip());
}

// A step count decides what is written, though none of its bytes is copied.
TEST(TorchArchive, ScalarIsCheckedBeforeItIsBelieved) {
  const test::TempFolder folder;
  test::HandMade made;
  const std::filesystem::path whole =
      made.write("step.pt", R"({"step": {"tensor": [1], "first": 7}})");
  std::string bytes = test::read_all(whole);
  const std::string seven("\0\0\xe0\x40", 4);
  const size_t at = bytes.find(seven);
  ASSERT_NE(at, std::string::npos);
  const auto step_of = [&](const std::filesystem::path& path) {
    InputFiles files;
    const TorchArchive archive = TorchArchive::open(files, files.add(path));
    return archive.scalar(archive.root().at("step"));
  };
  EXPECT_EQ(step_of(whole), 7.0);
  bytes[at + 2] ^= 1;
  EXPECT_ERROR(step_of(folder.write("flipped.pt", bytes)), CorruptError,
               "does not match its CRC32");
}

TEST(TorchArchive, ConjugateBitIsRefused) {
  const Opened opened("conjugate.pt");
  EXPECT_EQ(test::error_kind([&] { opened.archive.tensor(opened.archive.root()); }),
            ErrorKind::unsupported);
}

// scalars.json holds what Python's Tensor.item() gives for the same elements.
TEST(TorchArchive, ScalarsOfEveryFloatingTypeAsTorchReadsThem) {
  const Opened opened("scalars.pt");
  std::ifstream truth_file(testdata("scalars.json"));
  const auto truth = nlohmann::json::parse(truth_file);
  ASSERT_EQ(truth.size(), 9U);
  for (const auto& [name, want] : truth.items()) {
    SCOPED_TRACE(name);
    const auto values = opened.archive.root().at(name).as_sequence();
    ASSERT_EQ(values.size(), want.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = opened.archive.scalar(values[i]).value();
      if (want[i].is_number()) {
        EXPECT_EQ(value, want[i].get<double>()) << i;
      } else if (want[i] == "nan") {
        EXPECT_TRUE(std::isnan(value)) << i;
      } else {
        EXPECT_EQ(value, want[i] == "inf" ? HUGE_VAL : -HUGE_VAL) << i;
      }
    }
  }
}

TEST(TorchArchiveWriter, RefusesTensorsOutsideTheirStorage) {
  TorchArchiveWriter writer;
  const auto storage = writer.storage(TensorSource::stored({0, 0, 16}, DType::float32, {4}));
  EXPECT_THROW(writer.tensor(storage, {5}), Error);
  EXPECT_THROW(writer.tensor(storage, {2}, 3), Error);
  EXPECT_THROW(writer.tensor(storage, {2}, -1), Error);
  EXPECT_THROW(writer.tensor(storage, {1}, 5), Error);
}

TEST(TorchArchiveWriter, RefusesARootThatLeavesStoragesOut) {
  TorchArchiveWriter writer;
  const auto a = writer.tensor(TensorSource::stored({0, 0, 4}, DType::float32, {1}));
  const auto b = writer.tensor(TensorSource::stored({0, 0, 4}, DType::float32, {1}));
  writer.document().set_root(writer.document().list({b, a}));
  PlanBuilder plan;
  EXPECT_THROW(std::move(writer).lay_out(plan, "x.bin"), std::logic_error);
}

// The archive that `writer` lays out, opened from a file in `folder`.
TorchArchive written(TorchArchiveWriter writer, InputFiles& files, const test::TempFolder& folder) {
  PlanBuilder plan;
  std::move(writer).lay_out(plan, "out.pt");
  test::run_plan_to(plan.finish(), files, folder.path());
  return TorchArchive::open(files, files.add((folder.path() / "out.pt").string()));
}

TEST(TorchArchiveWriter, ImportsFromSeveralArchivesWithTheSameKeys) {
  const test::TempFolder folder;
  InputFiles files;
  std::vector<TorchArchive> archives;
  TorchArchiveWriter writer;
  const Value root = writer.document().list();
  for (const char* name : {"rich.pt", "rich_legacy.pt", "small.pt"}) {
    archives.push_back(TorchArchive::open(files, files.add(testdata(name))));
    writer.document().append(root, writer.import(archives.back(), archives.back().root()));
  }
  // Again, and a part of it, are the same values.
  const Value rich = archives[0].root();
  EXPECT_EQ(writer.import(archives[0], rich).identity(), root.as_sequence()[0].identity());
  EXPECT_EQ(writer.import(archives[0], rich.at("view")).identity(),
            root.as_sequence()[0].at("view").identity());
  writer.document().set_root(root);

  const TorchArchive copy = written(std::move(writer), files, folder);
  size_t tensors = 0;
  for (size_t i = 0; i < archives.size(); ++i) {
    std::map<std::string, std::string> keys;
    for (const auto& [name, value] : archives[i].root().as_dict().items) {
      if (!TorchArchive::is_tensor(value)) continue;
      SCOPED_TRACE(name.as_string());
      ++tensors;
      const Value copied = copy.root().as_sequence()[i].at(name.as_string());
      const TensorInfo want = archives[i].info(value);
      const TensorInfo got = copy.info(copied);
      EXPECT_EQ(got.dtype, want.dtype);
      EXPECT_EQ(got.shape, want.shape);
      EXPECT_EQ(got.strides, want.strides);
      EXPECT_EQ(got.storage_offset, want.storage_offset);
      EXPECT_EQ(got.requires_grad, want.requires_grad);
      EXPECT_EQ(keys.try_emplace(want.storage_key, got.storage_key).first->second, got.storage_key);
      EXPECT_EQ(tensor_bytes(files, copy.tensor(copied)),
                tensor_bytes(files, archives[i].tensor(value)));
    }
  }
  EXPECT_GE(tensors, 20U);
}

// A file of torch.distributed.checkpoint is many archives, whose storages are all called "0".
TEST(TorchArchiveWriter, ImportsFromSeveralArchivesOfOneFile) {
  const test::TempFolder folder;
  InputFiles files;
  const std::string path = std::string(DSCKPT_TESTDATA) + "/dcp/nested";
  const InputFile metadata(path + "/.metadata");
  const FileId data = files.add(path + "/__0_0.distcp");
  std::vector<TorchArchive> archives;
  TorchArchiveWriter writer;
  const Value root = writer.document().list();
  for (const DcpValue& value : read_dcp_metadata(metadata).values) {
    if (!value.tensor) continue;
    for (const DcpChunk& chunk : value.tensor->chunks) {
      const DcpPlace& place = chunk.place;
      if (place.file != "__0_0.distcp") continue;
      archives.push_back(TorchArchive::open(files, {data, place.offset, place.size}));
      const TorchArchive& archive = archives.back();
      EXPECT_EQ(archive.extent(), (Extent{data, place.offset, place.size}));
      EXPECT_EQ(archive.info(archive.root()).storage_key, "0");
      EXPECT_EQ(archive.info(archive.root()).shape, chunk.sizes);
      writer.document().append(root, writer.import(archive, archive.root()));
    }
  }
  ASSERT_GE(archives.size(), 6U);
  writer.document().set_root(root);
  const TorchArchive copy = written(std::move(writer), files, folder);
  std::set<std::vector<float>> different;
  for (size_t i = 0; i < archives.size(); ++i) {
    const auto values = test::floats_of(files, archives[i].tensor(archives[i].root()));
    EXPECT_EQ(test::floats_of(files, copy.tensor(copy.root().as_sequence()[i])), values);
    different.insert(values);
  }
  EXPECT_GE(different.size(), 6U);
}

TEST(TorchArchive, PartsOfAFileThatAreNoArchives) {
  const test::TempFolder folder;
  InputFiles files;
  const FileId id = files.add(
      folder.write("data", std::string("\x10\0\0\0\0\0\0\0{\"a\":1}", 15) + std::string(100, 'x')));
  EXPECT_ERROR(TorchArchive::open(files, Extent{id, 0, 115}), UnsupportedError, "is safetensors");
  EXPECT_ERROR(TorchArchive::open(files, Extent{id, 20, 40}), CorruptError,
               "data: at 20: no archive of torch.save begins there");
  EXPECT_ERROR(TorchArchive::open(files, Extent{id, 20, 0}), CorruptError, "no archive");
  EXPECT_ERROR(TorchArchive::open(files, Extent{id, 20, 96}), CorruptError, "it is truncated");
  EXPECT_ERROR(TorchArchive::open(files, Extent{id, 116, 1}), CorruptError, "it is truncated");
  EXPECT_ERROR(TorchArchive::open(files, Extent{id, ~uint64_t{0}, ~uint64_t{0}}), CorruptError,
               "it is truncated");
}

TEST(TorchArchiveWriter, RefusesToImportAStorageThatIsNotThere) {
  std::ifstream file(testdata("small.pt"), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  for (size_t at = 0; (at = bytes.find("/data/0", at)) != std::string::npos;) bytes[at + 6] = 'x';
  const test::TempFolder folder;
  InputFiles files;
  const auto archive = TorchArchive::open(files, files.add(folder.write("in.pt", bytes)));
  TorchArchiveWriter writer;
  EXPECT_ERROR(writer.import(archive, archive.root()), CorruptError, "/data/0");
}

}  // namespace
}  // namespace dsckpt
