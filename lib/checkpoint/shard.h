// Shards: the files of one checkpoint, opened, and how fields are taken from their pickles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/find/tag_folder.h"
#include "dsckpt/error.h"
#include "format/torch_archive.h"
#include "io/input_file.h"
#include "pickle/pickle.h"

namespace dsckpt {

struct Shard {
  ShardName name;
  std::filesystem::path path;
  std::string display;  // the file, for messages
  TorchArchive archive;
  // True if this file is lost, and `archive` is another rank's in its place (salvage.h).
  bool lost = false;

  Where where(std::string_view member = {}) const {
    return {.file = display, .member = std::string(member)};
  }
};

// A file that could not be opened.
struct UnreadableShard {
  ShardFile file;
  std::string why;
};

// Opens `files`, several at a time; the result is in their order. Names are shown relative to
// `root`. A zip remembers the name it was saved under: InconsistentError for a file that carries
// the name of another rank. If several files are bad, the error is that of the first in order. With
// `unreadable` there is no error: bad files go there. The `pickles` are those that were parsed
// before, and these.
std::vector<Shard> open_shards(InputFiles& inputs, const std::vector<ShardFile>& files,
                               const std::filesystem::path& root,
                               std::vector<UnreadableShard>* unreadable = nullptr,
                               SharedPickles* pickles = nullptr);

// Fields of a shard. `path` is what messages call the mapping ("optimizer_state_dict"); "" at the
// top. A field of the wrong kind is a CorruptError that names file and field.
class Fields {
 public:
  Fields(const Shard& shard, pickle::Value mapping, std::string path = {});

  const Shard& shard() const { return *shard_; }
  // True if there is such a key and its value is not None.
  bool has(std::string_view key) const;
  pickle::Value operator[](std::string_view key) const;          // must be there
  std::optional<pickle::Value> get(std::string_view key) const;  // nullopt if absent or None
  Fields in(std::string_view key) const;                         // a mapping

  int64_t integer(std::string_view key) const;  // also an int enum (ZeroStageEnum)
  std::optional<int64_t> optional_integer(std::string_view key) const;
  // nullopt also for values that are not integers: client_state may have replaced a key that is
  // only a fact.
  std::optional<int64_t> integer_if_any(std::string_view key) const;
  std::string text(std::string_view key) const;  // "" if absent or not a string
  // A list or tuple; empty if absent or None.
  std::span<const pickle::Value> sequence(std::string_view key) const;

  // The place of a field, for messages.
  Where where(std::string_view key = {}) const;

 private:
  const Shard* shard_;
  pickle::Value mapping_;
  std::string path_;
};

// True if both are made of equal numbers, texts and containers. Tensors are not compared, nor
// values deeper than any sane setting. At most `left` values are compared, which are counted down;
// a long text counts as several.
bool same_plain_data(const pickle::Value& a, const pickle::Value& b, int& left);
bool same_plain_data(const pickle::Value& a, const pickle::Value& b);

// More than any optimizer's settings have. A pickle can refer to one list again and again, so that
// walking through it all would never end.
inline constexpr int kMaxPlainValues = 1 << 20;

// The number of values that a text counts as, besides one.
inline int further_values_of(std::string_view text) {
  constexpr size_t kBytesOfValue = 64;
  return static_cast<int>(std::min<size_t>(text.size() / kBytesOfValue, kMaxPlainValues));
}

// A parameter's name and shape.
using NamedShapes = std::vector<std::pair<std::string, Shape>>;

// A dict name -> torch.Size as an ordered list.
NamedShapes named_shapes(const Shard& shard, const pickle::Value& mapping, std::string_view member);

}  // namespace dsckpt
