#include <gtest/gtest.h>

#include <set>
#include <string>

#include "dsckpt/error.h"
#include "inspect/global_classes.h"
#include "pickle/pickle.h"
#include "pickle/trace.h"
#include "support/samples.h"

namespace dsckpt::pickle {
namespace {

using namespace std::literals;

Trace trace_of(std::string_view text) {
  return trace(ByteSource(as_byte_span(text)));
}

// "module.name+called+..." of each global, with its offset in front.
std::vector<std::string> shown(const Trace& trace) {
  std::vector<std::string> out;
  for (const NamedGlobal& global : trace.globals) {
    std::string line = std::to_string(global.offset) + " " + global.module + "." + global.name;
    for (const std::string& use : to_strings(global.uses)) line += "+" + use;
    out.push_back(line);
  }
  return out;
}

using Lines = std::vector<std::string>;

TEST(PickleTrace, NamesOfWholePicklesAreThoseOfTheDocument) {
  size_t named = 0;
  for (const test::PickleSample& sample : test::pickle_samples()) {
    for (const std::string_view pickle : sample.pickles) {
      if (pickle.empty()) continue;
      const Trace trace = trace_of(pickle);
      size_t end = 0;
      const Document document = Document::parse(as_byte_span(pickle), 0, &end);
      EXPECT_TRUE(trace.whole()) << sample.expression << ": " << trace.problem;
      EXPECT_EQ(trace.end, end) << sample.expression;
      std::vector<std::string> names;
      for (const NamedGlobal& global : trace.globals) {
        names.push_back(global.module + "." + global.name);
      }
      EXPECT_EQ(names, document.globals()) << sample.expression;
      named += names.size();
    }
  }
  EXPECT_GT(named, 10u);
}

TEST(PickleTrace, WhatStandsBeforeABreakIsKept) {
  const std::string payload = "\x80\x02"s + "cos\nsystem\nX\x01\0\0\0x\x85R"s;
  for (const std::string& tail : {""s, "\xff"s, "X\xff"s, "X\xff\xff\xff\xff"s, "c"s, "("s}) {
    const Trace trace = trace_of(payload + tail);
    EXPECT_FALSE(trace.whole());
    ASSERT_FALSE(trace.globals.empty());
    EXPECT_EQ(shown(trace)[0], "2 os.system+called");
    EXPECT_LE(trace.end, payload.size() + 1);
  }
  EXPECT_EQ(trace_of(payload + "\xff").problem, "0xff is not an opcode");
  EXPECT_EQ(trace_of(payload + "\xff").end, payload.size());
}

TEST(PickleTrace, GoesOnWherePythonWouldStop) {
  // An empty memo, an empty stack, a call of a number, a state for a list.
  for (const std::string& before : {"h\x63"s, "0R"s, "K\1)R"s, "]Nb"s, "e"s, "t"s}) {
    const Trace trace = trace_of(before + "cos\nsystem\n)R.");
    EXPECT_TRUE(trace.whole());
    EXPECT_EQ(shown(trace), Lines{std::to_string(before.size()) + " os.system+called"});
  }
}

TEST(PickleTrace, TellsHowAGlobalIsUsed) {
  EXPECT_EQ(shown(trace_of("ca\nb\n.")), Lines{"0 a.b+named"});
  EXPECT_EQ(shown(trace_of("ca\nb\n)R.")), Lines{"0 a.b+called"});
  EXPECT_EQ(shown(trace_of("ca\nb\n)\x81.")), Lines{"0 a.b+made"});
  EXPECT_EQ(shown(trace_of("ca\nb\n)}\x92.")), Lines{"0 a.b+made"});
  EXPECT_EQ(shown(trace_of("(ia\nb\n.")), Lines{"1 a.b+called"});
  EXPECT_EQ(shown(trace_of("(ca\nb\nNo.")), Lines{"1 a.b+called"});
  EXPECT_EQ(shown(trace_of("ca\nb\n)R}b.")), Lines{"0 a.b+called+built"});
  EXPECT_EQ(shown(trace_of("ca\nb\n)RNNs.")), Lines{"0 a.b+called+filled"});
  EXPECT_EQ(shown(trace_of("ca\nb\n}b.")), Lines{"0 a.b+named+changed"});
  EXPECT_EQ(shown(trace_of("ca\nb\nNNs.")), Lines{"0 a.b+named+changed"});
  EXPECT_EQ(shown(trace_of("ca\nb\n)R)R.")), Lines{"0 a.b+called+its result called"});
  EXPECT_EQ(shown(trace_of("ca\nb\nq\1)R0h\1.")), Lines{"0 a.b+named+called"});
  // Without a mark Python imports it, and stops.
  EXPECT_EQ(shown(trace_of("ia\nb\n.")), Lines{"0 a.b+named"});
}

TEST(PickleTrace, WhatCopyregMakesCountsForItsClass) {
  const std::string maker = "ccopy_reg\n_reconstructor\n";
  const std::string of_object = maker + "(ca\nb\nc__builtin__\nobject\nNtR";
  EXPECT_EQ(shown(trace_of(of_object + "}b."))[1], "26 a.b+made+built");
  EXPECT_EQ(shown(trace_of("ccopyreg\n__newobj__\nca\nb\nK\1\x86R."))[1], "20 a.b+made");
}

TEST(PickleTrace, TellsWhereEveryUnpicklerStops) {
  const auto died = [](std::string_view text) { return trace_of(text).died; };
  EXPECT_EQ(died("K\1."), Trace::kNowhere);
  EXPECT_EQ(died("K\1K\2K\3(."), 7u);            // a mark and nothing behind it
  EXPECT_EQ(died("0cos\nsystem\n)R."), 0u);      // an empty stack
  EXPECT_EQ(died("Nh\1cos\nsystem\n)R."), 1u);   // an empty memo
  EXPECT_EQ(died("K\1N\x93."), 3u);              // names that are none
  EXPECT_EQ(died("K\1)Rcos\nsystem\n)R."), 3u);  // a call of a number
  EXPECT_EQ(died("Ntcos\nsystem\n)R."), 1u);     // no mark
  EXPECT_EQ(died("ios\nsystem\n."), 0u);
  EXPECT_EQ(died("N\xff"), 1u);
  EXPECT_TRUE(trace_of("N").is_truncated);
  EXPECT_FALSE(trace_of("N\xff").is_truncated);
  // Python reads these indices; what they are is not followed.
  EXPECT_EQ(died("Np1_0\ng1_0\ng 1\n."), Trace::kNowhere);
}

TEST(PickleTrace, TellsOfAMemoThatGetsLarge) {
  EXPECT_EQ(trace_of("Nr\xff\xff\xff\x7f."s).far_index, 0x7fffffffu);
  EXPECT_EQ(trace_of("Np123456\n.").far_index, 123456u);
  EXPECT_EQ(trace_of("NNNNq\4.").far_index, 0u);
  EXPECT_EQ(trace_of("0Nr\xff\xff\xff\x7f."s).far_index, 0u) << "nobody comes to it";
}

TEST(PickleLength, IsThatOfTheFirstPickle) {
  for (const test::PickleSample& sample : test::pickle_samples()) {
    for (const std::string_view pickle : sample.pickles) {
      if (pickle.empty()) continue;
      const std::string more = std::string(pickle) + "cos\n";
      EXPECT_EQ(length(ByteSource(as_byte_span(more))), pickle.size()) << sample.expression;
      EXPECT_THROW(length(ByteSource(as_byte_span(pickle.substr(0, pickle.size() - 1)))),
                   CorruptError);
    }
  }
  try {
    length(ByteSource(as_byte_span("NN\xff."sv)), 100);
    FAIL();
  } catch (const CorruptError& error) {
    EXPECT_EQ(error.where().offset, 102u);
  }
}

TEST(PickleTrace, NamesAreMadeOfTextsWhereverTheyStand) {
  const Lines expected{"os.system"};
  for (const std::string& text : {
           "S'o\\x73'\nV\\u0073ystem\n\x93."s,
           "X\6\0\0\0systemq\1"
           "0\x8c\2osh\1\x93."s,
           "U\2osT\6\0\0\0system\x93."s,
       }) {
    const Trace trace = trace_of(text);
    ASSERT_EQ(trace.globals.size(), 1u);
    EXPECT_EQ(trace.globals[0].module + "." + trace.globals[0].name, expected[0]);
    EXPECT_EQ(trace.globals[0].form, NamedGlobal::Form::name);
  }
  const Trace computed = trace_of("\x8c\2os)\x93.");
  ASSERT_EQ(computed.globals.size(), 1u);
  EXPECT_EQ(computed.globals[0].form, NamedGlobal::Form::computed);
  EXPECT_EQ(computed.globals[0].module, "os");
}

TEST(PickleTrace, LongTextsAndManyValuesAreBounded) {
  const std::string name(5000, 'x');
  const Trace trace = trace_of("c" + name + "\n" + name + "\n.");
  ASSERT_EQ(trace.globals.size(), 1u);
  EXPECT_EQ(trace.globals[0].module.size(), 1000u);
  EXPECT_EQ(trace_of(std::string(10'000'000, 'N')).problem, "more values than are followed");
  EXPECT_EQ(trace_of(std::string(10'000'000, '(')).problem, "more values than are followed");
}

TEST(GlobalClasses, OnlyMembersOfEnumsAreTakenHarmlessly) {
  const std::string enum_class = "cdeepspeed.runtime.zero.config\nZeroStageEnum\n";
  const auto class_of = [](const std::string& text) { return classify(trace_of(text).globals[0]); };
  const std::string getattr = "c__builtin__\ngetattr\n";
  EXPECT_EQ(class_of(getattr + enum_class + "\x8c\7weights\x86R."), GlobalClass::harmless);
  EXPECT_EQ(class_of(getattr + "(" + enum_class + "\x8c\7weightstR."), GlobalClass::harmless);
  EXPECT_EQ(class_of(getattr + enum_class + "\x8c\7__doc__\x86R."), GlobalClass::dangerous);
  EXPECT_EQ(class_of(getattr + "ctorch\nSize\n\x8c\5index\x86R."), GlobalClass::dangerous);
  EXPECT_EQ(class_of(getattr + enum_class + "N\x86R."), GlobalClass::dangerous);
  EXPECT_EQ(class_of(getattr + "2" + enum_class + "\x8c\7weights\x86R."), GlobalClass::dangerous);
  EXPECT_EQ(class_of(getattr + enum_class + "\x8c\3mro\x86R)R."), GlobalClass::dangerous);
  EXPECT_EQ(class_of(getattr + enum_class + "\x8c\3mro\x86R."), GlobalClass::dangerous);
  EXPECT_EQ(class_of(getattr + enum_class + "\x8c\6format\x86R."), GlobalClass::dangerous);
}

TEST(GlobalClasses, NamesAreJudgedAsPython3TakesThem) {
  EXPECT_EQ(classify_name("__builtin__", "xrange"), GlobalClass::harmless);
  EXPECT_EQ(classify_name("copy_reg", "_reconstructor"), GlobalClass::harmless);
  EXPECT_EQ(classify_name("exceptions", "ValueError"), GlobalClass::unknown);
  EXPECT_EQ(classify_name("itertools", "imap"), GlobalClass::dangerous);
  EXPECT_EQ(classify_name("commands", "getoutput"), GlobalClass::dangerous);
  EXPECT_EQ(classify_name("torch", "Size.os"), GlobalClass::dangerous);
  EXPECT_EQ(classify_name("torch", "hub.load"), GlobalClass::dangerous);
  EXPECT_EQ(classify_name("collections", "OrderedDict.fromkeys"), GlobalClass::unknown);
  EXPECT_EQ(classify_name("osmnx", "Graph"), GlobalClass::unknown);
  EXPECT_EQ(classify_name("", ""), GlobalClass::unknown);
  EXPECT_EQ(classify_name("torch", "FloatStorage HalfStorage"), GlobalClass::unknown);
}

}  // namespace
}  // namespace dsckpt::pickle
