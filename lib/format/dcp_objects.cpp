#include "format/dcp_objects.h"

#include <algorithm>
#include <string>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt::dcp {
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;
namespace {

constexpr std::string_view kStorageInfo = "_StorageInfo";

uint64_t size_in(const Value& attributes, std::string_view key) {
  const Value value = attributes.at(key);
  if (!value.is(Kind::integer) || value.as_int() < 0) {
    throw CorruptError({}, "'" + std::string(key) + "' of a value is not a size");
  }
  return static_cast<uint64_t>(value.as_int());
}

}  // namespace

Value attributes_of(const Value& value, std::string_view module, std::string_view name) {
  const bool is_it = value.is(Kind::object) && value.as_object().is_a(module, name);
  if (is_it) {
    const ObjectNode& object = value.as_object();
    if (object.made == ObjectNode::Made::newobj && object.arguments.as_sequence().empty() &&
        object.has_state && object.state.is(Kind::dict) && object.items.empty() &&
        object.mapping.items.empty()) {
      return object.state;
    }
  }
  throw CorruptError(
      {}, describe(value) + " where torch.distributed.checkpoint has its " + std::string(name));
}

void refuse_unknown(const Value& attributes, std::string_view name,
                    std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : attributes.as_dict().items) {
    const std::string_view text = key.is(Kind::string) ? key.as_string() : "";
    if (value.is_none() || std::find(known.begin(), known.end(), text) != known.end()) continue;
    throw UnsupportedError({}, "written by a newer torch: its " + std::string(name) + " has '" +
                                   printable(std::string(text)) + "'");
  }
}

void refuse_members(std::string_view name, size_t count, size_t known) {
  throw UnsupportedError({}, "written by a newer torch: its " + std::string(name) + " has " +
                                 counted(count, "member") + ", and " + std::to_string(known) +
                                 " are known");
}

void check_form(const Value& info) {
  const Value attributes = attributes_of(info, kFilesystem, kStorageInfo);
  const Value transforms = attributes.find_or_none("transform_descriptors");
  if (!transforms.is_none() && (!transforms.is(Kind::list) || !transforms.as_sequence().empty())) {
    throw UnsupportedError({}, "is compressed or encrypted");
  }
  refuse_unknown(attributes, kStorageInfo,
                 {"relative_path", "offset", "length", "transform_descriptors"});
}

DcpPlace place_of(const Value& info) {
  const Value attributes = attributes_of(info, kFilesystem, kStorageInfo);
  return {.file = std::string(attributes.at("relative_path").as_string()),
          .offset = size_in(attributes, "offset"),
          .size = size_in(attributes, "length")};
}

}  // namespace dsckpt::dcp
