#include "pickle/pickle.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

#include "dsckpt/error.h"
#include "support/samples.h"

namespace dsckpt::pickle {
namespace {

using namespace std::string_view_literals;

Document parse(std::string_view text) {
  return Document::parse(as_byte_span(text));
}

std::string text_of(std::string_view data) {
  std::string out;
  for (const char c : data) {
    if (c >= ' ' && c <= '~' && std::string_view("'\"\\?").find(c) == std::string_view::npos) {
      out.push_back(c);
    } else {
      char code[8];
      std::snprintf(code, sizeof code, "<%02x>", static_cast<unsigned char>(c));
      out += code;
    }
  }
  return out;
}

std::string show(const Value& value);

std::string show_all(std::string_view open, std::span<const Value> items, std::string_view close) {
  std::string out(open);
  for (const Value& item : items) out += show(item) + ",";
  return out + std::string(close);
}

// As show() in testdata/makers/make_pickle_samples.py.
std::string show(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return value.as_bool() ? "True" : "False";
    case Kind::integer:
      return std::to_string(value.as_int());
    case Kind::big_integer:
      return "long" + text_of(value.as_bytes());
    case Kind::real: {
      char bits[24];
      std::snprintf(bits, sizeof bits, "float%016llx",
                    static_cast<unsigned long long>(std::bit_cast<uint64_t>(value.as_real())));
      return bits;
    }
    case Kind::string:
      return "'" + text_of(value.as_string()) + "'";
    case Kind::bytes:
      return "b'" + text_of(value.as_bytes()) + "'";
    case Kind::byte_array:
      return "bytearray'" + text_of(value.as_bytes()) + "'";
    case Kind::tuple:
      return show_all("(", value.as_sequence(), ")");
    case Kind::list:
      return show_all("[", value.as_sequence(), "]");
    case Kind::set:
      return show_all("set(", value.as_sequence(), ")");
    case Kind::frozen_set:
      return show_all("frozenset(", value.as_sequence(), ")");
    case Kind::dict: {
      std::string out = "{";
      for (const auto& [key, item] : value.as_dict().items) {
        out += show(key) + ":" + show(item) + ",";
      }
      return out + "}";
    }
    case Kind::global:
      return "<" + std::string(value.as_global().first) + " " +
             std::string(value.as_global().second) + ">";
    case Kind::persistent:
      return "persistent " + show(value.persistent_id());
    case Kind::object: {
      const ObjectNode& object = value.as_object();
      std::string out = show(object.callable) + show(object.arguments);
      if (!object.keywords.is_none()) out += " keywords " + show(object.keywords);
      if (!object.items.empty()) out += show_all(" items [", object.items, "]");
      for (const auto& [key, item] : object.mapping.items) {
        out += " [" + show(key) + "]=" + show(item);
      }
      if (object.has_state) out += " state " + show(object.state);
      return out;
    }
  }
  return "?";
}

std::string shown(std::string_view text) {
  return show(parse(text).root());
}

// The message of the CorruptError that `text` gives; "" if it parses.
std::string refusal(std::string_view text) {
  try {
    parse(text);
  } catch (const CorruptError& error) {
    return error.what();
  }
  return "";
}

TEST(Pickle, ReadsWhatPythonWroteInEveryProtocol) {
  for (const test::PickleSample& sample : test::pickle_samples()) {
    for (size_t protocol = 0; protocol < sample.pickles.size(); ++protocol) {
      SCOPED_TRACE(std::string(sample.expression) + " in protocol " + std::to_string(protocol));
      const Document document = parse(sample.pickles[protocol]);
      if (sample.shown.empty()) continue;
      EXPECT_EQ(show(document.root()), sample.shown);
    }
  }
}

// Expectations from pickle.loads of the same bytes in Python, unless it would have to call.
TEST(Pickle, KnowsEveryScalarOpcode) {
  EXPECT_EQ(shown("N."), "None");
  EXPECT_EQ(shown("\x88."), "True");
  EXPECT_EQ(shown("\x89."), "False");
  EXPECT_EQ(shown("I01\n."), "True");
  EXPECT_EQ(shown("I00\n."), "False");
  EXPECT_EQ(shown("I-12\n."), "-12");
  EXPECT_EQ(shown("I9223372036854775807\n."), "9223372036854775807");
  EXPECT_EQ(shown("I9223372036854775808\n."), "long<00><00><00><00><00><00><00><80><00>");
  EXPECT_EQ(shown("L-9223372036854775808L\n."), "-9223372036854775808");
  EXPECT_EQ(shown("L-9223372036854775809L\n."), "long<ff><ff><ff><ff><ff><ff><ff><7f><ff>");
  EXPECT_EQ(shown("L5\n."), "5");
  EXPECT_EQ(shown("J\xfe\xff\xff\xff."sv), "-2");
  EXPECT_EQ(shown("K\xff."), "255");
  EXPECT_EQ(shown("M\xff\xff."), "65535");
  EXPECT_EQ(shown("\x8a\x00."sv), "0");
  EXPECT_EQ(shown("\x8a\x02\x00\xff."sv), "-256");
  EXPECT_EQ(shown("\x8a\x03\xff\xff\xff."sv), "-1");
  EXPECT_EQ(shown("\x8b\x01\x00\x00\x00\x80."sv), "-128");
  EXPECT_EQ(shown("F-1.25\n."), "floatbff4000000000000");
  EXPECT_EQ(shown("F1e-320\n."), "float00000000000007e8");
  EXPECT_EQ(shown("Finf\n."), "float7ff0000000000000");
  EXPECT_EQ(shown("G\x3f\xf8\x00\x00\x00\x00\x00\x00."sv), "float3ff8000000000000");
}

TEST(Pickle, KnowsEveryTextOpcode) {
  EXPECT_EQ(shown("S'a\\n\\x41\\101\\\\\\'\\q'\n."), "'a<0a>AA<5c><27><5c>q'");
  EXPECT_EQ(shown("S\"it's\"\n."), "'it<27>s'");
  EXPECT_EQ(shown("S'\\xe9'\n."), "b'<e9>'");
  EXPECT_EQ(shown("T\x02\x00\x00\x00hi."sv), "'hi'");
  EXPECT_EQ(shown("U\x02hi."), "'hi'");
  EXPECT_EQ(shown("U\x01\xe9."), "b'<e9>'");
  EXPECT_EQ(shown("V\\u20ac\xe9\\\\u0041\\U0001d11e\n."),
            "'<e2><82><ac><c3><a9><5c><5c>u0041"
            "<f0><9d><84><9e>'");
  EXPECT_EQ(shown("X\x02\x00\x00\x00\xc3\xa9."sv), "'<c3><a9>'");
  EXPECT_EQ(shown("\x8c\x01z."), "'z'");
  EXPECT_EQ(shown("\x8d\x01\x00\x00\x00\x00\x00\x00\x00z."sv), "'z'");
  EXPECT_EQ(shown("B\x01\x00\x00\x00\xe9."sv), "b'<e9>'");
  EXPECT_EQ(shown("C\x01\xe9."), "b'<e9>'");
  EXPECT_EQ(shown("\x8e\x01\x00\x00\x00\x00\x00\x00\x00\xe9."sv), "b'<e9>'");
  EXPECT_EQ(shown("\x96\x01\x00\x00\x00\x00\x00\x00\x00\xe9."sv), "bytearray'<e9>'");
  EXPECT_EQ(shown("\x96\x01\x00\x00\x00\x00\x00\x00\x00\xe9."sv), "bytearray'<e9>'");
}

TEST(Pickle, KnowsEveryContainerOpcode) {
  EXPECT_EQ(shown(")."), "()");
  EXPECT_EQ(shown("(t."), "()");
  EXPECT_EQ(shown("(K\1K\2t."), "(1,2,)");
  EXPECT_EQ(shown("K\1\x85."), "(1,)");
  EXPECT_EQ(shown("K\1K\2\x86."), "(1,2,)");
  EXPECT_EQ(shown("K\1K\2K\3\x87."), "(1,2,3,)");
  EXPECT_EQ(shown("]K\1a."), "[1,]");
  EXPECT_EQ(shown("](K\1K\2e."), "[1,2,]");
  EXPECT_EQ(shown("(K\1K\2l."), "[1,2,]");
  EXPECT_EQ(shown("}."), "{}");
  EXPECT_EQ(shown("(K\1K\2d."), "{1:2,}");
  EXPECT_EQ(shown("}K\1K\2s."), "{1:2,}");
  EXPECT_EQ(shown("}(K\1K\2K\3K\4u."), "{1:2,3:4,}");
  EXPECT_EQ(shown("\x8f(K\1K\2\x90."), "set(1,2,)");
  EXPECT_EQ(shown("(K\1\x91."), "frozenset(1,)");
  EXPECT_EQ(shown("\x95\x02\x00\x00\x00\x00\x00\x00\x00N."sv), "None");
}

TEST(Pickle, KnowsEveryStackAndMemoOpcode) {
  EXPECT_EQ(shown("K\1K\2\x30."), "1");
  EXPECT_EQ(shown("K\1(0."), "1") << "POP takes a mark that is on top";
  EXPECT_EQ(shown("K\1(K\2K\3\x31."), "1");
  EXPECT_EQ(shown("K\5p2\n0g2\n."), "5");
  EXPECT_EQ(shown("K\5q\x02\x30h\x02."), "5");
  EXPECT_EQ(shown("K\5r\x02\x00\x00\x00\x30j\x02\x00\x00\x00."sv), "5");
  EXPECT_EQ(shown("K\5\x94K\6\x94\x30\x30h\x01."), "6");
  EXPECT_EQ(shown("K\5p0\nK\6p0\n\x86\x30h\x00."sv), "6");
}

TEST(Pickle, CallsBecomeObjects) {
  EXPECT_EQ(shown("cos\nsystem\n(S'rm -rf /'\ntR."), "<os system>('rm -rf /',)");
  EXPECT_EQ(shown("\x8c\x02os\x8c\x06system\x93."), "<os system>");
  EXPECT_EQ(shown("(S'true'\nios\nsystem\n."), "<os system>('true',)");
  EXPECT_EQ(shown("(cm\nC\nK\1o."), "<m C>(1,)");
  EXPECT_EQ(shown("cm\nC\nK\1\x85\x81."), "<m C>(1,)");
  EXPECT_EQ(shown("cm\nC\n)}S'k'\nK\1s\x92."), "<m C>() keywords {'k':1,}");
  EXPECT_EQ(shown("cm\nC\n)R)R."), "<m C>()()");
  EXPECT_EQ(shown("cm\nC\n)RK\1a(K\2K\3eK\4K\5s}b."), "<m C>() items [1,2,3,] [4]=5 state {}");
  EXPECT_EQ(shown("cm\nC\n)R(K\1K\2\x90."), "<m C>() items [1,2,]");
  EXPECT_EQ(shown("Pthe id\n."), "persistent 'the id'");
  EXPECT_EQ(shown("K\1Q."), "persistent 1");

  const Document document = parse("cm\nC\n)RNb.");
  EXPECT_TRUE(document.root().as_object().has_state);
  EXPECT_TRUE(document.root().as_object().is_a("m", "C"));
  EXPECT_EQ(parse("(im\nC\n.").root().as_object().made, ObjectNode::Made::inst);
  EXPECT_EQ(parse("cm\nC\n)\x81.").root().as_object().made, ObjectNode::Made::newobj);
}

TEST(Pickle, ListsTheGlobalsItNames) {
  const Document document = parse("cb\nB\n0ca\nA.X\n0cb\nB\n0(ic\nC\n0N.");
  EXPECT_EQ(document.globals(), (std::vector<std::string>{"b.B", "a.A.X", "c.C"}));
  EXPECT_TRUE(document.root().is_none());
}

TEST(Pickle, CallsThatSpellBytesAreBytes) {
  EXPECT_EQ(shown("c_codecs\nencode\n(V\xe9\nVlatin1\ntR."), "b'<e9>'");
  EXPECT_EQ(shown("c__builtin__\nbytes\n)R."), "b''");
  EXPECT_EQ(shown("c_codecs\nencode\n(V\\u20ac\nVlatin1\ntR."),
            "<_codecs encode>('<e2><82><ac>','latin1',)");
  EXPECT_EQ(shown("c_codecs\nencode\n(Vx\nVrot13\ntR."), "<_codecs encode>('x','rot13',)");
  // A text long enough to be decoded once and shared.
  const std::string text(100, '\xe9');
  const Document document =
      parse("]c_codecs\nencode\np0\n(V" + text + "\np1\nVlatin1\np2\ntRag0\n(g1\ng2\ntRa.");
  ASSERT_EQ(document.root().as_sequence().size(), 2u);
  for (const Value& value : document.root().as_sequence()) EXPECT_EQ(value.as_bytes(), text);
}

TEST(Pickle, SharedValuesAreOneNode) {
  const Document document = parse("](]q\1h\1]e.");
  const auto items = document.root().as_sequence();
  EXPECT_EQ(items[0].identity(), items[1].identity());
  EXPECT_NE(items[0].identity(), items[2].identity());
  EXPECT_FALSE(document.is_cyclic());
}

TEST(Pickle, RecursiveValuesAreMarkedCyclic) {
  const Document document = parse("]q\1h\1a.");
  EXPECT_TRUE(document.is_cyclic());
  EXPECT_EQ(document.root().as_sequence()[0].identity(), document.root().identity());
}

TEST(Pickle, DictKeepsTheFirstPlaceAndTheLastValueOfAKey) {
  EXPECT_EQ(shown("}(K\1K\2S'a'\nK\3K\1K\4S'a'\nK\5u."), "{1:4,'a':5,}");
  // The same beyond the size where dicts are indexed: python: {i: ...} with both kinds of keys.
  std::string pickle = "}(";
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) {
      const std::string number = std::to_string(i);
      const std::string value = std::to_string(i + round);
      pickle += "I" + number + "x\n";
      pickle.replace(pickle.size() - 2, 2, "\nI" + value + "\n");
      pickle += "V" + number + "\nI" + value + "\n";
    }
  }
  const Document document = parse(pickle + "(K\1K\1tK\7u.");
  const DictNode& dict = document.root().as_dict();
  ASSERT_EQ(dict.items.size(), 201u);
  for (int i = 0; i < 100; ++i) {
    ASSERT_NE(dict.find(int64_t{i}), nullptr);
    EXPECT_EQ(dict.find(int64_t{i})->as_int(), i + 1);
    EXPECT_EQ(document.root().at(std::to_string(i)).as_int(), i + 1);
  }
  EXPECT_EQ(dict.find("100"), nullptr);
  EXPECT_EQ(dict.find(int64_t{100}), nullptr);
  EXPECT_EQ(dict.items[1].first.as_string(), "0");
}

TEST(Pickle, OddKeysAreKept) {
  EXPECT_EQ(shown("}(]NNK\1\x88K\2}K\3u."), "{[]:None,None:1,True:2,{}:3,}");
}

TEST(Pickle, OrderedDictIsAMapping) {
  const Document empty = parse("ccollections\nOrderedDict\n)R.");
  EXPECT_TRUE(empty.root().is_mapping());
  EXPECT_FALSE(empty.root().find("x"));
  const Document filled = parse("cm\nSomeDict\n)RVx\nK\1s.");
  EXPECT_EQ(filled.root().at("x").as_int(), 1);
  const Document other = parse("cm\nC\n)R.");
  EXPECT_FALSE(other.root().is_mapping());
  EXPECT_THROW(other.root().find("x"), CorruptError);
}

TEST(Pickle, AccessorsNameBothKinds) {
  const Document document = parse("].");
  try {
    document.root().as_string();
    FAIL();
  } catch (const CorruptError& error) {
    EXPECT_STREQ(error.what(), "list where str was expected");
  }
  EXPECT_THROW(document.root().as_bool(), CorruptError);
  EXPECT_THROW(document.root().as_int(), CorruptError);
  EXPECT_THROW(document.root().as_real(), CorruptError);
  EXPECT_THROW(document.root().as_bytes(), CorruptError);
  EXPECT_THROW(document.root().as_dict(), CorruptError);
  EXPECT_THROW(document.root().as_object(), CorruptError);
  EXPECT_THROW(document.root().as_global(), CorruptError);
  EXPECT_THROW(document.root().persistent_id(), CorruptError);
  EXPECT_THROW(Value().as_sequence(), CorruptError);
  EXPECT_THROW(parse("}.").root().at("step"), CorruptError);
  EXPECT_EQ(parse("\x88.").root().as_int(), 1);
  EXPECT_EQ(parse("K\3.").root().as_real(), 3.0);
}

TEST(Pickle, OnePickleOfSeveral) {
  size_t consumed = 0;
  const std::string_view two = "K\1.K\2.";
  EXPECT_EQ(Document::parse(as_byte_span(two), 0, &consumed).root().as_int(), 1);
  EXPECT_EQ(consumed, 3u);
  EXPECT_NE(refusal(two).find("3 bytes after the end"), std::string::npos);
}

TEST(Pickle, ErrorsTellTheOffsetInTheFile) {
  try {
    Document::parse(as_byte_span("K\1K\2h\x09."), 1000);
    FAIL();
  } catch (const CorruptError& error) {
    EXPECT_EQ(error.where().offset, 1004u);
  }
}

TEST(Pickle, RefusesWhatNoPickleHolds) {
  for (const std::string_view text : {
           ""sv,
           "."sv,                      // nothing to stop with
           "K\1"sv,                    // no STOP
           "\x80\x06N."sv,             // protocol 6
           "\xff."sv,                  // no such opcode
           "\x82\x01."sv,              // EXT1
           "\x83\x01\x00."sv,          // EXT2
           "\x84\x01\x00\x00\x00."sv,  // EXT4
           "\x97."sv,                  // NEXT_BUFFER
           "C\1x\x98."sv,              // READONLY_BUFFER
           "K\1\x32\x86."sv,           // DUP
           "N\x80\x02."sv,             // a protocol behind something
           "\x80\x02\x80\x04N."sv,     //
           "K\1a."sv,                  // APPEND to nothing
           "K\1K\2a."sv,               // APPEND to an int
           "N(K\1e."sv,                // APPENDS to None
           "(K\1e."sv,                 // APPENDS to nothing
           "](K\1\x90."sv,             // ADDITEMS to a list
           "]K\1K\2s."sv,              // SETITEM on a list
           "}(K\1u."sv,                // a key without a value
           "(K\1d."sv,                 //
           "]Nb."sv,                   // BUILD on a list
           "cm\nC\n)RNbNb."sv,         // BUILD twice
           "K\1)R."sv,                 // a call of an int
           "cm\nC\nNR."sv,             // arguments None
           "cm\nC\n)N\x92."sv,         // keywords None
           "(o."sv,                    // OBJ without a class
           "NN\x93."sv,                // STACK_GLOBAL of None
           "t."sv,
           "l."sv,
           "1."sv,
           "e."sv,
           "\x91."sv,      // no mark
           "K\1(."sv,      // a mark where a value should be
           "K\1(\x85."sv,  // TUPLE1 below a mark
           "0."sv,
           "2."sv,
           "q\1."sv,  // empty stack
           "h\1."sv,
           "g1\n."sv,
           "j\1\0\0\0."sv,  // empty memo
           "K\1px\n."sv,
           "K\1p-1\n."sv,
           "K\1p\n."sv,
           "K\1p1_0\n."sv,
           "K\1p 1\n."sv,
           "K\1p+1\n."sv,
           "K\1p01\n."sv,
           "K\1p1\x00\n."sv,
           "K\1p1\t\n."sv,
           "K\1p1\n0g01\n."sv,
           "K\1p1\n0g1_0\n."sv,  // not an index as picklers write them
           "K\1p18\n."sv,
           "K\1q\x12."sv,
           "K\1r\x12\0\0\0."sv,
           "K\1p18446744073709551615\n."sv,  // beyond the bytes before it
           "I\n."sv,
           "I1x\n."sv,
           "Ix\n."sv,
           "I1"sv,  // not an integer
           "F\n."sv,
           "F1.5x\n."sv,
           "F1e999\n."sv,  // not a float
           "S'a\n."sv,
           "S'\n."sv,
           "Sa\n."sv,  // quotes
           "S'\\x4'\n."sv,
           "S'a\\'\n."sv,  // escapes
           "V\\u12\n."sv,
           "V\\U00110000\n."sv,                         // escapes
           "X\x02\x00\x00\x00\xc3\x28."sv,              // not UTF-8
           "\x8c\x01\xc3."sv,                           //
           "T\xff\xff\xff\xff."sv,                      // negative length
           "\x8b\xff\xff\xff\xff."sv,                   //
           "\x95\xff\x00\x00\x00\x00\x00\x00\x00N."sv,  // FRAME too long
           "cos\nsystem"sv,                             // no end of line
       }) {
    EXPECT_NE(refusal(text), "") << text_of(text);
  }
  EXPECT_NE(refusal("I" + std::string(4301, '1') + "\n."), "");
  EXPECT_EQ(refusal("I" + std::string(4300, '1') + "\n."), "");
  EXPECT_NE(refusal("c" + std::string(1001, 'm') + "\nC\n."), "");
}

TEST(Pickle, LimitsApply) {
  Limits limits;
  limits.max_bytes = 3;
  EXPECT_NO_THROW(Document::parse(as_byte_span("K\1."), 0, nullptr, limits));
  EXPECT_THROW(Document::parse(as_byte_span("M\1\1."), 0, nullptr, limits), CorruptError);
  size_t consumed = 0;
  EXPECT_NO_THROW(Document::parse(as_byte_span("K\1.more"), 0, &consumed, limits));

  limits = {};
  limits.max_depth = 3;
  EXPECT_NO_THROW(Document::parse(as_byte_span("]]]aa."), 0, nullptr, limits));
  EXPECT_THROW(Document::parse(as_byte_span("]]]]aaa."), 0, nullptr, limits), CorruptError);
  // Shallow where it is seen first, too deep from where it is shared.
  EXPECT_THROW(Document::parse(as_byte_span("](]]aq\1]h\1ae."), 0, nullptr, limits), CorruptError);
}

TEST(PickleDocument, BuildsWhatItIsAskedFor) {
  Document document;
  const Value dict = document.dict();
  document.set_item(dict, document.string("k"), document.tuple({Document::integer(1)}));
  const Value list = document.list();
  document.append(list, Document::real(0.5));
  document.set_item(dict, document.string("l"), list);
  EXPECT_EQ(show(dict), "{'k':(1,),'l':[float3fe0000000000000,],}");
  EXPECT_EQ(document.intern("n").identity(), document.intern("n").identity());
  EXPECT_NE(document.string("n").identity(), document.string("n").identity());
  EXPECT_EQ(document.global("m", "C").identity(), document.global("m", "C").identity());
  EXPECT_EQ(document.globals(), (std::vector<std::string>{"m.C"}));
  EXPECT_EQ(show(document.big_integer("\x05\x00\x00"sv)), "5");
  EXPECT_EQ(show(document.big_integer("\xff\xff\xff\xff\xff\xff\xff\xff\xff"sv)), "-1");
  EXPECT_EQ(show(document.big_integer("\x01\x01\x01\x01\x01\x01\x01\x01\x01\x00"sv)),
            "long<01><01><01><01><01><01><01><01><01>");
  EXPECT_THROW(document.append(dict, {}), CorruptError);
  EXPECT_THROW(document.set_item(list, {}, {}), CorruptError);
  EXPECT_THROW(document.set_state(list, {}), CorruptError);
  EXPECT_THROW(document.object(ObjectNode::Made::reduce, document.global("m", "C"), list),
               CorruptError);
}

}  // namespace
}  // namespace dsckpt::pickle
