#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "pickle/pickle.h"
#include "support/samples.h"

namespace dsckpt::pickle {
namespace {

using namespace std::string_view_literals;

using namespace std::string_literals;

Document parsed(std::string_view text) {
  return Document::parse(as_byte_span(text));
}

std::string rewritten(std::string_view text) {
  return write_protocol2(parsed(text).root());
}

// `count` copies of `text`.
std::string times(size_t count, std::string_view text) {
  std::string out;
  while (count-- > 0) out += text;
  return out;
}

TEST(PickleWriter, GivesBackPythonsBytes) {
  for (const test::PickleSample& sample : test::pickle_samples()) {
    EXPECT_EQ(rewritten(sample.pickles[2]), sample.pickles[2]) << sample.expression;
  }
}

TEST(PickleWriter, GivesPythonsBytesForACopyInAnotherDocument) {
  const auto no_persistent = [](const Value& value) -> Value {
    throw UnsupportedError({}, describe(value));
  };
  for (const test::PickleSample& sample : test::pickle_samples()) {
    for (const size_t protocol : {2u, 4u}) {
      Document copy;
      Document::Copies copies;
      {
        const Document original = parsed(sample.pickles[protocol]);
        const Value once = copy.copy(original.root(), copies, no_persistent);
        EXPECT_EQ(copy.copy(original.root(), copies, no_persistent).identity(), once.identity());
        copy.set_root(once);
        if (protocol == 4) {
          EXPECT_EQ(write_protocol2(once), write_protocol2(original.root())) << sample.expression;
        }
      }
      // The original is gone.
      if (protocol == 2) {
        EXPECT_EQ(write_protocol2(copy.root()), sample.pickles[2]) << sample.expression;
      }
    }
  }
}

TEST(PickleWriter, GivesPythonsBytesForACopyOfACycle) {
  // a = []; a.append(a); b = {}; b[1] = (a, b); pickle.dumps([b, a], 2)
  const std::string cyclic =
      "\x80\x02]q\x00(}q\x01K\x01]q\x02h\x02"
      "ah\x01\x86q\x03sh\x02"
      "e."s;
  const Document original = parsed(cyclic);
  ASSERT_TRUE(original.is_cyclic());
  Document copy;
  Document::Copies copies;
  EXPECT_EQ(write_protocol2(copy.copy(original.root(), copies, {})), cyclic);
}

TEST(PickleWriter, CopiesPersistentValuesAsTold) {
  Document from;
  const Value id = from.persistent(from.tuple({from.string("storage"), Document::integer(7)}));
  Document into;
  Document::Copies copies;
  int calls = 0;
  const Value copy = into.copy(from.list({id, from.list({id})}), copies, [&](const Value& value) {
    EXPECT_EQ(value.persistent_id().as_sequence()[1].as_int(), 7);
    return into.persistent(Document::integer(++calls));
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(copy.as_sequence()[0].persistent_id().as_int(), 1);
  EXPECT_EQ(copy.as_sequence()[0].identity(), copy.as_sequence()[1].as_sequence()[0].identity());
}

// Values that reduce alike in every protocol: what was read from another protocol becomes what
// pickle.dumps(value, 2) gives.
TEST(PickleWriter, ConvertsOtherProtocolsAsPythonWould) {
  for (const test::PickleSample& sample : test::pickle_samples()) {
    // Protocols 0 and 1 have no NEWOBJ and go through copyreg instead.
    const bool has_instances = sample.expression.find("Keywords()") != std::string_view::npos ||
                               sample.expression.find("State()") != std::string_view::npos ||
                               sample.expression.find("_object()") != std::string_view::npos;
    for (size_t protocol = has_instances ? 3 : 0; protocol < 6; ++protocol) {
      EXPECT_EQ(rewritten(sample.pickles[protocol]), sample.pickles[2])
          << sample.expression << " from protocol " << protocol;
    }
  }
}

// pickle.dumps([None] * n, 2)
TEST(PickleWriter, ListsAreWrittenInBatchesOfAThousand) {
  const auto list = [](size_t count) {
    Document document;
    return write_protocol2(document.list(std::vector<Value>(count)));
  };
  const std::string head = "\x80\x02]q\0"s;
  EXPECT_EQ(list(0), head + ".");
  EXPECT_EQ(list(1), head + "Na.");
  EXPECT_EQ(list(2), head + "(NNe.");
  EXPECT_EQ(list(999), head + "(" + times(999, "N") + "e.");
  EXPECT_EQ(list(1000), head + "(" + times(1000, "N") + "e.");
  EXPECT_EQ(list(1001), head + "(" + times(1000, "N") + "e(Ne.");
  EXPECT_EQ(list(2000), head + "(" + times(1000, "N") + "e(" + times(1000, "N") + "e.");
}

// pickle.dumps({i: None for i in range(n)}, 2), with None for every key to keep it short.
TEST(PickleWriter, DictsCloseAFullLastBatchTwice) {
  const auto dict = [](size_t count) {
    Document document;
    const Value value = document.dict();
    for (size_t i = 0; i < count; ++i) document.set_item(value, {}, {});
    return write_protocol2(value);
  };
  const std::string head = "\x80\x02}q\0"s;
  EXPECT_EQ(dict(0), head + ".");
  EXPECT_EQ(dict(1), head + "NNs.");
  EXPECT_EQ(dict(2), head + "(NNNNu.");
  EXPECT_EQ(dict(999), head + "(" + times(999, "NN") + "u.");
  EXPECT_EQ(dict(1000), head + "(" + times(1000, "NN") + "u(u.");
  EXPECT_EQ(dict(1001), head + "(" + times(1000, "NN") + "u(NNu.");
}

// pickle.dumps(collections.deque([None] * n), 2), and OrderedDict: classes batch differently.
TEST(PickleWriter, ItemsOfObjectsAreBatchedWithOneItemOfLookahead) {
  const auto object = [](size_t items, size_t pairs) {
    Document document;
    const Value value =
        document.object(ObjectNode::Made::reduce, document.global("m", "C"), document.tuple({}));
    for (size_t i = 0; i < items; ++i) document.append(value, {});
    for (size_t i = 0; i < pairs; ++i) document.set_item(value, {}, {});
    return write_protocol2(value);
  };
  const std::string head =
      "\x80\x02"
      "cm\nC\nq\0)Rq\1"s;
  EXPECT_EQ(object(1, 0), head + "Na.");
  EXPECT_EQ(object(1000, 0), head + "(" + times(1000, "N") + "e.");
  EXPECT_EQ(object(1001, 0), head + "(" + times(1000, "N") + "eNa.");
  EXPECT_EQ(object(0, 1), head + "NNs.");
  EXPECT_EQ(object(0, 1000), head + "(" + times(1000, "NN") + "u.");
  EXPECT_EQ(object(0, 1001), head + "(" + times(1000, "NN") + "uNNs.");
  EXPECT_EQ(object(2, 2), head + "(NNe(NNNNu.");
}

// pickle.dumps([x, x, ...], 2) with `x` the value in the comment, by Python 3.11
TEST(PickleWriter, SpellsNewValuesInProtocol2) {
  Document document;
  const Value shared = document.string("s");
  const Value list = document.list({document.bytes("\xe9z"), document.byte_array("ab"),
                                    document.set({Document::integer(1)}), document.frozen_set({}),
                                    shared, shared, document.global("builtins", "int")});
  // [b'\xe9z', bytearray(b'ab'), {1}, frozenset(), 's', 's', int] with both 's' the same
  EXPECT_EQ(write_protocol2(list),
            "\x80\x02]q\x00(c_codecs\nencode\nq\x01X\x03\x00\x00\x00\xc3\xa9zq\x02X\x06\x00\x00\x00"
            "latin1q\x03\x86q\x04Rq\x05"
            "c__builtin__\nbytearray\nq\x06h\x01X\x02\x00\x00\x00"
            "abq"
            "\x07h\x03\x86q\x08Rq\x09\x85q\x0aRq\x0b"
            "c__builtin__\nset\nq\x0c]q\x0dK\x01"
            "a\x85q\x0eRq\x0f"
            "c__builtin__\nfrozenset\nq\x10]q\x11\x85q\x12Rq\x13X\x01\x00\x00\x00"
            "sq\x14h\x14"
            "c__builtin__\nlong\nq\x15"
            "e."sv);
}

// class P(pickle.Pickler): persistent_id = lambda self, o: ('storage', '0') if o is X else None
TEST(PickleWriter, WritesPersistentIds) {
  Document document;
  const Value id = document.tuple({document.string("storage"), document.string("0")});
  const Value value = document.persistent(id);
  EXPECT_EQ(write_protocol2(value),
            "\x80\x02X\x07\x00\x00\x00storageq\x00X\x01\x00\x00\x00"
            "0q\x01\x86q\x02Q."sv);
}

TEST(PickleWriter, WritesTheSameAgainAndTellsOfPersistentIds) {
  const std::string_view written =
      "\x80\x02]q\x00(X\x01\x00\x00\x00"
      "aq\x01Qh\x01Qe."sv;
  const Document read = parsed(written);
  Document document;
  const Value id = document.string("a");
  const Value built = document.list({document.persistent(id), document.persistent(id)});
  for (const Value& list : {read.root(), built}) {
    EXPECT_EQ(write_protocol2(list), written);
    EXPECT_EQ(write_protocol2(list.as_sequence()[1]),
              "\x80\x02X\x01\x00\x00\x00"
              "aq\x00Q."sv);
    std::string told;
    EXPECT_EQ(
        write_protocol2(list, 1000,
                        [&](const Value& value) { told += value.persistent_id().as_string(); }),
        written);
    EXPECT_EQ(told, "aa");
  }
  // A writer that gives up leaves nothing behind either.
  const Value deep = document.list({id, document.list({document.list()})});
  EXPECT_THROW(write_protocol2(deep, 2), UnsupportedError);
  EXPECT_EQ(write_protocol2(deep),
            "\x80\x02]q\x00(X\x01\x00\x00\x00"
            "aq\x01]q\x02]q\x03"
            "ae."sv);
}

TEST(PickleWriter, MemoIndicesGrowBeyondAByte) {
  Document document;
  std::vector<Value> items;
  for (int i = 0; i < 256; ++i) items.push_back(document.list());
  items.push_back(items[254]);
  items.push_back(items[255]);
  const std::string written = write_protocol2(document.list(items));
  EXPECT_TRUE(
      written.ends_with("]q\xff]r\x00\x01\x00\x00h\xffj\x00\x01\x00\x00"
                        "e."sv));
}

TEST(PickleWriter, InstancesOfOldProtocolsBecomeCallsOrNewObjects) {
  EXPECT_EQ(rewritten("(im\nC\n."),
            "\x80\x02"
            "cm\nC\nq\0)\x81q\1."sv);
  EXPECT_EQ(rewritten("(K\1im\nC\n."),
            "\x80\x02"
            "cm\nC\nq\0K\1\x85q\1Rq\2."sv);
}

TEST(PickleWriter, RefusesWhatIsTooDeep) {
  Document document;
  Value value = document.list();
  for (int i = 1; i < 10; ++i) value = document.tuple({value});
  EXPECT_NO_THROW(write_protocol2(value, 10));
  EXPECT_THROW(write_protocol2(value, 9), UnsupportedError);
  // Bytes and sets are spelled with calls and tuples, which do not count.
  Value set = document.set({document.bytes("xy")});
  EXPECT_NO_THROW(write_protocol2(set, 1));
  const Document called = parsed("]c_codecs\nencode\n(Vxy\nVlatin1\ntRa.");
  EXPECT_NO_THROW(write_protocol2(called.root(), 1));
}

TEST(PickleWriter, RefusesATupleInsideItselfThroughManyLists) {
  // t = (l0, l1, ...), each list holding t: Python recurses once for each list.
  std::string pickle = "(";
  for (int i = 0; i < 600; ++i) pickle += "]p" + std::to_string(i) + "\n";
  pickle += "tp1000\n0";
  for (int i = 0; i < 600; ++i) pickle += "g" + std::to_string(i) + "\ng1000\na0";
  pickle += "g1000\n.";
  const Document document = parsed(pickle);
  EXPECT_TRUE(document.is_cyclic());
  EXPECT_THROW(write_protocol2(document.root()), UnsupportedError);
  EXPECT_NO_THROW(write_protocol2(document.root(), 2000));
}

TEST(PickleWriter, RefusesGlobalsThatProtocol2CannotName) {
  Document document;
  EXPECT_THROW(write_protocol2(document.global("m\n", "C")), UnsupportedError);
  EXPECT_THROW(write_protocol2(document.global("m", "\xc3\xa9")), UnsupportedError);
}

}  // namespace
}  // namespace dsckpt::pickle
