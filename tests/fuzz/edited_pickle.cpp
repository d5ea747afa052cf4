#include "fuzz/edited_pickle.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
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

bool is_one_of(const std::string& piece, std::initializer_list<Opcode> opcodes) {
  return std::ranges::find(opcodes, static_cast<Opcode>(piece[0])) != opcodes.end();
}

bool is_number(const std::string& piece) {
  return is_one_of(piece, {kBinInt, kBinInt1, kBinInt2, kLong1});
}

bool is_text(const std::string& piece) {
  return is_one_of(piece, {kBinUnicode, kShortBinUnicode});
}

// Whether it puts one value on the stack and takes none.
bool is_value(const std::string& piece) {
  return is_number(piece) || is_text(piece) ||
         is_one_of(piece, {kNone, kNewTrue, kNewFalse, kBinFloat, kEmptyDict, kEmptyList,
                           kEmptyTuple, kGlobal, kBinGet, kLongBinGet});
}

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
        if (std::string* to = find(is_value)) *to = *find(is_value);
        break;
      case 1:
        if (std::string* to = find(is_number)) {
          *to = static_cast<char>(kBinInt);
          append_le(*to, int32_t{static_cast<int8_t>(number(1))});
        }
        break;
      case 2:
        if (std::string* to = find(is_number)) {
          *to = {static_cast<char>(kLong1), sizeof(uint64_t)};
          append_le(*to, number(sizeof(uint64_t)));
        }
        break;
      case 3:
        if (std::string* to = find(is_text)) {
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
  // One of those that `is_such`; nullptr if there is none.
  template <typename IsSuch>
  std::string* find(IsSuch is_such) {
    std::vector<std::string*> such;
    for (std::string& piece : pieces_) {
      if (is_such(piece)) such.push_back(&piece);
    }
    return such.empty() ? nullptr : such[number(2) % such.size()];
  }

  Pieces pieces_;
  ByteReader edits_;
};

}  // namespace

std::string edited_pickle(std::string_view pickle, ByteSpan edits) {
  return Editor(pickle, edits).run();
}

}  // namespace dsckpt
