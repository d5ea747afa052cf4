#include "exec/journal.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <nlohmann/json.hpp>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/json.h"
#include "base/kernels.h"
#include "base/sha256.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "io/far_files.h"
#include "io/text_file.h"
#include "plan/plan_digest.h"

namespace dsckpt {
namespace {

using nlohmann::json;

constexpr const char* kJob = "job";
constexpr const char* kJournal = "journal";
// A process that works on the steps of a conversion may write its current state there.
constexpr int kMostRemovals = 20;
constexpr std::chrono::milliseconds kBetweenRemovals{20};
constexpr int kVersion = 5;

IoError damaged(const Folder& folder, const char* name) {
  return IoError({.file = (folder.path() / name).string()},
                 "is damaged and cannot be resumed; remove the folder", 0);
}

struct NotAsWritten {};

// Files that only this program writes have its members and types, or are damaged.
template <typename Read>
auto read_as_written(const Folder& folder, const char* name, Read&& read) {
  try {
    return read();
  } catch (const json::exception&) {
    throw damaged(folder, name);
  } catch (const NotAsWritten&) {
    throw damaged(folder, name);
  }
}

// nlohmann's get() converts what is another number, and has undefined behaviour for large reals.
template <std::integral T>
T whole_number(const json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<T>(value.get<uint64_t>())
                        : value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
  if (!fits) throw NotAsWritten();
  return value.get<T>();
}

json saved_job(const Folder& folder) {
  json saved = parse_json(own_content(folder, kJob).value_or(""));
  if (!saved.is_object()) throw damaged(folder, kJob);
  return saved;
}

json rows_of(const std::vector<JobIdentity::File>& files) {
  json rows = json::array();
  for (const JobIdentity::File& file : files) {
    rows.push_back({file.path, file.size, file.modified});
  }
  return rows;
}

std::vector<JobIdentity::File> files_of(const json& rows) {
  std::vector<JobIdentity::File> files;
  for (const json& row : rows) {
    files.push_back(
        {row.at(0), whole_number<uint64_t>(row.at(1)), whole_number<int64_t>(row.at(2))});
  }
  return files;
}

std::string first_difference(const std::vector<JobIdentity::File>& before,
                             const std::vector<JobIdentity::File>& now, bool are_inputs) {
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    const JobIdentity::File& a = before[i];
    const JobIdentity::File& b = now[i];
    if (a.path != b.path) {
      return are_inputs ? "it reads " + b.path + ", and not " + a.path
                        : "it makes " + b.path + ", and not " + a.path;
    }
    if (a.size != b.size) {
      return b.path + " has " + counted(b.size, "byte") + ", and not " + std::to_string(a.size);
    }
    if (a.modified != b.modified) return b.path + " was written to since";
  }
  if (before.size() == now.size()) return "";
  return std::string("it ") + (are_inputs ? "reads " : "makes ") + counted(now.size(), "file") +
         ", and not " + std::to_string(before.size());
}

template <typename Row, typename... Members>
json columns(const std::vector<Row>& rows, Members... members) {
  json all = json::array();
  const auto add = [&](auto member) {
    json column = json::array();
    for (const Row& row : rows) column.push_back(row.*member);
    all.push_back(std::move(column));
  };
  (add(members), ...);
  return all;
}

template <typename Row, typename... Members>
std::vector<Row> rows_from(const json& all, Members... members) {
  std::vector<Row> rows(all.at(0).size());
  size_t next = 0;
  const auto take = [&](auto member) {
    const json& column = all.at(next++);
    if (column.size() != rows.size()) throw NotAsWritten();
    for (size_t i = 0; i < rows.size(); ++i) {
      auto& value = rows[i].*member;
      value = whole_number<std::decay_t<decltype(value)>>(column.at(i));
    }
  };
  (take(members), ...);
  return rows;
}

using Written = OutputSums::State::Written;

json json_of(const Reached& reached) {
  const RunState& run = reached.run;
  return {{"version", kVersion},
          {"unit_bytes", run.unit_bytes},
          {"done", columns(run.done, &BatchRange::first, &BatchRange::last)},
          {"bytes_read", run.bytes_read},
          {"bytes_stored", reached.bytes_stored},
          {"digests", columns(run.digests, &DigestPiece::digest, &DigestPiece::begin,
                              &DigestPiece::size, &DigestPiece::crc)},
          {"records", columns(run.records, &RecordPiece::record, &RecordPiece::offset,
                              &RecordPiece::size, &RecordPiece::crc)},
          {"written", columns(reached.sums.written, &Written::out, &Written::offset, &Written::size,
                              &Written::crc)}};
}

Reached reached_of(const json& saved) {
  Reached reached;
  reached.run.unit_bytes = whole_number<uint64_t>(saved.at("unit_bytes"));
  reached.run.done = rows_from<BatchRange>(saved.at("done"), &BatchRange::first, &BatchRange::last);
  reached.run.bytes_read = whole_number<uint64_t>(saved.at("bytes_read"));
  reached.bytes_stored = whole_number<uint64_t>(saved.at("bytes_stored"));
  reached.run.digests =
      rows_from<DigestPiece>(saved.at("digests"), &DigestPiece::digest, &DigestPiece::begin,
                             &DigestPiece::size, &DigestPiece::crc);
  reached.run.records =
      rows_from<RecordPiece>(saved.at("records"), &RecordPiece::record, &RecordPiece::offset,
                             &RecordPiece::size, &RecordPiece::crc);
  reached.sums.written = rows_from<Written>(saved.at("written"), &Written::out, &Written::offset,
                                            &Written::size, &Written::crc);
  return reached;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

JobIdentity identity_of(const CopyPlan& plan, const InputFiles& inputs, std::string options) {
  JobIdentity job{.plan = hex_digits(digest_of(plan)), .options = std::move(options)};
  for (FileId file = 0; file < inputs.size(); ++file) {
    job.inputs.push_back({printable(shown_path(inputs[file].path())), inputs[file].stored_size(),
                          inputs[file].modified()});
  }
  for (const PlannedFile& file : plan.outputs()) {
    job.outputs.push_back({printable(file.path), file.size});
  }
  return job;
}

void save_job(const Folder& folder, const JobIdentity& job) {
  const json saved{{"version", kVersion},
                   {"folder", folder.number()},
                   {"inputs", rows_of(job.inputs)},
                   {"outputs", rows_of(job.outputs)},
                   {"plan", job.plan},
                   {"options", job.options}};
  replace_text_file(folder, kJob, dump(saved) + "\n", true);
}

bool has_job(const Folder& folder) {
  return folder.has(kJob);
}

namespace {

int empty_staging(const Folder& folder) {
  try {
    for (const std::string& name : folder.names()) {
      if (name == kJob || name == kPlanFile) continue;
      if (const int failed = folder.remove_all(name)) return failed;
    }
    if (const int failed = folder.remove_all(kPlanFile)) return failed;
  } catch (const IoError& error) {
    return error.errno_value();
  }
  return folder.remove_all(kJob);
}

}  // namespace

int remove_staging_folder(const Folder& place, const Folder& folder) {
  for (int removal = 1;; ++removal) {
    int failed = empty_staging(folder);
    if (failed == 0) failed = place.remove_folder(folder.path().filename());
    if ((failed != ENOTEMPTY && failed != EEXIST) || removal == kMostRemovals) return failed;
    std::this_thread::sleep_for(kBetweenRemovals);
  }
}

std::string difference_from_saved(const Folder& folder, const JobIdentity& job) {
  return read_as_written(folder, kJob, [&]() -> std::string {
    const json saved = saved_job(folder);
    if (saved.at("version") != kVersion) return "another release of this program started it";
    if (saved.at("folder") != folder.number()) return "it was started in another folder";
    std::string found = first_difference(files_of(saved.at("inputs")), job.inputs, true);
    if (found.empty()) {
      found = first_difference(files_of(saved.at("outputs")), job.outputs, false);
    }
    if (found.empty() && saved.at("options") != job.options) {
      found = "its options are '" + job.options + "', and not '" +
              saved.at("options").get<std::string>() + "'";
    }
    if (found.empty() && saved.at("plan") != job.plan) found = "it writes different contents";
    return found;
  });
}

void save_reached(const Folder& folder, const Reached& reached) {
  std::string content(sizeof(uint32_t), '\0');
  json::to_cbor(json_of(reached), content);
  store_le(reinterpret_cast<std::byte*>(content.data()),
           crc32(0, bytes_of(content).subspan(sizeof(uint32_t))));
  replace_text_file(folder, kJournal, content, true);
}

std::optional<Reached> load_reached(const Folder& folder) {
  const std::optional<std::string> content = own_content(folder, kJournal);
  if (!content) return std::nullopt;
  return read_as_written(folder, kJournal, [&] {
    const auto bytes = bytes_of(*content);
    if (bytes.size() < sizeof(uint32_t) ||
        load_le<uint32_t>(bytes.data()) != crc32(0, bytes.subspan(sizeof(uint32_t)))) {
      throw damaged(folder, kJournal);
    }
    return reached_of(parse_cbor(std::string_view(*content).substr(sizeof(uint32_t))));
  });
}

void forget_reached(const Folder& folder) {
  folder.remove(kJournal);
}

void save_written(const Folder& folder, uint64_t inode) {
  json job = saved_job(folder);
  job["written"] = inode;
  replace_text_file(folder, kJob, dump(job) + "\n", true);
}

std::optional<uint64_t> load_written(const Folder& folder) {
  return read_as_written(folder, kJob, [&]() -> std::optional<uint64_t> {
    const json job = saved_job(folder);
    return job.contains("written") ? std::optional(whole_number<uint64_t>(job["written"]))
                                   : std::nullopt;
  });
}

}  // namespace dsckpt
