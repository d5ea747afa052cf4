#include "exec/journal.h"

#include <cerrno>
#include <concepts>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/json.h"
#include "base/kernels.h"
#include "base/sha256.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/staged_output.h"
#include "io/far_files.h"
#include "plan/plan_digest.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kJob = "job";
constexpr const char* kJournal = "journal";
constexpr int kVersion = 3;

IoError damaged(const fs::path& path) {
  return IoError({.file = path.string()},
                 "is damaged, so that nothing can go on there; remove the folder", 0);
}

// Nothing if there is no such file.
std::optional<std::string> content_of(const fs::path& path) {
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(path, failed);
  if (!fs::exists(status)) return std::nullopt;
  if (!fs::is_regular_file(status)) throw damaged(path);
  const uintmax_t size = fs::file_size(path, failed);
  if (failed) throw IoError({.file = path.string()}, "cannot be looked at", failed.value());
  std::string content(size, '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.file = path.string()}, "cannot open", errno);
  if (!stream.read(content.data(), static_cast<std::streamsize>(content.size()))) {
    throw IoError({.file = path.string()}, "cannot read", errno);
  }
  return content;
}

struct NotAsWritten {};

// What only this program writes has the members and types that it gives them, or is damaged.
template <typename Read>
auto read_as_written(const fs::path& path, Read&& read) {
  try {
    return read();
  } catch (const json::exception&) {
    throw damaged(path);
  } catch (const NotAsWritten&) {
    throw damaged(path);
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

json saved_job(const fs::path& folder) {
  const fs::path path = folder / kJob;
  json saved = parse_json(content_of(path).value_or(""));
  if (!saved.is_object()) throw damaged(path);
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

void save_job(const fs::path& folder, const JobIdentity& job) {
  const json saved{{"version", kVersion},
                   {"inputs", rows_of(job.inputs)},
                   {"outputs", rows_of(job.outputs)},
                   {"plan", job.plan},
                   {"options", job.options}};
  replace_text_file(folder / kJob, dump(saved) + "\n", true);
}

bool has_job(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kJob, ignored);
}

std::error_code remove_resumable(const fs::path& folder) {
  std::error_code failed;
  std::vector<fs::path> others;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path().filename() != kJob) others.push_back(entry->path());
  }
  for (size_t i = 0; i < others.size() && !failed; ++i) fs::remove_all(others[i], failed);
  if (!failed) fs::remove(folder / kJob, failed);
  if (!failed) fs::remove(folder, failed);
  return failed;
}

std::string difference_from_saved(const fs::path& folder, const JobIdentity& job) {
  return read_as_written(folder / kJob, [&]() -> std::string {
    const json saved = saved_job(folder);
    if (saved.at("version") != kVersion) return "another release of this program has begun it";
    std::string found = first_difference(files_of(saved.at("inputs")), job.inputs, true);
    if (found.empty()) {
      found = first_difference(files_of(saved.at("outputs")), job.outputs, false);
    }
    if (found.empty() && saved.at("options") != job.options) {
      found = "its options are '" + job.options + "', and not '" +
              saved.at("options").get<std::string>() + "'";
    }
    if (found.empty() && saved.at("plan") != job.plan) found = "it writes other contents";
    return found;
  });
}

void save_reached(const fs::path& folder, const Reached& reached) {
  std::string content(sizeof(uint32_t), '\0');
  json::to_cbor(json_of(reached), content);
  store_le(reinterpret_cast<std::byte*>(content.data()),
           crc32(0, bytes_of(content).subspan(sizeof(uint32_t))));
  replace_text_file(folder / kJournal, content, true);
}

std::optional<Reached> load_reached(const fs::path& folder) {
  const fs::path path = folder / kJournal;
  const std::optional<std::string> content = content_of(path);
  if (!content) return std::nullopt;
  return read_as_written(path, [&] {
    const auto bytes = bytes_of(*content);
    if (bytes.size() < sizeof(uint32_t) ||
        load_le<uint32_t>(bytes.data()) != crc32(0, bytes.subspan(sizeof(uint32_t)))) {
      throw damaged(path);
    }
    return reached_of(parse_cbor(std::string_view(*content).substr(sizeof(uint32_t))));
  });
}

void save_written(const fs::path& folder, uint64_t inode) {
  json job = saved_job(folder);
  job["written"] = inode;
  replace_text_file(folder / kJob, dump(job) + "\n", true);
}

std::optional<uint64_t> load_written(const fs::path& folder) {
  return read_as_written(folder / kJob, [&]() -> std::optional<uint64_t> {
    const json job = saved_job(folder);
    return job.contains("written") ? std::optional(whole_number<uint64_t>(job["written"]))
                                   : std::nullopt;
  });
}

}  // namespace dsckpt
