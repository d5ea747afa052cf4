#include "exec/portion.h"

#include <gtest/gtest.h>

#include <string>

#include "dsckpt/error.h"
#include "plan/tensor_source.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

// True if a process that runs it finds all files that it names.
bool is_whole(const Portion& portion) {
  const CopyPlan& plan = portion.part.plan;
  if (portion.use.of_item.size() != plan.items().size()) return false;
  for (const uint32_t record : portion.use.of_item) {
    if (record != RecordUse::kNone && record >= portion.records.size()) return false;
  }
  for (const RecordUse::ExtraRead& read : portion.use.extra_reads) {
    if (read.record >= portion.records.size()) return false;
    if (read.extent.file >= portion.part.files.size()) return false;
  }
  for (const Digest& digest : plan.digests()) {
    if (digest.out >= portion.part.outputs.size()) return false;
  }
  for (const CopyItem& item : plan.items()) {
    if (item.out >= portion.part.outputs.size()) return false;
    if (static_cast<size_t>(item.from) >= kDTypeCount) return false;
    if (static_cast<size_t>(item.to) >= kDTypeCount) return false;
    if (item.op > Op::low_rank) return false;
    if (item.op == Op::same && item.what >= plan.texts().size()) return false;
    if (item.op == Op::literal && item.source.span(item.rows).end() > plan.literals().size()) {
      return false;
    }
    bool right = true;
    plan.for_each_source(item, [&](const Rows& rows, uint64_t) {
      right = right && rows.file < portion.part.files.size();
    });
    if (!right) return false;
  }
  return true;
}

class PortionTest : public testing::Test {
 protected:
  PortionTest() {
    const FileId a = inputs_.add(folder_.write("a", std::string(1000, 'a')));
    const FileId b = inputs_.add(folder_.write("b", std::string(1000, 'b')));
    const auto stored = [](FileId file, DType type, int64_t count) {
      return TensorSource::stored({file, 8, static_cast<uint64_t>(count) * size_of(type)}, type,
                                  {count});
    };
    PlanBuilder builder;
    builder.add_output("out", 500);
    builder.put_literal(0, 0, "header, and 4");
    builder.put(0, 13, stored(a, DType::float32, 20));
    builder.put(0, 93, stored(b, DType::bfloat16, 20).to(DType::float32));
    builder.put(0, 173,
                TensorSource::mean({stored(a, DType::float32, 20), stored(b, DType::float32, 20)}));
    builder.put(
        0, 253,
        TensorSource::same({stored(a, DType::float32, 20), stored(b, DType::float32, 20)}, "x"));
    builder.put(
        0, 333,
        TensorSource::low_rank_update({.base = stored(a, DType::float32, 20),
                                       .rows = 4,
                                       .columns = 5,
                                       .rank = 2,
                                       .left = FactorView{stored(b, DType::bfloat16, 8), 0, 2, 1},
                                       .right = FactorView{stored(b, DType::float32, 10), 0, 5, 1},
                                       .magnitude = stored(b, DType::float32, 4)}));
    builder.put(0, 413, TensorSource::zeros(DType::uint8, {83}));
    builder.put_literal(0, 496, std::string(4, '\0'));
    builder.add_digest({0, 13, 173, {496}});
    plan_ = builder.finish();
    plan_.validate(test::planned(inputs_));
  }

  test::TempFolder folder_;
  InputFiles inputs_;
  CopyPlan plan_;
};

// It comes from another process.
TEST_F(PortionTest, IsWholeOrRefusedWithAnyByteChangedOrMissing) {
  const RecordChecks checks(plan_, {{{0, 0, 500}, 1, "r0"}, {{1, 0, 500}, 2, "r1"}}, true);
  const Units units(plan_, checks.extra_reads(), 256 << 10);
  const PortionCutter cutter(plan_, units, checks.use(), 256 << 10);
  const std::string bytes = cutter.cut({0, units.batches()}).encode();
  ASSERT_TRUE(is_whole(Portion::decode(bytes)));
  size_t refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    EXPECT_THROW(Portion::decode(bytes.substr(0, at)), CorruptError) << at;
    for (int value = 0; value < 256; ++value) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(value);
      try {
        EXPECT_TRUE(is_whole(Portion::decode(changed))) << at << " is " << value;
      } catch (const CorruptError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, bytes.size() * 64);
}

}  // namespace
}  // namespace dsckpt
