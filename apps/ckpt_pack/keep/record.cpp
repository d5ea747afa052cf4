#include "ckpt_pack/keep/record.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "dsckpt/error.h"

namespace dsckpt::pack {
namespace {

constexpr int kRecordSchema = 1;

CorruptError no_record() {
  return CorruptError({}, "is not a record of ckpt-pack keep");
}

const nlohmann::json& member_of(const nlohmann::json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) throw no_record();
  return object[key];
}

std::string text_in(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member_of(object, key);
  if (!value.is_string()) throw no_record();
  return value;
}

uint64_t count_in(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member_of(object, key);
  if (!value.is_number_unsigned()) throw no_record();
  return value;
}

int64_t number_in(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member_of(object, key);
  if (!value.is_number_integer()) throw no_record();
  return value;
}

const nlohmann::json& list_in(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member_of(object, key);
  if (!value.is_array()) throw no_record();
  return value;
}

}  // namespace

std::string text_of(const Record& record) {
  nlohmann::json data = {{"schema", kRecordSchema},
                         {"type", "kept"},
                         {"name", record.name},
                         {"is_tag", record.is_tag},
                         {"step", nullptr},
                         {"how", record.how},
                         {"files", nlohmann::json::array()},
                         {"outputs", nlohmann::json::array()}};
  if (record.step) data["step"] = *record.step;
  for (const RunFile& file : record.files) {
    data["files"].push_back(
        {{"path", file.path}, {"bytes", file.bytes}, {"modified", file.modified}});
  }
  for (const JobFile& file : record.outputs) {
    data["outputs"].push_back({{"path", file.path}, {"bytes", file.bytes}});
  }
  return dump(data) + "\n";
}

Record parse_record(std::string_view text) {
  const nlohmann::json data = parse_json(text);
  if (text_in(data, "type") != "kept") throw no_record();
  if (number_in(data, "schema") != kRecordSchema) {
    throw UnsupportedError({}, "is a record of another version of ckpt-pack keep");
  }
  Record record{.name = text_in(data, "name"), .how = text_in(data, "how")};
  const nlohmann::json& is_tag = member_of(data, "is_tag");
  if (!is_tag.is_boolean()) throw no_record();
  record.is_tag = is_tag;
  if (!member_of(data, "step").is_null()) record.step = number_in(data, "step");
  for (const nlohmann::json& file : list_in(data, "files")) {
    record.files.push_back(
        {text_in(file, "path"), count_in(file, "bytes"), number_in(file, "modified")});
  }
  for (const nlohmann::json& file : list_in(data, "outputs")) {
    record.outputs.push_back({text_in(file, "path"), count_in(file, "bytes")});
  }
  return record;
}

}  // namespace dsckpt::pack
