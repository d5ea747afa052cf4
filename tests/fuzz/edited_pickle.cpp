#include "fuzz/edited_pickle.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "pickle/opcodes.h"

namespace dsckpt {
namespace {

using namespace pickle;

constexpr int kMostEdits = 64;

struct Cursor : ByteReader {
  using ByteReader::ByteReader;
  static uint64_t length(int64_t size) { return static_cast<uint64_t>(size); }
};

// An opcode and its argument each.
using Pieces = std::vector<std::string>;

Pieces pieces_of(std::string_view pickle) {
  Pieces pieces;
  Cursor cursor(as_byte_span(pickle));
  while (!cursor.at_end()) {
    const size_t begin = cursor.position();
    read_argument(cursor, cursor.read<uint8_t>());
    pieces.emplace_back(pickle.substr(begin, cursor.position() - begin));
  }
  return pieces;
}

enum Kind : uint8_t {
  kNumber = 1,
  kText = 2,
  kValue = 4,  // puts one value on the stack and takes none
};

// The opcodes by their kinds. A table, since every edit asks it of all.
constexpr std::array<uint8_t, 256> kKinds = [] {
  std::array<uint8_t, 256> kinds{};
  for (const Opcode opcode : {kBinInt, kBinInt1, kBinInt2, kLong1}) {
    kinds[opcode] = kNumber | kValue;
  }
  for (const Opcode opcode : {kBinUnicode, kShortBinUnicode}) kinds[opcode] = kText | kValue;
  for (const Opcode opcode : {kNone, kNewTrue, kNewFalse, kBinFloat, kEmptyDict, kEmptyList,
                              kEmptyTuple, kGlobal, kBinGet, kLongBinGet}) {
    kinds[opcode] = kValue;
  }
  return kinds;
}();

class Editor {
 public:
  Editor(std::string_view pickle, ByteSpan edits) : pieces_(pieces_of(pickle)), edits_(edits) {}

  std::string run() {
    for (int i = 0; i < kMostEdits && !edits_.at_end() && !pieces_.empty(); ++i) edit();
    std::string pickle;
    for (const std::string& piece : pieces_) pickle += piece;
    return pickle;
  }

 private:
  void edit() {
    switch (number(1) % 7) {
      case 0:
        if (std::string* to = find(kValue)) *to = *find(kValue);
        break;
      case 1:
        if (std::string* to = find(kNumber)) {
          *to = static_cast<char>(kBinInt);
          append_le(*to, int32_t{static_cast<int8_t>(number(1))});
        }
        break;
      case 2:
        if (std::string* to = find(kNumber)) {
          *to = {static_cast<char>(kLong1), sizeof(uint64_t)};
          append_le(*to, number(sizeof(uint64_t)));
        }
        break;
      case 3:
        if (std::string* to = find(kText)) {
          const std::string text = bytes();
          *to = static_cast<char>(kBinUnicode);
          append_le(*to, static_cast<uint32_t>(text.size()));
          *to += text;
        }
        break;
      case 4: {
        const auto [first, last] = stretch();
        pieces_.erase(first, last);
        break;
      }
      case 5: {
        const auto [first, last] = stretch();
        const Pieces again(first, last);
        pieces_.insert(place(), again.begin(), again.end());
        break;
      }
      default: {
        std::string other = bytes();
        if (!other.empty()) pieces_.insert(place(), std::move(other));
      }
    }
  }

  // The next bytes as a number; 0s follow the last.
  uint64_t number(size_t size) {
    uint64_t number = 0;
    const ByteSpan read = edits_.take(std::min(size, edits_.remaining()));
    std::memcpy(&number, read.data(), read.size());
    return number;
  }
  std::string bytes() {
    const uint64_t size = number(1);
    return std::string(edits_.text(std::min<uint64_t>(size, edits_.remaining())));
  }

  Pieces::iterator place() {
    return pieces_.begin() + static_cast<std::ptrdiff_t>(number(2) % pieces_.size());
  }
  // Some that follow each other.
  std::pair<Pieces::iterator, Pieces::iterator> stretch() {
    const auto first = place();
    const auto count = std::min(static_cast<std::ptrdiff_t>(number(1)), pieces_.end() - first);
    return {first, first + count};
  }
  // One of that kind; nullptr if there is none.
  std::string* find(Kind kind) {
    const auto is_such = [&](const std::string& piece) {
      return (kKinds[static_cast<uint8_t>(piece[0])] & kind) != 0;
    };
    size_t count = 0;
    for (const std::string& piece : pieces_) count += is_such(piece) ? 1 : 0;
    if (count == 0) return nullptr;
    uint64_t skipped = number(2) % count;
    auto piece = pieces_.begin();
    while (!is_such(*piece) || skipped-- > 0) ++piece;
    return &*piece;
  }

  Pieces pieces_;
  ByteReader edits_;
};

}  // namespace

std::string edited_pickle(std::string_view pickle, ByteSpan edits) {
  return Editor(pickle, edits).run();
}

}  // namespace dsckpt
