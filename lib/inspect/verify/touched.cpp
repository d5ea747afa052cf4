// Names the tensors in a damaged record.

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "format/tensors_in.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

struct TouchedRecord {
  Finding* finding;
  Extent extent;
};
// The damaged records of each file. They do not overlap, but may have several findings.
using TouchedRecords = std::unordered_map<FileId, std::vector<TouchedRecord>>;

bool is_of_record(const Finding& finding) {
  const bool of_bytes = finding.check == Check::crc || finding.check == Check::unreadable ||
                        finding.check == Check::manifest;
  return of_bytes && finding.tensor.empty() && !finding.member.empty();
}

// Returns the data of the record in a finding, or nullopt if its header is unreadable.
std::optional<Extent> data_of(const CheckedFile& file, const Finding& finding) {
  if (!file.zip) return std::nullopt;
  const ZipEntry* entry = file.zip->find(finding.member);
  if (entry == nullptr) return std::nullopt;
  try {
    return file.zip->data(*entry);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// A checkpoint that was not opened because of damage may still give the positions of its tensors.
std::unique_ptr<Checkpoint> opened_for_names(Verification& v) {
  if (v.report.form != "zero" && v.report.form != "universal") return nullptr;
  try {
    return std::make_unique<Checkpoint>(
        Checkpoint::open(v.inputs, v.folder, checkpoint_options(v)));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted) throw;
    return nullptr;
  }
}

// Returns the findings of records that hold bytes of `source`.
std::set<Finding*> findings_of(const TensorSource& source, const TouchedRecords& records) {
  std::set<Finding*> found;
  source.without_repeats().lower([&](const SourceRun& run) {
    for (const Rows& rows : run.sources()) {
      const auto of_file = records.find(rows.file);
      if (of_file == records.end()) continue;
      const Extent span = rows.span(run.rows);
      const auto& sorted = of_file->second;
      auto record = std::partition_point(
          sorted.begin(), sorted.end(),
          [&](const TouchedRecord& each) { return each.extent.end() <= span.offset; });
      for (; record != sorted.end() && record->extent.offset < span.end(); ++record) {
        found.insert(record->finding);
      }
    }
  });
  return found;
}

void name_params(const Checkpoint& checkpoint, TouchedRecords& records) {
  for (auto& [file, some] : records) {
    std::sort(some.begin(), some.end(), [](const TouchedRecord& a, const TouchedRecord& b) {
      return a.extent.offset < b.extent.offset;
    });
  }
  const auto look = [&](const TensorSource& source, const std::string& label) {
    const std::vector<FileId> files = source.files();
    if (std::none_of(files.begin(), files.end(),
                     [&](FileId file) { return records.contains(file); })) {
      return;
    }
    for (Finding* finding : findings_of(source, records)) finding->tensors.push_back(label);
  };
  for (const Param& param : checkpoint.params()) {
    if (!param.alias_of.empty()) continue;
    look(param.weight, param.name);
    for (const ParamState& state : param.states) look(state.value, param.name + " " + state.key);
  }
}

// The pickle's keys of the tensors in each record of a file, by the record's name without the top
// folder. They are used if the parameters of the record are unknown.
using KeysOfRecords = KeyedMap<std::string, std::vector<std::string>>;

KeysOfRecords keys_of_records(const CheckedFile& file) {
  KeysOfRecords keys;
  if (!file.shard) return keys;
  try {
    for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
      keys["data/" + file.shard->archive.info(found.value).storage_key].push_back(found.path);
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted) throw;  // the pickle is damaged too
  }
  return keys;
}

void name_keys(const KeysOfRecords& keys, Finding& finding) {
  const std::string& member = finding.member;
  auto found = keys.find(member);
  // The finding's name has the top folder.
  if (found == keys.end()) found = keys.find(member.substr(member.find('/') + 1));
  if (found != keys.end()) finding.tensors = found->second;
}

}  // namespace

void name_touched(Verification& v) {
  KeyedMap<std::string, const CheckedFile*> by_name;
  for (const CheckedFile& file : v.files) by_name.emplace(file.display, &file);
  TouchedRecords records;
  for (Finding& finding : v.report.findings) {
    const auto file = by_name.find(finding.file);
    if (!is_of_record(finding) || file == by_name.end()) continue;
    if (const auto extent = data_of(*file->second, finding)) {
      records[extent->file].push_back({&finding, *extent});
    }
  }
  if (!records.empty()) {
    const std::unique_ptr<Checkpoint> opened = v.checkpoint ? nullptr : opened_for_names(v);
    const Checkpoint* checkpoint = v.checkpoint ? v.checkpoint.get() : opened.get();
    if (checkpoint != nullptr) name_params(*checkpoint, records);
  }
  std::unordered_map<const CheckedFile*, KeysOfRecords> keys;
  for (Finding& finding : v.report.findings) {
    const auto file = by_name.find(finding.file);
    if (!is_of_record(finding) || !finding.tensors.empty() || file == by_name.end()) continue;
    const auto [of_file, is_new] = keys.try_emplace(file->second);
    if (is_new) of_file->second = keys_of_records(*file->second);
    name_keys(of_file->second, finding);
  }
}

}  // namespace dsckpt
