#include "inspect/pickle_judge.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "inspect/global_classes.h"
#include "inspect/written_calls.h"
#include "support/samples.h"

namespace dsckpt {
namespace {

using namespace std::literals;

Judgement judged(std::string_view pickle, PickleOf whose = PickleOf::anybody,
                 uint64_t file_size = 0) {
  return judge(as_byte_span(pickle), whose, file_size == 0 ? pickle.size() : file_size, 0);
}

// True if every name in it is used as a writer uses it, and nothing else is wrong.
bool is_written(const Judgement& judgement) {
  for (const JudgedGlobal& global : judgement.globals) {
    if (!global.problem.empty() || classify(global) != GlobalClass::harmless) return false;
  }
  return judgement.problems.empty();
}

// Protocol 2: GLOBAL, the arguments, REDUCE, STOP.
std::string call(std::string_view module, std::string_view name, std::string_view arguments) {
  return "\x80\x02"
         "c"s +
         std::string(module) + "\n" + std::string(name) + "\n" + std::string(arguments) + "R.";
}

std::string text(std::string_view value) {
  return "X"s + static_cast<char>(value.size()) + "\0\0\0"s + std::string(value);
}

TEST(PickleJudge, PicklesThatPythonWritesAreWritten) {
  size_t judged_ones = 0;
  for (const test::PickleSample& sample : test::pickle_samples()) {
    for (const std::string_view pickle : sample.pickles) {
      if (pickle.empty()) continue;
      const Judgement judgement = judged(pickle);
      EXPECT_EQ(judgement.end, pickle.size()) << sample.expression;
      EXPECT_TRUE(judgement.problems.empty())
          << sample.expression << ": " << judgement.problems.front();
      ++judged_ones;
    }
  }
  EXPECT_GT(judged_ones, 50u);
}

TEST(PickleJudge, ACallWithArgumentsThatNobodyWritesIsAProblem) {
  EXPECT_TRUE(is_written(judged(call("_codecs", "encode", text("a") + text("latin1") + "\x86"))));
  // Another codec runs code of Python's that nobody asks for; a number is not text.
  EXPECT_FALSE(is_written(judged(call("_codecs", "encode", text("a") + text("rot13") + "\x86"))));
  EXPECT_FALSE(is_written(judged(call("_codecs", "encode", "K\1" + text("latin1") + "\x86"))));
  EXPECT_FALSE(is_written(judged(call("_codecs", "encode", text("a") + "\x85"))));
  EXPECT_TRUE(
      is_written(judged(call("builtins", "complex", "G\0\0\0\0\0\0\0\0G\0\0\0\0\0\0\0\0\x86"s))));
  EXPECT_FALSE(is_written(judged(call("builtins", "complex", text("1j") + "\x85"))));
}

TEST(PickleJudge, NamesThatAreNotInTheTableAreNotWritten) {
  EXPECT_FALSE(is_written(judged(call("os", "system", text("true") + "\x85"))));
  EXPECT_FALSE(is_written(judged(call("builtins", "eval", text("1") + "\x85"))));
  EXPECT_FALSE(is_written(judged(call("somewhere", "Unknown", ")"))));
  // A name of the table, but only as a value.
  EXPECT_FALSE(is_written(judged(call("numpy", "float32", "K\1\x85"))));
}

TEST(PickleJudge, ItemsAreSetInContainersOnly) {
  const std::string ordered =
      "\x80\x02"
      "ccollections\nOrderedDict\n)R";
  EXPECT_TRUE(is_written(judged(ordered + text("a") + "K\1s.")));
  EXPECT_FALSE(
      is_written(judged("\x80\x02"
                        "cdatetime\ntimedelta\nK\0K\0K\0\x87R"s +
                        text("a") + "K\1s.")));
}

TEST(PickleJudge, StatesHaveNoNamesOfPythonsOwn) {
  const std::string space =
      "\x80\x02"
      "cargparse\nNamespace\n)\x81}";
  EXPECT_TRUE(is_written(judged(space + text("a") + "K\1sb.")));
  EXPECT_FALSE(is_written(judged(space + text("__class__") + "K\1sb.")));
  EXPECT_FALSE(is_written(judged(space + text("__setstate__") + "K\1sb.")));
}

TEST(PickleJudge, GetattrTakesMembersOfEnumsOnly) {
  const auto attribute = [](std::string_view module, std::string_view owner,
                            std::string_view name) {
    return is_written_attribute({std::string(module), std::string(owner), std::string(name)});
  };
  EXPECT_TRUE(attribute("signal", "Signals", "SIGTERM"));
  EXPECT_FALSE(attribute("signal", "Signals", "__init__"));
  EXPECT_FALSE(attribute("signal", "Signals", "format"));
  EXPECT_FALSE(attribute("os", "environ", "SIGTERM"));
}

TEST(PickleJudge, CallsTakeNoMoreMemoryThanTheFileCouldHave) {
  // bytearray(b"...") of a text that the pickle repeats by its memo: 2,000 copies of 64 KiB.
  std::string pickle = "\x80\x03(B\0\0\x01\0"s + std::string(65536, 'x') + "q\0"s;
  for (int copy = 0; copy < 2000; ++copy) pickle += "cbuiltins\nbytearray\nh\0\x85R"s;
  pickle += "l.";
  EXPECT_FALSE(is_written(judged(pickle)));
}

TEST(PickleJudge, WhatFollowsStopIsNotJudged) {
  EXPECT_EQ(judged("\x80\x02N.more"sv).end, 4u);
  EXPECT_THROW(judged("\x80\x02N"sv), CorruptError);
  EXPECT_THROW(judged(""sv), CorruptError);
}

TEST(PickleJudge, TextsOfPicklesInPicklesAreKept) {
  const Judgement judgement = judged(
      "\x80\x03"
      "C\x06\x80\x02K\1.x."s);
  ASSERT_EQ(judgement.inner.size(), 1u);
  EXPECT_EQ(judgement.inner[0].bytes, "\x80\x02K\1.x"s);
}

}  // namespace
}  // namespace dsckpt
