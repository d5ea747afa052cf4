#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "exec/executor.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/random_inputs.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using enum DType;
using test::flat;
using test::MemorySink;

using test::kMiB;

struct Stop {};

class ExecutorResume : public testing::Test {
 protected:
  // Small outputs around two that are everybody's, one of them with digests; casts, means, and
  // records that are read whole, in part, and in rows.
  ExecutorResume() {
    for (size_t i = 0; i < 3; ++i) {
      contents_.push_back(test::random_bytes(24 * kMiB, i));
      inputs_.add(folder_.write(std::to_string(i), contents_.back()));
    }
    PlanBuilder builder;
    builder.put(builder.add_output("small", 3000), 0, flat(0, 0, uint8, 3000));
    builder.add_output("empty", 0);
    const OutputId zip = builder.add_output("zip", 20 * kMiB + 16);
    for (uint64_t i = 0; i < 4; ++i) {
      const uint64_t begin = 5 * kMiB * i;
      builder.put(zip, begin, flat(1, begin, uint8, 5 * kMiB));
      builder.put_literal(zip, 20 * kMiB + 4 * i, std::string_view("\0\0\0\0", 4));
      builder.add_digest({zip, begin, begin + 5 * kMiB, {20 * kMiB + 4 * i}});
    }
    for (uint64_t i = 0; i < 5; ++i) {
      builder.put(builder.add_output("cast" + std::to_string(i), 4000), 0,
                  flat(0, 10'000 * i, bfloat16, 1000).to(float32));
    }
    const OutputId rows = builder.add_output("rows", 18 * kMiB);
    builder.put(rows, 0,
                TensorSource::stored({2, 4, 18 * kMiB}, uint8, {2, 9 * static_cast<int64_t>(kMiB)},
                                     {9 * static_cast<int64_t>(kMiB), 1}));
    plan_ = builder.finish();
    plan_.validate(test::planned(inputs_));
    options_.records = {record(0, 0, kMiB), record(1, 0, 9 * kMiB), record(1, 9 * kMiB, 11 * kMiB),
                        record(2, 0, 18 * kMiB + 4)};
  }

  InputRecord record(FileId file, uint64_t offset, uint64_t size) const {
    return {{file, offset, size},
            crc32(0, as_byte_span(contents_[file]).subspan(offset, size)),
            "data/" + std::to_string(file) + "+" + std::to_string(offset)};
  }

  static uint64_t done(const RunState& state) {
    uint64_t sum = 0;
    for (const BatchRange& range : state.done) sum += range.last - range.first;
    return sum;
  }

  // Runs until `batches` are done, or to the end: then nothing is returned.
  std::optional<RunState> run(MemorySink& sink, uint64_t batches, const RunState* from = nullptr) {
    std::optional<RunState> stopped;
    ExecOptions options = options_;
    options.from = from;
    options.save_every = {};
    options.save_pause = 0;  // however long it took: a stop then comes as soon as it can
    options.save = [&](const RunState& state) {
      if (done(state) < batches) return;
      if (options.save_between_outputs) check_between_outputs(sink);
      stopped = state;
      throw Stop();
    };
    Progress progress;
    try {
      stats_ = execute(plan_, inputs_, sink, progress, options);
      EXPECT_EQ(progress.bytes_done, progress.bytes_total);
    } catch (const Stop&) {
    }
    return stopped;
  }

  void run_undisturbed() {
    MemorySink sink(plan_);
    Progress progress;
    stats_ = execute(plan_, inputs_, sink, progress, options_);
    expected_ = sink.outputs();
  }

  static void check_between_outputs(const MemorySink& sink) {
    for (OutputId out = 0; out < sink.outputs().size(); ++out) {
      const std::string& bytes = sink.outputs()[out];
      EXPECT_TRUE(sink.is_finished(out) || bytes.find_first_not_of('\xcd') == std::string::npos);
    }
  }

  test::TempFolder folder_;
  std::vector<std::string> contents_;
  InputFiles inputs_;
  CopyPlan plan_;
  std::vector<std::string> expected_;
  ExecOptions options_ = {};
  RunStats stats_;
};

TEST_F(ExecutorResume, GivesTheSameBytesWhereverItWasStopped) {
  run_undisturbed();
  const RunStats whole = stats_;
  EXPECT_EQ(whole.records_checked, 4u);
  for (const unsigned threads : {1u, 4u}) {
    options_.threads = threads;
    uint64_t stops = 0;
    for (uint64_t batches = 1; batches < 250; batches += threads == 1 ? 7 : 13) {
      SCOPED_TRACE(std::to_string(batches) + " batches, threads: " + std::to_string(threads));
      MemorySink sink(plan_);
      const std::optional<RunState> state = run(sink, batches);
      if (!state) break;
      ++stops;
      EXPECT_GE(done(*state), batches);
      // And once more, a little later.
      const std::optional<RunState> again = run(sink, done(*state) + 3, &*state);
      if (again) {
        ASSERT_FALSE(run(sink, ~uint64_t{0}, &*again));
      }
      EXPECT_TRUE(sink.all_finished());
      EXPECT_TRUE(sink.outputs() == expected_);
      EXPECT_EQ(stats_.records_checked, whole.records_checked);
      EXPECT_EQ(stats_.bytes_read, whole.bytes_read);
    }
    EXPECT_GT(stops, 8u);
  }
}

TEST_F(ExecutorResume, StopsBetweenOutputsWhereItIsAskedTo) {
  run_undisturbed();
  options_.save_between_outputs = true;
  for (const unsigned threads : {1u, 4u}) {
    options_.threads = threads;
    for (const uint64_t batches : {1u, 2u, 20u, 85u}) {
      MemorySink sink(plan_);
      const std::optional<RunState> state = run(sink, batches);
      ASSERT_TRUE(state);
      ASSERT_FALSE(run(sink, ~uint64_t{0}, &*state));
      EXPECT_TRUE(sink.all_finished());
      EXPECT_TRUE(sink.outputs() == expected_);
    }
  }
}

TEST_F(ExecutorResume, FindsADamagedRecordWhicheverRunReadIt) {
  for (size_t wrong = 0; wrong < options_.records.size(); ++wrong) {
    const ExecOptions good = options_;
    options_.records[wrong].crc32 ^= 1;
    for (const uint64_t batches : {1u, 40u, 85u, 130u}) {
      MemorySink sink(plan_);
      const std::optional<RunState> state = run(sink, batches);
      ASSERT_TRUE(state) << batches;
      EXPECT_ERROR(run(sink, ~uint64_t{0}, &*state), CorruptError, good.records[wrong].name);
    }
    options_ = good;
  }
}

TEST_F(ExecutorResume, RefusesAStateThatThePlanCannotHave) {
  MemorySink sink(plan_);
  const std::optional<RunState> stopped = run(sink, 60);
  ASSERT_TRUE(stopped);
  const RunState& state = *stopped;
  const auto refuses = [&](auto change) {
    RunState bad = state;
    change(bad);
    MemorySink fresh(plan_);
    EXPECT_ERROR(run(fresh, ~uint64_t{0}, &bad), CorruptError, "");
  };
  refuses([](RunState& bad) { bad.done.back().last = 1 << 20; });
  refuses([](RunState& bad) { bad.unit_bytes *= 2; });
  refuses([](RunState& bad) { bad.digests.push_back({99, 0, 1, 0}); });
  refuses([](RunState& bad) { bad.records.push_back({99, 0, 1, 0}); });
  refuses([](RunState& bad) { bad.records.push_back({0, 24 * kMiB, 1, 0}); });
  refuses([](RunState& bad) { bad.records.push_back({0, 1, ~uint64_t{0}, 0}); });
}

TEST_F(ExecutorResume, WhatSavingThrowsEndsTheRunOnAllThreads) {
  options_.threads = 4;
  options_.save = [](const RunState&) { throw IoError({}, "no room for the journal", 28); };
  options_.save_every = {};
  MemorySink sink(plan_);
  Progress progress;
  EXPECT_ERROR(execute(plan_, inputs_, sink, progress, options_), IoError, "no room");
}

}  // namespace
}  // namespace dsckpt
