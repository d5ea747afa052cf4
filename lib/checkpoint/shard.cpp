#include "checkpoint/shard.h"

#include <tbb/parallel_for.h>

#include <exception>
#include <string_view>

#include "io/opening_files.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Deeper than any optimizer's settings.
constexpr int kMaxPlainDepth = 32;

// torch.save names a zip's top folder after the file it writes. So the folder tells under which
// name, and by which rank, a shard was saved. Streams are named "archive", and users rename
// folders' files in other ways: only a name that is a shard's is evidence.
void check_saved_name(const Shard& shard) {
  const std::string name = std::string(shard.archive.prefix()) + ".pt";
  const auto saved = parse_shard_name(name);
  if (saved && !saved->same_rank(shard.name)) {
    throw InconsistentError(shard.where(),
                            "was saved as " + name + ": the file of another rank is in its place");
  }
}

// A list can have one long text again and again.
bool same_texts(std::string_view a, std::string_view b, int& left_over) {
  left_over -= further_values_of(a);
  return a == b;
}

// `left_over`: how many values may still be looked at.
bool same(const Value& a, const Value& b, int depth, int& left_over) {
  if (depth > kMaxPlainDepth || left_over <= 0) return true;
  --left_over;
  if (TorchArchive::is_tensor(a) && TorchArchive::is_tensor(b)) return true;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return a.as_bool() == b.as_bool();
    case Kind::integer:
      return a.as_int() == b.as_int();
    case Kind::real:
      return a.as_real() == b.as_real() ||
             (a.as_real() != a.as_real() && b.as_real() != b.as_real());
    case Kind::string:
      return same_texts(a.as_string(), b.as_string(), left_over);
    case Kind::big_integer:
    case Kind::bytes:
    case Kind::byte_array:
      return same_texts(a.as_bytes(), b.as_bytes(), left_over);
    case Kind::tuple:
    case Kind::list:
    case Kind::set:
    case Kind::frozen_set: {
      const auto left = a.as_sequence();
      const auto right = b.as_sequence();
      if (left.size() != right.size()) return false;
      for (size_t i = 0; i < left.size(); ++i) {
        if (!same(left[i], right[i], depth + 1, left_over)) return false;
      }
      return true;
    }
    case Kind::dict: {
      const auto& left = a.as_dict().items;
      const auto& right = b.as_dict().items;
      if (left.size() != right.size()) return false;
      for (size_t i = 0; i < left.size(); ++i) {
        if (!same(left[i].first, right[i].first, depth + 1, left_over) ||
            !same(left[i].second, right[i].second, depth + 1, left_over)) {
          return false;
        }
      }
      return true;
    }
    case Kind::global:
      return a.as_global() == b.as_global();
    case Kind::object: {
      const pickle::ObjectNode& left = a.as_object();
      const pickle::ObjectNode& right = b.as_object();
      return same(left.callable, right.callable, depth + 1, left_over) &&
             same(left.arguments, right.arguments, depth + 1, left_over) &&
             left.has_state == right.has_state &&
             (!left.has_state || same(left.state, right.state, depth + 1, left_over));
    }
    case Kind::persistent:
      return true;
  }
  return true;
}

// An int, or an object of an int enum class made from one. Throws CorruptError.
int64_t integer_of(const Value& value) {
  if (value.is(Kind::object)) {
    const pickle::ObjectNode& object = value.as_object();
    if (object.arguments.is(Kind::tuple) && object.arguments.as_sequence().size() == 1 &&
        object.arguments.as_sequence()[0].is(Kind::integer)) {
      return object.arguments.as_sequence()[0].as_int();
    }
  }
  return value.as_int();
}

}  // namespace

std::vector<Shard> open_shards(InputFiles& inputs, const std::vector<ShardFile>& files,
                               const std::filesystem::path& root,
                               std::vector<UnreadableShard>* unreadable, SharedPickles* pickles) {
  std::vector<std::optional<Shard>> opened(files.size());
  std::vector<std::exception_ptr> failures(files.size());
  std::vector<FileId> ids(files.size());
  const OpeningFiles opening(inputs.progress(), files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    try {
      if (!files[i].damage.empty()) {
        throw CorruptError({.file = files[i].path.string()}, files[i].damage);
      }
      ids[i] = inputs.add(files[i].path, root);
    } catch (const Error&) {
      failures[i] = std::current_exception();
      if (unreadable == nullptr) throw;
    }
  }
  SharedPickles of_these;
  if (pickles == nullptr) pickles = &of_these;
  tbb::parallel_for(size_t{0}, files.size(), [&](size_t i) {
    if (failures[i] || opening.is_cancelled()) return;
    try {
      const std::string& display = inputs[ids[i]].display();
      in_context({.file = display}, [&] {
        opened[i] = Shard{files[i].name, files[i].path, display,
                          TorchArchive::open(inputs, ids[i], pickles), false};
        check_saved_name(*opened[i]);
      });
    } catch (...) {
      failures[i] = std::current_exception();
    }
    opening.opened_one();
  });
  opening.throw_if_cancelled();

  std::vector<Shard> shards;
  for (size_t i = 0; i < files.size(); ++i) {
    if (!failures[i]) {
      shards.push_back(std::move(*opened[i]));
      continue;
    }
    try {
      std::rethrow_exception(failures[i]);
    } catch (const Error& error) {
      if (unreadable == nullptr || error.kind() == ErrorKind::interrupted) throw;
      unreadable->push_back({files[i], error.message()});
    }
  }
  return shards;
}

Fields::Fields(const Shard& shard, Value mapping, std::string path)
    : shard_(&shard), mapping_(mapping), path_(std::move(path)) {
  if (!mapping.is_mapping()) {
    throw CorruptError(shard.where(path_), describe(mapping) + " where dict was expected");
  }
}

Where Fields::where(std::string_view key) const {
  std::string member = path_;
  if (!key.empty()) member += (member.empty() ? "" : ".") + std::string(key);
  return shard_->where(member);
}

bool Fields::has(std::string_view key) const {
  return get(key).has_value();
}

std::optional<Value> Fields::get(std::string_view key) const {
  const std::optional<Value> value = mapping_.find(key);
  return value && !value->is_none() ? value : std::nullopt;
}

Value Fields::operator[](std::string_view key) const {
  const std::optional<Value> value = get(key);
  if (!value) throw CorruptError(where(), "has no key '" + std::string(key) + "'");
  return *value;
}

Fields Fields::in(std::string_view key) const {
  return {*shard_, (*this)[key], where(key).member};
}

int64_t Fields::integer(std::string_view key) const {
  return in_context(where(key), [&] { return integer_of((*this)[key]); });
}

std::optional<int64_t> Fields::optional_integer(std::string_view key) const {
  return has(key) ? std::optional(integer(key)) : std::nullopt;
}

std::optional<int64_t> Fields::integer_if_any(std::string_view key) const {
  const auto value = get(key);
  return value && value->is(Kind::integer) ? std::optional(value->as_int()) : std::nullopt;
}

std::string Fields::text(std::string_view key) const {
  const auto value = get(key);
  return value && value->is(Kind::string) ? std::string(value->as_string()) : std::string();
}

std::span<const Value> Fields::sequence(std::string_view key) const {
  const auto value = get(key);
  if (!value) return {};
  return in_context(where(key), [&] { return value->as_sequence(); });
}

bool same_plain_data(const Value& a, const Value& b, int& left) {
  return same(a, b, 0, left);
}

bool same_plain_data(const Value& a, const Value& b) {
  int left_over = kMaxPlainValues;
  return same(a, b, 0, left_over);
}

NamedShapes named_shapes(const Shard& shard, const Value& mapping, std::string_view member) {
  return in_context(shard.where(member), [&] {
    NamedShapes shapes;
    for (const auto& [name, size] : mapping.as_dict().items) {
      shapes.emplace_back(std::string(name.as_string()),
                          in_context({.tensor = std::string(name.as_string())},
                                     [&value = size] { return shape_from_pickle(value); }));
    }
    return shapes;
  });
}

}  // namespace dsckpt
