// ArchiveCopy: a new torch archive with values of other archives, changed on the way.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "format/torch_archive.h"

namespace dsckpt {

// One thread. Make values in the order of the result, because storages are numbered as they are
// met. The archives must live until lay_out().
class ArchiveCopy {
 public:
  explicit ArchiveCopy(const TorchArchive& from) : from_(from) {}

  const TorchArchive& from() const { return from_; }
  pickle::Document& document() { return writer_.document(); }
  TorchArchiveWriter& writer() { return writer_; }

  // A copy of a value of from(), or of another archive.
  pickle::Value of(const pickle::Value& value) { return writer_.import(from_, value); }
  pickle::Value of(const TorchArchive& from, const pickle::Value& value) {
    return writer_.import(from, value);
  }
  void set(const pickle::Value& dict, std::string_view key, pickle::Value value) {
    document().set_item(dict, document().intern(key), value);
  }

  // The items of `mapping`, of from(), in order as a dict. `change(key, value)` gives each its new
  // value; items for which it gives none are left out. Keys that are not texts come as "".
  template <typename F>
  pickle::Value dict_of(const pickle::Value& mapping, F&& change) {
    return dict_of(from_, mapping, std::forward<F>(change));
  }
  template <typename F>
  pickle::Value dict_of(const TorchArchive& from, const pickle::Value& mapping, F&& change) {
    pickle::Value dict = document().dict();
    for (const auto& [key, value] : mapping.as_dict().items) {
      // The storages of a key come before those of its value.
      const bool named = key.is(pickle::Kind::string);
      const pickle::Value copied = named ? pickle::Value() : of(from, key);
      const std::optional<pickle::Value> changed =
          change(named ? key.as_string() : std::string_view(), value);
      if (changed) document().set_item(dict, named ? of(from, key) : copied, *changed);
    }
    return dict;
  }

  // Writes the archive; call one of these, once.
  TorchArchiveWriter::Written write(pickle::Value root) {
    document().set_root(root);
    return std::move(writer_).write();
  }
  void lay_out(pickle::Value root, PlanBuilder& plan, std::string path) {
    TorchArchiveWriter::lay_out(write(root), plan, std::move(path));
  }

 private:
  const TorchArchive& from_;
  TorchArchiveWriter writer_;
};

}  // namespace dsckpt
