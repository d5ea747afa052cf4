// Any bytes as a pickle give a value or an Error: no crash, no endless loop, no memory out of
// proportion. Run under the sanitizers this says more.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "dsckpt/error.h"
#include "pickle/pickle.h"
#include "support/samples.h"

namespace dsckpt::pickle {
namespace {

using namespace std::string_view_literals;

using namespace std::string_literals;

// True if `text` parses; the value is then written and parsed again. Anything thrown must be one of
// the two errors promised.
bool survives(std::string_view text) {
  try {
    const Document document = Document::parse(as_byte_span(text));
    try {
      const std::string written = write_protocol2(document.root());
      EXPECT_NO_THROW(Document::parse(as_byte_span(written)));
    } catch (const UnsupportedError&) {
    }
    return true;
  } catch (const CorruptError&) {
    return false;
  }
}

std::string times(size_t count, std::string_view text) {
  std::string out;
  while (count-- > 0) out += text;
  return out;
}

TEST(PickleCorrupt, TruncatedAnywhere) {
  for (const test::PickleSample& sample : test::pickle_samples()) {
    for (const std::string_view pickle : sample.pickles) {
      const size_t step = pickle.size() > 1000 ? 7 : 1;
      for (size_t size = 0; size < pickle.size(); size += step) {
        // A copy on the heap, so that the sanitizer sees reads past its end.
        const std::string part(pickle.substr(0, size));
        EXPECT_THROW(Document::parse(as_byte_span(part)), CorruptError)
            << sample.expression << " cut to " << size;
      }
    }
  }
}

TEST(PickleCorrupt, EveryBitFlipped) {
  for (const test::PickleSample& sample : test::pickle_samples()) {
    for (const std::string_view pickle : sample.pickles) {
      if (pickle.size() > 160) continue;
      for (size_t bit = 0; bit < 8 * pickle.size(); ++bit) {
        std::string flipped(pickle);
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        survives(flipped);
      }
    }
  }
}

TEST(PickleCorrupt, RandomMutations) {
  std::mt19937 random(20240607);
  const auto below = [&](size_t limit) { return random() % limit; };
  size_t parsed = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto& samples = test::pickle_samples();
    const test::PickleSample& sample = samples[below(samples.size())];
    std::string pickle(sample.pickles[below(sample.pickles.size())].substr(0, 2000));
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const size_t at = below(pickle.size());
      switch (below(4)) {
        case 0:
          pickle[at] = static_cast<char>(random());
          break;
        case 1:
          pickle.erase(at, 1 + below(4));
          break;
        case 2:
          pickle.insert(at, 1, static_cast<char>(random()));
          break;
        default:
          pickle.insert(at, pickle.substr(below(pickle.size()), 1 + below(12)));
      }
      if (pickle.empty()) pickle = ".";
    }
    parsed += survives(pickle);
  }
  EXPECT_GT(parsed, 100u) << "the mutations are too wild to reach anything";
}

TEST(PickleCorrupt, RandomOpcodes) {
  constexpr std::string_view kOpcodes =
      "(.012FIJKLMNPQRSTUVXabcd}eghijl]opqrst)uG\x80\x81\x85\x86\x87\x88\x89\x8a\x8b"
      "BC\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x00\x01\n"sv;
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    // A few values to work on, then anything.
    std::string pickle = "cm\nC\nq\0)q\1]q\2}q\3\x8fq\4Vx\nq\5"s;
    for (size_t i = 0; i < 30; ++i) pickle.push_back(kOpcodes[random() % kOpcodes.size()]);
    pickle += ".";
    survives(pickle);
  }
}

TEST(PickleCorrupt, LengthsBeyondTheEndAllocateNothing) {
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\x7f"s;
  for (const std::string_view opcode : {"\x8d"sv, "\x8e"sv, "\x96"sv, "\x95"sv}) {
    EXPECT_FALSE(survives(std::string(opcode) + huge + "N."));
  }
  EXPECT_FALSE(survives("\x8b\xff\xff\xff\x7f\x01."));
  EXPECT_FALSE(survives("X\xff\xff\xff\xff\x01."));
  EXPECT_FALSE(survives("B\xff\xff\xff\xff\x01."));
  EXPECT_FALSE(survives("T\xff\xff\xff\x7f\x01."));
}

TEST(PickleCorrupt, HugeMemoIndicesCostNoMemory) {
  // No pickler counts further than there are bytes.
  EXPECT_FALSE(
      survives("K\1r\xff\xff\xff\xff"
               "0j\xff\xff\xff\xff."));
  EXPECT_FALSE(survives("K\1p18446744073709551615\n0g18446744073709551615\n."));
  // Indices that keep doubling.
  std::string pickle = "N";
  for (int bit = 0; bit < 64; ++bit) pickle += "p" + std::to_string(uint64_t{1} << bit) + "\n";
  EXPECT_FALSE(survives(pickle + "."));
}

TEST(PickleCorrupt, DeepNestingIsRefusedWithoutRecursion) {
  constexpr size_t kDeep = 200'000;
  EXPECT_FALSE(survives(times(kDeep, "]") + times(kDeep - 1, "a") + "."));
  EXPECT_FALSE(survives(")" + times(kDeep, "\x85") + "."));
  EXPECT_FALSE(survives(times(kDeep, "(") + times(kDeep, "t") + "."));
  EXPECT_FALSE(survives("N" + times(kDeep, "Q") + "."));
  EXPECT_FALSE(survives("cm\nC\n" + times(kDeep, ")R") + "."));
  EXPECT_FALSE(survives(times(kDeep, "}N") + "}" + times(kDeep, "s") + "."));
  // Deep, but dropped before the end.
  EXPECT_TRUE(survives(")" + times(kDeep, "\x85") + "0N."));
  EXPECT_TRUE(survives(times(kDeep, "(") + "N."));
  // As deep as the limit, and one more.
  EXPECT_TRUE(survives(times(1000, "]") + times(999, "a") + "."));
  EXPECT_FALSE(survives(times(1001, "]") + times(1000, "a") + "."));
}

TEST(PickleCorrupt, BillionLaughsAreAGraphOfShortLists) {
  std::string pickle = "](NNNNNNNNNNeq\0"s;
  for (int level = 0; level < 200; ++level) pickle += "0](" + times(10, "h\0"sv) + "eq\0"s;
  pickle += ".";
  const Document document = Document::parse(as_byte_span(pickle));
  EXPECT_FALSE(document.is_cyclic());
  EXPECT_LT(write_protocol2(document.root()).size(), 20000u);
}

TEST(PickleCorrupt, AnEncodedTextSharedByManyCallsIsDecodedOnce) {
  std::string pickle = "c_codecs\nencode\nq\0(V"s + std::string(1 << 20, '\xe9') +
                       "\nVlatin1\ntq\1" + "0](" + times(20000, "h\0h\1R"sv) + "e.";
  const Document document = Document::parse(as_byte_span(pickle));
  EXPECT_EQ(document.root().as_sequence()[1].as_bytes().data(),
            document.root().as_sequence()[19999].as_bytes().data());
}

TEST(PickleCorrupt, RecursiveValuesEnd) {
  EXPECT_TRUE(survives("]q\0h\0a."s));
  EXPECT_TRUE(survives("}q\0Nh\0s."s));
  EXPECT_TRUE(survives("]q\0h\0\x85q\1a0h\1."s));
  EXPECT_TRUE(survives("cm\nC\n]q\0h\0a\x85Rq\2h\2b."s));
  // An object among its own arguments.
  EXPECT_TRUE(survives("]q\0cm\nC\nh\0\x85Rq\1a0h\1."s));
}

TEST(PickleCorrupt, ManyEqualKeysTakeNoLongerThanManyKeys) {
  std::string pickle = "}(";
  for (int i = 0; i < 200000; ++i) pickle += "Vk" + std::to_string(i % 10) + "\nN";
  const Document equal = Document::parse(as_byte_span(pickle + "u."));
  EXPECT_EQ(equal.root().as_dict().items.size(), 10u);
  pickle = "}(";
  for (int i = 0; i < 200000; ++i) pickle += "I" + std::to_string(i) + "\nN";
  const Document different = Document::parse(as_byte_span(pickle + "u."));
  EXPECT_EQ(different.root().as_dict().items.size(), 200000u);
}

TEST(PickleCorrupt, ACallOfSystemStaysData) {
  // python: class E: __reduce__ = lambda self: (os.system, ('exit 7',)); pickle.dumps(E(), 4)
  const std::string_view evil =
      "\x80\x04\x95!\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x06"
      "exit 7\x94\x85\x94R\x94."sv;
  const Document document = Document::parse(as_byte_span(evil));
  const ObjectNode& object = document.root().as_object();
  EXPECT_TRUE(object.is_a("posix", "system"));
  EXPECT_EQ(object.arguments.as_sequence()[0].as_string(), "exit 7");
}

}  // namespace
}  // namespace dsckpt::pickle
