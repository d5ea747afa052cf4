#include "inspect/verify/manifest.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>

#include "base/bytes.h"
#include "base/json.h"
#include "base/keyed_hash.h"
#include "base/sha256.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/extent_sums.h"
#include "inspect/verify/verification.h"
#include "io/text_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;
constexpr size_t kDigits = 64;

// Returns all files except the manifest.
std::vector<fs::path> list_files(const Verification& v) {
  std::vector<fs::path> paths;
  if (v.report.form == "file") return {v.files.front().path};
  const auto add = [&](const fs::directory_entry& entry) {
    std::error_code failed;
    const auto is = [&](const fs::path& manifest) {
      return !manifest.empty() && fs::equivalent(entry.path(), manifest, failed);
    };
    if (is(v.options.manifest) || is(v.options.new_manifest)) return;
    if (entry.is_regular_file(failed)) paths.push_back(content_path(entry.path()));
  };
  std::error_code failed;
  if (v.report.form == "weights") {
    for (const fs::directory_entry& entry : fs::directory_iterator(v.report.folder, failed)) {
      add(entry);
    }
  } else {
    fs::recursive_directory_iterator it(v.report.folder, failed);
    for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
      add(*it);
    }
  }
  if (failed) throw IoError({.file = v.report.folder.string()}, "cannot list", failed.value());
  std::sort(paths.begin(), paths.end());
  const auto twice = std::adjacent_find(paths.begin(), paths.end());
  if (twice != paths.end()) refuse_two_forms(*twice);
  return paths;
}

// Returns the names and positions of the records of a file, which consists of `parts`. Returns none
// for files that are not whole.
std::vector<ManifestRecord> records_of(const std::vector<const CheckedFile*>& parts) {
  std::vector<ManifestRecord> records;
  for (const CheckedFile* file : parts) {
    if (file->safetensors) {
      for (const SafetensorsEntry& entry : file->safetensors->entries()) {
        records.push_back({entry.name, entry.extent.offset, entry.extent.size, {}});
      }
    } else if (file->zip) {
      try {
        for (const ZipEntry& entry : file->zip->entries()) {
          const Extent extent = file->zip->data(entry);
          records.push_back({file->member(entry), extent.offset, extent.size, {}});
        }
      } catch (const CorruptError&) {
        return {};  // check_records has reported it
      }
    }
  }
  std::sort(records.begin(), records.end(), [](const ManifestRecord& a, const ManifestRecord& b) {
    return std::tie(a.offset, a.name) < std::tie(b.offset, b.name);
  });
  return records;
}

std::string text_at(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string()) {
    throw CorruptError({.member = key}, "is not text, or is missing");
  }
  return object[key].get<std::string>();
}

uint64_t number_at(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number_unsigned()) {
    throw CorruptError({.member = key}, "is not a size, or is missing");
  }
  return object[key].get<uint64_t>();
}

const json& list_at(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_array()) {
    throw CorruptError({.member = key}, "is not a list, or is missing");
  }
  return object[key];
}

std::string digits_at(const json& object) {
  std::string digits = text_at(object, "sha256");
  if (digits.size() != kDigits || digits.find_first_not_of("0123456789abcdef") != digits.npos) {
    throw CorruptError({.member = "sha256"}, "is not a SHA-256 hash");
  }
  return digits;
}

// Known facts about the files before they are compared, by their names in findings.
struct KnownFile {
  std::optional<FindingRank> rank;
  bool is_unreadable = false;
  bool is_reported = false;       // Verification::is_reported
  std::set<std::string> damaged;  // records whose CRC32 is wrong
};
using KnownFiles = KeyedMap<std::string, KnownFile>;

KnownFiles known_files(const Verification& v) {
  KnownFiles files;
  for (const CheckedFile& file : v.files) files[file.display].rank = file.rank();
  for (const Finding& finding : v.report.findings) {
    KnownFile& file = files[finding.file];
    file.is_unreadable = file.is_unreadable || finding.check == Check::unreadable;
    if (finding.check == Check::crc) {
      file.damaged.insert(finding.member);
    } else {
      file.is_reported = true;
    }
  }
  return files;
}

class FileComparison {
 public:
  FileComparison(Verification& v, const KnownFile& known, const ManifestFile& was,
                 const ManifestFile& is, std::string display)
      : v_(v), known_(known), was_(was), is_(is), display_(std::move(display)) {}

  void run() {
    if (was_.sha256 == is_.sha256) return;
    std::map<std::string, const ManifestRecord*> before;
    std::map<std::string, const ManifestRecord*> after;
    for (const ManifestRecord& record : was_.records) before.emplace(record.name, &record);
    for (const ManifestRecord& record : is_.records) after.emplace(record.name, &record);
    bool explained = false;
    if (!is_.records.empty()) {
      for (const auto& [name, record] : before) {
        const auto found = after.find(name);
        if (found == after.end()) {
          explained = add(*record, "the record is missing");
        } else if (found->second->sha256 != record->sha256) {
          explained = add(*found->second, "the record has changed");
        }
      }
      for (const auto& [name, record] : after) {
        if (!before.contains(name)) explained = add(*record, "the record is new");
      }
    }
    if (explained || is_known("")) return;
    v_.add({.check = Check::manifest,
            .message =
                was_.size != is_.size
                    ? "has " + counted(is_.size, "byte") + ", had " + std::to_string(was_.size)
                : is_.records.empty() ? std::string("has changed")
                                      : std::string("bytes outside of its records have changed"),
            .file = display_,
            .rank = known_.rank,
            .size = is_.size});
  }

 private:
  // Returns whether an earlier finding explains the difference.
  bool is_known(const std::string& member) const {
    return known_.is_unreadable || known_.damaged.contains(member);
  }

  bool add(const ManifestRecord& record, std::string message) {
    if (is_known(record.name)) return true;
    v_.add({.check = Check::manifest,
            .message = std::move(message),
            .file = display_,
            .rank = known_.rank,
            .member = record.name,
            .offset = record.offset,
            .size = record.size});
    return true;
  }

  Verification& v_;
  const KnownFile& known_;
  const ManifestFile& was_;
  const ManifestFile& is_;
  std::string display_;
};

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  json files = json::array();
  for (const ManifestFile& file : manifest) {
    json records = json::array();
    for (const ManifestRecord& record : file.records) {
      records.push_back({{"name", record.name},
                         {"offset", record.offset},
                         {"size", record.size},
                         {"sha256", record.sha256}});
    }
    files.push_back({{"path", file.path},
                     {"size", file.size},
                     {"sha256", file.sha256},
                     {"records", std::move(records)}});
  }
  const json root = {{"schema", kManifestSchema},
                     {"type", "manifest"},
                     {"hash", "sha256"},
                     {"files", std::move(files)}};
  return root.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

void write_manifest(const Manifest& manifest, const fs::path& path, bool force) {
  TextFile file(path, manifest_text(manifest), false);
  if (force) {
    file.publish();
  } else if (!file.publish_new()) {
    throw UsageError(path.string() + ": already exists").with_hint("--force replaces it");
  }
}

Manifest read_manifest(const fs::path& path) {
  const InputFile file(path);
  return in_context({.file = path.string()}, [&] {
    if (file.size() > kMaxManifestBytes) throw CorruptError({}, "is too long to be a manifest");
    const std::vector<std::byte> bytes = file.read(0, file.size());
    const json root = parse_json(as_text(bytes));
    if (!root.is_object() || root.value("type", json()) != "manifest") {
      throw CorruptError({}, "is not a manifest");
    }
    if (number_at(root, "schema") != kManifestSchema || text_at(root, "hash") != "sha256") {
      throw UnsupportedError({}, "is a manifest of another schema or hash");
    }
    Manifest manifest;
    for (const json& entry : list_at(root, "files")) {
      ManifestFile listed{text_at(entry, "path"), number_at(entry, "size"), digits_at(entry), {}};
      for (const json& record : list_at(entry, "records")) {
        listed.records.push_back({text_at(record, "name"), number_at(record, "offset"),
                                  number_at(record, "size"), digits_at(record)});
      }
      manifest.push_back(std::move(listed));
    }
    return manifest;
  });
}

Manifest make_manifest(Verification& v) {
  const std::vector<fs::path> paths = list_files(v);
  std::map<fs::path, std::vector<const CheckedFile*>> files;
  for (const CheckedFile& file : v.files) files[file.path].push_back(&file);
  Manifest manifest;
  std::vector<FileId> ids;
  for (const fs::path& path : paths) {
    ids.push_back(v.inputs.add(path, v.report.folder.parent_path()));
    manifest.push_back({path.lexically_relative(v.report.folder).generic_string(),
                        v.inputs[ids.back()].size(),
                        {},
                        records_of(files[path])});
  }
  // Files and their records are hashed separately, so that one large file keeps two threads busy.
  std::vector<Extent> extents;
  std::vector<std::string*> hashes;
  for (size_t i = 0; i < manifest.size(); ++i) {
    extents.push_back({ids[i], 0, manifest[i].size});
    hashes.push_back(&manifest[i].sha256);
    for (ManifestRecord& record : manifest[i].records) {
      extents.push_back({ids[i], record.offset, record.size});
      hashes.push_back(&record.sha256);
    }
  }
  sum_extents(v.inputs, extents, SumKind::sha256, v.reading(),
              [&](size_t i, std::string_view sum, const Error* failure) {
                if (failure != nullptr) failure->raise();
                Sha256Digest digest;
                std::copy_n(as_byte_span(sum).begin(), digest.size(), digest.begin());
                *hashes[i] = hex_digits(digest);
              });
  return manifest;
}

void check_manifest(Verification& v) {
  const Manifest was = read_manifest(v.options.manifest);
  std::map<std::string, const ManifestFile*> before;
  std::map<std::string, const ManifestFile*> after;
  for (const ManifestFile& file : was) before.emplace(file.path, &file);
  for (const ManifestFile& file : *v.report.manifest) after.emplace(file.path, &file);
  const fs::path root = v.report.form == "zero" || v.report.form == "universal"
                            ? v.report.folder.lexically_relative(v.report.folder.parent_path())
                            : fs::path();
  KnownFiles known = known_files(v);
  for (const auto& [path, file] : before) {
    const std::string display = (root / path).string();
    const auto found = after.find(path);
    if (found != after.end()) {
      FileComparison(v, known[display], *file, *found->second, display).run();
    } else if (!known[display].is_reported) {
      v.add(
          {.check = Check::manifest, .message = "is missing", .file = display, .size = file->size});
    }
  }
  for (const auto& [path, file] : after) {
    const std::string display = (root / path).string();
    if (before.contains(path)) continue;
    v.add({.check = Check::manifest, .message = "is new", .file = display, .size = file->size});
  }
}

}  // namespace dsckpt
