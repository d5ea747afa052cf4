// The parts of archives that ckpt-pack strip leaves: of generated ones, whose bytes are counted one
// by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "format/meta_tensor.h"
#include "format/torch_archive.h"
#include "format/trimmed_storages.h"
#include "support/expect_error.h"
#include "support/plan_runner.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::Value;

std::string bytes_of(const InputFiles& files, const TensorSource& source) {
  PlanBuilder plan;
  plan.put(plan.add_output("tensor", source.nbytes()), 0, source);
  return test::run_plan(plan.finish(), files).at(0);
}

// A view of one of the storages.
struct View {
  size_t storage;
  Shape shape;
  Strides strides;
  int64_t offset;

  // The elements of the storage that it has.
  std::vector<int64_t> elements() const {
    std::vector<int64_t> all{offset};
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      std::vector<int64_t> next;
      for (const int64_t at : all) {
        for (int64_t i = 0; i < shape[dim]; ++i) next.push_back(at + i * strides[dim]);
      }
      all = std::move(next);
    }
    return all;
  }
};

// A file with tensors, as a list, and the same file trimmed.
class Archives {
 public:
  explicit Archives(DType dtype = DType::int32) : dtype_(dtype) {
    std::string raw(kBytes, '\0');
    for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<char>(i * 37 % 251);
    folder_.write("raw", raw);
    raw_ = files_.add(folder_.path() / "raw");
  }

  size_t add_storage(int64_t elements) {
    const uint64_t size = static_cast<uint64_t>(elements) * size_of(dtype_);
    const uint64_t offset = used_;
    used_ += size;
    sizes_.push_back(elements);
    writer_storages_.push_back(
        writer_.storage(TensorSource::stored({raw_, offset, size}, dtype_, {elements})));
    return sizes_.size() - 1;
  }
  int64_t elements_in(size_t storage) const { return sizes_[storage]; }

  void add_view(const View& view) {
    views_.push_back(view);
    tensors_.push_back(writer_.tensor(writer_storages_[view.storage], view.shape, view.offset,
                                      view.strides, view.offset % 2 == 1));
  }
  const std::vector<View>& views() const { return views_; }
  std::vector<Value>& tensors() { return tensors_; }

  const TorchArchive& saved() {
    if (saved_) return *saved_;
    writer_.document().set_root(writer_.document().list(tensors_));
    return write(std::move(writer_), "saved.pt", saved_);
  }
  const TorchArchive& trimmed(const std::vector<Value>& dropped = {}) {
    const Value root = saved().root();
    result_ = trim_storages(saved(), root, dropped);
    TorchArchiveWriter writer;
    writer.document().set_root(writer.import(saved(), root, result_.changes));
    return write(std::move(writer), "trimmed.pt", trimmed_);
  }
  const TrimmedStorages& result() const { return result_; }
  const InputFiles& files() const { return files_; }

 private:
  static constexpr size_t kBytes = 1 << 16;

  const TorchArchive& write(TorchArchiveWriter writer, const std::string& name,
                            std::optional<TorchArchive>& archive) {
    PlanBuilder plan;
    std::move(writer).lay_out(plan, name);
    test::run_plan_to(plan.finish(), files_, folder_.path());
    archive.emplace(TorchArchive::open(files_, files_.add(folder_.path() / name)));
    return *archive;
  }

  test::TempFolder folder_;
  InputFiles files_;
  FileId raw_ = 0;
  DType dtype_;
  TorchArchiveWriter writer_;
  std::vector<TorchArchiveWriter::StorageId> writer_storages_;
  std::vector<int64_t> sizes_;
  uint64_t used_ = 0;
  std::vector<View> views_;
  std::vector<Value> tensors_;
  std::optional<TorchArchive> saved_;
  std::optional<TorchArchive> trimmed_;
  TrimmedStorages result_;
};

View random_view(std::mt19937& random, size_t storage, int64_t elements) {
  const auto below = [&](int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(random);
  };
  View view{.storage = storage, .shape = {}, .strides = {}, .offset = below(elements + 1)};
  int64_t left = elements - view.offset;
  if (left == 0 || below(12) == 0) return {storage, {0, below(3)}, {1, 1}, view.offset};
  for (int64_t dims = below(4); dims > 0; --dims) {
    const int64_t stride = below(5) == 0 ? 0 : 1 + below(std::max<int64_t>(1, left / 3));
    const int64_t most = stride == 0 ? 3 : (left - 1) / stride + 1;
    const int64_t size = 1 + below(std::min<int64_t>(most, 6));
    left -= stride * (size - 1);
    view.shape.push_back(size);
    view.strides.push_back(stride);
  }
  return view;
}

TEST(TrimmedStorages, RandomViewsKeepTheirValuesAndShareAsTheyDid) {
  size_t smaller = 0;
  size_t dense = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Archives archives(seed % 3 == 0 ? DType::uint8 : seed % 3 == 1 ? DType::int32 : DType::float64);
    const size_t storages = 1 + random() % 3;
    for (size_t i = 0; i < storages; ++i) {
      const size_t storage = archives.add_storage(1 + static_cast<int64_t>(random() % 90));
      for (size_t views = 1 + random() % 4; views > 0; --views) {
        archives.add_view(random_view(random, storage, archives.elements_in(storage)));
      }
    }
    const TorchArchive& saved = archives.saved();
    const TorchArchive& trimmed = archives.trimmed();
    std::map<std::string, std::string> key_of;
    std::map<std::string, std::set<int64_t>> reached;
    std::map<std::string, std::set<int64_t>> spanned;
    for (size_t i = 0; i < archives.views().size(); ++i) {
      const Value before = saved.root().as_sequence()[i];
      const Value after = trimmed.root().as_sequence()[i];
      const TensorInfo old = saved.info(before);
      const TensorInfo now = trimmed.info(after);
      EXPECT_EQ(now.shape, old.shape);
      EXPECT_EQ(now.dtype, old.dtype);
      EXPECT_EQ(now.requires_grad, old.requires_grad);
      EXPECT_EQ(bytes_of(archives.files(), trimmed.tensor(after)),
                bytes_of(archives.files(), saved.tensor(before)));
      const auto [found, is_new] = key_of.emplace(old.storage_key, now.storage_key);
      EXPECT_EQ(found->second, now.storage_key);
      const View& view = archives.views()[i];
      if (numel(view.shape) == 0) continue;
      const std::vector<int64_t> elements = view.elements();
      reached[old.storage_key].insert(elements.begin(), elements.end());
      const auto [first, last] = std::minmax_element(elements.begin(), elements.end());
      for (int64_t at = *first; at <= *last; ++at) spanned[old.storage_key].insert(at);
    }
    const auto bytes = [&](const std::map<std::string, std::set<int64_t>>& elements) {
      uint64_t count = 0;
      for (const auto& entry : elements) count += entry.second.size();
      return count * size_of(saved.info(saved.root().as_sequence()[0]).dtype);
    };
    uint64_t left = 0;
    for (const Extent& storage : trimmed.storages()) left += storage.size;
    EXPECT_EQ(left, archives.result().after);
    EXPECT_GE(left, bytes(reached));
    EXPECT_LE(left, bytes(spanned));
    smaller += left < archives.result().before;
    dense += left < bytes(spanned);
    const TrimmedStorages again = trim_storages(trimmed, trimmed.root(), {});
    EXPECT_EQ(again.after, left);
    EXPECT_TRUE(again.changes.storages.empty());
  }
  EXPECT_GT(smaller, 300U);
  EXPECT_GT(dense, 50U);
}

TEST(TrimmedStorages, RowsOfALoneViewMoveTogether) {
  Archives archives;
  const size_t storage = archives.add_storage(100);
  archives.add_view({storage, {3, 4}, {1, 10}, 20});  // transposed, with gaps of 7
  const TorchArchive& trimmed = archives.trimmed();
  EXPECT_EQ(archives.result().after, 12 * 4U);
  const TensorInfo info = trimmed.info(trimmed.root().as_sequence()[0]);
  EXPECT_EQ(info.strides, (Strides{1, 3}));
  EXPECT_EQ(info.storage_offset, 0);
}

TEST(TrimmedStorages, WhatLiesBetweenViewsGoesAndTheirStepsStay) {
  Archives archives;
  const size_t storage = archives.add_storage(100);
  archives.add_view({storage, {2, 3}, {10, 1}, 50});
  archives.add_view({storage, {4}, {1}, 58});  // reaches into the second row
  archives.add_view({storage, {5}, {1}, 5});
  archives.add_view({storage, {0}, {1}, 77});
  const TorchArchive& trimmed = archives.trimmed();
  EXPECT_EQ(archives.result().after, (5 + 13) * 4U);
  const auto tensors = trimmed.root().as_sequence();
  EXPECT_EQ(trimmed.info(tensors[0]).strides, (Strides{10, 1}));
  EXPECT_EQ(trimmed.info(tensors[0]).storage_offset, 5);
  EXPECT_EQ(trimmed.info(tensors[1]).storage_offset, 13);
  EXPECT_EQ(trimmed.info(tensors[2]).storage_offset, 0);
}

TEST(TrimmedStorages, DroppedTensorsLeaveTypeAndShape) {
  Archives archives(DType::float64);
  const size_t first = archives.add_storage(20);
  const size_t second = archives.add_storage(30);
  archives.add_view({first, {4, 5}, {5, 1}, 0});
  archives.add_view({second, {30}, {1}, 0});
  archives.add_view({first, {2}, {1}, 1});
  const auto tensors = archives.saved().root().as_sequence();
  const TorchArchive& trimmed = archives.trimmed({tensors[0], tensors[1]});
  EXPECT_EQ(archives.result().after, 2 * 8U);
  EXPECT_EQ(trimmed.storages().size(), 1U);
  const auto left = trimmed.root().as_sequence();
  EXPECT_FALSE(TorchArchive::is_tensor(left[0]));
  const MetaTensor meta = meta_tensor(left[0]);
  EXPECT_EQ(meta.dtype, DType::float64);
  EXPECT_EQ(meta.shape, (Shape{4, 5}));
  EXPECT_EQ(meta.strides, (Strides{5, 1}));
  EXPECT_EQ(meta_tensor(left[1]).shape, Shape{30});
  EXPECT_EQ(trimmed.info(left[2]).requires_grad, true);
}

TEST(TrimmedStorages, ADroppedTensorThatIsAlsoElsewhereStays) {
  Archives archives;
  const size_t storage = archives.add_storage(20);
  archives.add_view({storage, {20}, {1}, 0});
  archives.tensors().push_back(archives.tensors().front());
  const auto tensors = archives.saved().root().as_sequence();
  const TrimmedStorages once =
      trim_storages(archives.saved(), archives.saved().root(), {tensors[0]});
  EXPECT_TRUE(once.changes.dropped.empty());
  EXPECT_EQ(once.after, 80U);
  const TrimmedStorages both =
      trim_storages(archives.saved(), archives.saved().root(), {tensors[0], tensors[1]});
  EXPECT_EQ(both.changes.dropped.size(), 1U);
  EXPECT_EQ(both.after, 0U);
}

TEST(MetaTensor, WhatIsNoneIsRefused) {
  Document document;
  const auto made_of = [&](std::vector<Value> arguments) {
    return document.object(pickle::ObjectNode::Made::reduce,
                           document.global("torch._utils", "_rebuild_meta_tensor_no_storage"),
                           document.tuple(std::move(arguments)));
  };
  const Value sizes = document.tuple({Document::integer(3)});
  const Value type = document.global("torch", "bfloat16");
  const Value no = Document::boolean(false);
  EXPECT_EQ(meta_tensor(made_of({type, sizes, sizes, no})).dtype, DType::bfloat16);
  EXPECT_FALSE(is_meta_tensor(document.string("tensor")));
  EXPECT_ERROR(meta_tensor(document.string("tensor")), CorruptError, "not a meta tensor");
  EXPECT_ERROR(meta_tensor(made_of({type, sizes, sizes})), CorruptError, "with 3 arguments");
  EXPECT_ERROR(meta_tensor(made_of({document.global("torch", "quint8"), sizes, sizes, no})),
               UnsupportedError, "torch.quint8");
  EXPECT_ERROR(meta_tensor(made_of({type, sizes, document.tuple({}), no})), CorruptError,
               "sizes and strides");
  EXPECT_ERROR(meta_tensor(made_of({type, document.tuple({Document::integer(-1)}), sizes, no})),
               CorruptError, "negative");
  const Value huge = document.tuple({Document::integer(int64_t{1} << 62), Document::integer(8)});
  EXPECT_ERROR(meta_tensor(made_of({type, huge, huge, no})), CorruptError, "");
}

}  // namespace
}  // namespace dsckpt
