// Many runs, one after the other and at once, on more threads than there are cores. A scheduler
// that loses or doubles a task, or a race between workers, would break them.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "exec/executor.h"
#include "plan/copy_plan.h"
#include "support/plan_runner.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

class ExecutorStress : public testing::Test {
 protected:
  static constexpr uint64_t kInputBytes = 2 << 20;
  static constexpr uint64_t kPage = 4096;

  ExecutorStress() {
    in_ = inputs_.add(folder_.write("in", test::random_bytes(kInputBytes, 1)));
    PlanBuilder builder;
    // A file in many units, with a digest, and many that are a unit or none.
    const OutputId large = builder.add_output("large", kInputBytes + 8);
    builder.put_literal(large, 0, std::string(8, '\0'));
    builder.put(large, 8, bytes(0, kInputBytes));
    builder.add_digest({large, 8, 8 + kInputBytes, {0}});
    for (uint64_t i = 0; i < 200; ++i) {
      const OutputId out = builder.add_output(std::to_string(i), i * 7);
      builder.put(out, 0, bytes(i * 1001, i * 7));
    }
    plan_ = builder.finish();
    expected_ = test::run_plan(plan_, inputs_);
  }

  TensorSource bytes(uint64_t offset, uint64_t size) const {
    return TensorSource::stored({in_, offset, size}, DType::uint8, {static_cast<int64_t>(size)});
  }

  void run(unsigned threads) {
    test::MemorySink sink(plan_);
    Progress progress;
    ExecOptions options;
    options.threads = threads;
    options.unit_bytes = kPage;
    execute(plan_, inputs_, sink, progress, options);
    EXPECT_TRUE(sink.all_finished()) << threads;
    EXPECT_TRUE(sink.outputs() == expected_) << threads;
    EXPECT_EQ(progress.bytes_done, progress.bytes_total);
  }

  test::TempFolder folder_;
  InputFiles inputs_;
  FileId in_ = 0;
  CopyPlan plan_;
  std::vector<std::string> expected_;
};

TEST_F(ExecutorStress, ManyRunsOneAfterTheOther) {
  for (unsigned i = 0; i < 150; ++i) run(1 + i % 48);
}

TEST_F(ExecutorStress, ManyRunsAtOnce) {
  std::vector<std::thread> users;
  for (unsigned user = 0; user < 6; ++user) {
    users.emplace_back([&, user] {
      for (unsigned i = 0; i < 20; ++i) run((user + i) % 2);
    });
  }
  for (std::thread& user : users) user.join();
}

}  // namespace
}  // namespace dsckpt
