// Which tensors a record that is damaged holds.

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/tensors_in.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

struct TouchedRecord {
  Finding* finding;
  Extent extent;
};

bool is_of_record(const Finding& finding) {
  const bool of_bytes = finding.check == Check::crc || finding.check == Check::unreadable ||
                        finding.check == Check::manifest;
  return of_bytes && finding.tensor.empty() && !finding.member.empty();
}

// Where the data of the record that a finding names is; nullopt if its header cannot be read.
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

// A checkpoint that has not been opened because of what is damaged may still say what lies where.
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

bool meets(const TensorSource& source, const Extent& record) {
  bool found = false;
  source.lower([&](const SourceRun& run) {
    for (const Rows& rows : run.sources()) {
      if (found || rows.file != record.file) continue;
      const Extent span = rows.span(run.rows);
      found = span.offset < record.end() && record.offset < span.end();
    }
  });
  return found;
}

void name_params(const Checkpoint& checkpoint, std::vector<TouchedRecord>& records) {
  const auto look = [&](const TensorSource& source, const std::string& label) {
    const std::vector<FileId> files = source.files();
    for (TouchedRecord& record : records) {
      if (std::find(files.begin(), files.end(), record.extent.file) == files.end()) continue;
      if (meets(source, record.extent)) record.finding->tensors.push_back(label);
    }
  };
  for (const Param& param : checkpoint.params()) {
    if (!param.alias_of.empty()) continue;
    look(param.weight, param.name);
    for (const ParamState& state : param.states) look(state.value, param.name + " " + state.key);
  }
}

// By the keys of the pickle, where nothing tells which parameters they are of.
void name_keys(const CheckedFile& file, Finding& finding) {
  if (!file.shard) return;
  for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
    const std::string record = "data/" + file.shard->archive.info(found.value).storage_key;
    if (finding.member.ends_with("/" + record) || finding.member == record) {
      finding.tensors.push_back(found.path);
    }
  }
}

}  // namespace

void name_touched(Verification& v) {
  std::unordered_map<std::string, const CheckedFile*> by_name;
  for (const CheckedFile& file : v.files) by_name.emplace(file.display, &file);
  std::vector<TouchedRecord> records;
  for (Finding& finding : v.report.findings) {
    const auto file = by_name.find(finding.file);
    if (!is_of_record(finding) || file == by_name.end()) continue;
    if (const auto extent = data_of(*file->second, finding)) records.push_back({&finding, *extent});
  }
  if (!records.empty()) {
    const std::unique_ptr<Checkpoint> opened = v.checkpoint ? nullptr : opened_for_names(v);
    const Checkpoint* checkpoint = v.checkpoint ? v.checkpoint.get() : opened.get();
    if (checkpoint != nullptr) name_params(*checkpoint, records);
  }
  for (Finding& finding : v.report.findings) {
    const auto file = by_name.find(finding.file);
    if (!is_of_record(finding) || !finding.tensors.empty() || file == by_name.end()) continue;
    try {
      name_keys(*file->second, finding);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;  // the pickle is damaged, too
    }
  }
}

}  // namespace dsckpt
