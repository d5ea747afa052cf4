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

using namespace std::string_literals;

Trace trace_of(std::string_view text) {
  return trace(ByteSource(as_byte_span(text)));
}

// "module.name+called+..." of each global, with its offset in front.
std::vector<std::string> shown(const Trace& trace) {
  std::vector<std::string> out;
  for (const NamedGlobal& global : trace.globals) {
    std::string line = std::to_string(global.offset) + " " + global.module + "." + global.name;
    for (const std::string& use : to_strings(static_cast<Use>(global.uses))) line += "+" + use;
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
  EXPECT_EQ(shown(trace_of("ca\nb\n}b.")), Lines{"0 a.b+named+changed"});
  EXPECT_EQ(shown(trace_of("ca\nb\nNNs.")), Lines{"0 a.b+named+changed"});
  EXPECT_EQ(shown(trace_of("ca\nb\n)R)R.")), Lines{"0 a.b+called+its result called"});
  EXPECT_EQ(shown(trace_of("ca\nb\nq\1)R0h\1.")), Lines{"0 a.b+named+called"});
  // Without a mark Python imports it, and stops.
  EXPECT_EQ(shown(trace_of("ia\nb\n.")), Lines{"0 a.b+named"});
}

// "name(kind kind ...)" of each call of a pickle; "-" for arguments that cannot be told.
Lines calls_of(std::string_view text) {
  Lines calls;
  static constexpr const char* kKinds[] = {"other",     "plain",  "text",   "tuple",
                                           "container", "global", "result", "persistent"};
  const auto shown_value = [](const TracedValue& value, const TracedValues& values, auto& self) {
    std::string out = kKinds[value.kind];
    if (value.kind == TracedValue::text) out = values.text(value).value_or("?");
    if (value.kind == TracedValue::global) out = values.global(value).name;
    if (value.kind == TracedValue::result) out = values.global(value).name + "()";
    if (value.kind != TracedValue::tuple) return out;
    out = value.is_plain ? "plain[" : "[";
    for (const TracedValue& element : values.elements(value)) {
      out += self(element, values, self) + ";";
    }
    return out + "]";
  };
  trace(ByteSource(as_byte_span(text)), [&](const TracedCall& call) {
    std::string line = call.callable.name + "(";
    if (!call.arguments) line += "-";
    for (const TracedValue& value : call.arguments.value_or(std::span<const TracedValue>{})) {
      line += shown_value(value, call.values, shown_value) + " ";
    }
    calls.push_back(line + ")");
    return true;
  });
  return calls;
}

TEST(PickleTrace, CallsAreCheckedWithTheirArguments) {
  EXPECT_EQ(calls_of("ca\nb\n)R."), Lines{"b()"});
  EXPECT_EQ(calls_of("ca\nb\n(K\1NG\0\0\0\0\0\0\0\0\x88"
                     "C\1xtR."s),
            Lines{"b(plain plain plain plain plain )"});
  EXPECT_EQ(calls_of("ca\nb\n(\x8c\1x]}NQca\nc\ntR."),
            Lines{"b(x container container persistent c )"});
  EXPECT_EQ(calls_of("ca\nb\nca\nc\n)R\x85\x81."), (Lines{"c()", "b(c() )"}));
  EXPECT_EQ(calls_of("ca\nb\nK\1\x8c\1x\x86NQ\x85\x86R."),
            Lines{"b(plain[plain;x;] [persistent;] )"});
  EXPECT_EQ(calls_of("ca\nb\n(K\1(K\2K\3ttq\1R0ca\nc\nh\1R."),
            (Lines{"b(plain plain[plain;plain;] )", "c(plain plain[plain;plain;] )"}));
  EXPECT_EQ(calls_of("(K\1ia\nb\n."), Lines{"b(plain )"});
  EXPECT_EQ(calls_of("(ca\nb\nK\1o."), Lines{"b(plain )"});
  // Only tuples can be told, and no keywords.
  EXPECT_EQ(calls_of("ca\nb\n]R."), Lines{"b(-)"});
  EXPECT_EQ(calls_of("ca\nb\n)}\x92."), Lines{"b(-)"});
  EXPECT_EQ(calls_of("ca\nb\nh\1R."), Lines{"b(-)"});
}

TEST(PickleTrace, WhatCopyregMakesCountsForItsClass) {
  const std::string maker = "ccopy_reg\n_reconstructor\n";
  const std::string of_object = maker + "(ca\nb\nc__builtin__\nobject\nNtR";
  EXPECT_EQ(calls_of(of_object + "."), (Lines{"_reconstructor(b object plain )", "b()"}));
  EXPECT_EQ(calls_of(maker + "(ca\nb\nc__builtin__\nint\nK\1tR."),
            (Lines{"_reconstructor(b int plain )", "b(plain )"}));
  EXPECT_EQ(calls_of("ccopyreg\n__newobj__\nca\nb\nK\1\x86R."),
            (Lines{"__newobj__(b plain )", "b(plain )"}));
  EXPECT_EQ(shown(trace_of(of_object + "}b."))[1], "26 a.b+made+built");
  // Twice the same tuple: the second time the class is not told.
  EXPECT_EQ(
      calls_of(maker + "q\1(ca\nb\nc__builtin__\nobject\nNtq\2R0h\1h\2R."),
      (Lines{"_reconstructor(b object plain )", "b()", "_reconstructor(other object plain )"}));
}

TEST(PickleTrace, ACallThatIsNotExpectedIsOdd) {
  const std::string_view text = "ca\nb\nK\1\x85R0ca\nc\n)R.";
  const Trace trace = pickle::trace(ByteSource(as_byte_span(text)),
                                    [](const TracedCall& call) { return call.arguments->empty(); });
  EXPECT_EQ(shown(trace), (Lines{"0 a.b+called+with odd arguments", "10 a.c+called"}));
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

TEST(GlobalClasses, NamesOnTheListAreHarmlessOnlyAsTheListSays) {
  const auto class_of = [](const std::string& text) {
    return classify(trace(ByteSource(as_byte_span(text)), expected_calls()).globals[0]);
  };
  const std::string encode = "c_codecs\nencode\n";
  EXPECT_EQ(class_of(encode + "\x8c\1x\x8c\6latin1\x86R."), GlobalClass::harmless);
  EXPECT_EQ(class_of(encode + "\x8c\1x\x8c\5rot13\x86R."), GlobalClass::unknown);
  EXPECT_EQ(class_of(encode + "."), GlobalClass::unknown);
  const std::string arguments_class = "ctransformers.training_args\nTrainingArguments\n";
  EXPECT_EQ(class_of(arguments_class + ")\x81}b."), GlobalClass::harmless);
  EXPECT_EQ(class_of(arguments_class + ")R."), GlobalClass::unknown);
  EXPECT_EQ(class_of(arguments_class + "N\x85\x81."), GlobalClass::unknown);
  EXPECT_EQ(class_of("ctorch\nfloat32\n."), GlobalClass::harmless);
  EXPECT_EQ(class_of("ctorch\nfloat32\n)R."), GlobalClass::unknown);
  EXPECT_EQ(class_of("ctorch\nSize\n)R}b."), GlobalClass::unknown);
  EXPECT_EQ(class_of("c__builtin__\nobject\n)R}b."), GlobalClass::dangerous);
  // A tensor that is made of a number of tuples, of itself, of nothing.
  const std::string sparse = "ctorch._utils\n_rebuild_sparse_tensor\n";
  EXPECT_EQ(class_of(sparse + std::string(100'000, ')') + std::string(100'000, '\x85') + "\x86R."),
            GlobalClass::harmless);
  EXPECT_EQ(class_of(sparse + "NQ" + std::string(100'000, '\x85') + "N\x86R."),
            GlobalClass::unknown);
  EXPECT_EQ(class_of(sparse + "h\1R."), GlobalClass::unknown);
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
