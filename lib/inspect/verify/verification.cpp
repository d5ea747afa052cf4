#include "inspect/verify/verification.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <tuple>

#include "base/turns.h"
#include "deepspeed/keys.h"
#include "io/content_name.h"

namespace dsckpt {
namespace {

// Findings name the content of files. An error in a compressed file lies in the stored file.
std::string message_of(const Error& error) {
  const std::filesystem::path stored = error.where().file;
  if (encoding_of(stored) == Encoding::plain) return error.message();
  return error.message() + " (in " + stored.filename().string() + ")";
}

// A shortage of the system is not a defect of the checkpoint.
void refuse_shortage(const Error& error) {
  const int reason = error.errno_value();
  if (reason == EMFILE || reason == ENFILE || reason == ENOMEM) error.raise();
}

}  // namespace

std::optional<FindingRank> CheckedFile::rank() const {
  using Kinds = ShardName::Kind;
  if (!name || name->kind == Kinds::universal || name->kind == Kinds::expert) return std::nullopt;
  return FindingRank{name->dp_rank, name->mp_rank};
}

void Verification::add(Finding finding) {
  const std::lock_guard lock(mutex_);
  report.findings.push_back(std::move(finding));
}

void Verification::add(Check check, const CheckedFile& file, const Error& error) {
  refuse_shortage(error);
  const Where& where = error.where();
  add({.check = check,
       .message = message_of(error),
       .file = file.display,
       .rank = file.rank(),
       .member = where.member,
       .tensor = where.tensor,
       .offset = where.offset});
}

void Verification::add(Check check, const CheckedFile& file, std::string member,
                       std::string message) {
  add({.check = check,
       .message = std::move(message),
       .file = file.display,
       .rank = file.rank(),
       .member = std::move(member)});
}

void Verification::add(Check check, const Error& error) {
  refuse_shortage(error);
  const Where& where = error.where();
  Finding finding{.check = check,
                  .message = message_of(error),
                  .file = content_path(where.file).string(),
                  .member = where.member,
                  .tensor = where.tensor,
                  .offset = where.offset};
  for (const CheckedFile& file : files) {
    if (file.display == finding.file) finding.rank = file.rank();
  }
  add(std::move(finding));
}

void Verification::skip(Check check, std::string why, bool done) {
  const std::lock_guard lock(mutex_);
  CheckDone& entry = report.checks[static_cast<size_t>(check)];
  entry.done = done;
  // A reason that is part of another is not repeated, unless the text is too long for a search.
  constexpr size_t kLooked = 64 << 10;
  if (!whys_[static_cast<size_t>(check)].insert(why).second) return;
  if (entry.why.size() <= kLooked && entry.why.find(why) != std::string::npos) return;
  entry.why += (entry.why.empty() ? "" : "; ") + why;
}

bool Verification::has(Check check) const {
  return std::any_of(report.findings.begin(), report.findings.end(),
                     [&](const Finding& finding) { return finding.check == check; });
}

bool Verification::is_reported(const std::string& display) const {
  return std::any_of(report.findings.begin(), report.findings.end(), [&](const Finding& finding) {
    return finding.file == display && finding.check != Check::crc;
  });
}

std::vector<CheckedFile*> Verification::of_kind(ShardName::Kind kind) {
  std::vector<CheckedFile*> found;
  for (CheckedFile& file : files) {
    if (file.usable() && file.name && file.name->kind == kind) found.push_back(&file);
  }
  return found;
}

std::vector<CheckedFile*> Verification::of_kind(ShardName::Kind kind, uint32_t mp_rank) {
  std::vector<CheckedFile*> found = of_kind(kind);
  std::erase_if(found, [&](const CheckedFile* file) { return file->name->mp_rank != mp_rank; });
  return found;
}

CheckedFile* Verification::file_of(FileId id) {
  const std::lock_guard lock(mutex_);
  if (indexed_ != files.size()) {
    by_id_.assign(inputs.size(), files.size());
    for (size_t i = files.size(); i-- > 0;) {
      if (files[i].id < by_id_.size()) by_id_[files[i].id] = i;
    }
    indexed_ = files.size();
  }
  const size_t at = id < by_id_.size() ? by_id_[id] : files.size();
  return at == files.size() ? nullptr : &files[at];
}

void Verification::set_damaged(std::vector<Extent> records) {
  std::sort(records.begin(), records.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  damaged_.clear();
  for (const Extent& record : records) {
    if (!damaged_.empty() && damaged_.back().file == record.file &&
        record.offset <= damaged_.back().end()) {
      Extent& last = damaged_.back();
      last.size = std::max(last.end(), record.end()) - last.offset;
    } else {
      damaged_.push_back(record);
    }
  }
}

bool Verification::is_damaged(FileId id, uint64_t offset) const {
  const auto next = std::upper_bound(damaged_.begin(), damaged_.end(), std::pair(id, offset),
                                     [](const auto& place, const Extent& extent) {
                                       return place < std::pair(extent.file, extent.offset);
                                     });
  if (next == damaged_.begin()) return false;
  const Extent& extent = *std::prev(next);
  return extent.file == id && offset < extent.end();
}

bool Verification::is_doubtful(const TensorSource& source) {
  const auto is_suspect = [](const CheckedFile& file) { return file.suspect; };
  if (damaged_.empty() && std::none_of(files.begin(), files.end(), is_suspect)) return false;
  bool doubtful = false;
  const auto look = [&](FileId id, uint64_t offset) {
    const CheckedFile* file = file_of(id);
    doubtful = doubtful || (file != nullptr && file->suspect) || is_damaged(id, offset);
  };
  source.without_repeats().lower([&](const SourceRun& run) {
    stop_if_cancelled();
    for (const Rows& rows : run.sources()) look(rows.file, rows.offset);
  });
  return doubtful;
}

std::string Verification::record_at(FileId id, uint64_t offset) {
  const CheckedFile* file = file_of(id);
  if (file != nullptr && file->shard) return file->shard->archive.record_at(offset);
  return "";
}

OpenOptions checkpoint_options(const Verification& v) {
  OpenOptions open{.tag = {}, .optimizer_states = true};
  for (const std::string& rule : v.options.tp_rules) open.tp_rules.push_back(TpRule::parse(rule));
  return open;
}

bool is_of_pipeline(const Shard& model) {
  const auto module = model.archive.root().find(keys::kModule);
  return module && module->is_none();
}

size_t largest_kind(const std::vector<size_t>& first_equal) {
  std::vector<size_t> votes(first_equal.size() + 1);
  for (const size_t first : first_equal) ++votes[first];
  return static_cast<size_t>(std::max_element(votes.begin(), votes.end()) - votes.begin());
}

void for_each_index(size_t count, const std::function<void(size_t)>& body) {
  Turns turns(count);
  const auto workers = static_cast<size_t>(tbb::this_task_arena::max_concurrency());
  tbb::parallel_for(size_t{0}, std::min(workers, count), [&](size_t) { turns.take(body); });
}

void Verification::set_place(Finding& finding, const std::optional<Extent>& place) {
  if (!place) return;
  finding.offset = place->offset;
  finding.member = record_at(place->file, place->offset);
  finding.file = inputs[place->file].display();
  if (const CheckedFile* file = file_of(place->file)) finding.rank = file->rank();
  if (!checkpoint) return;
  for (const SwapFile& file : checkpoint->files().swap) {
    if (file.id == place->file) finding.rank = FindingRank{file.owner.dp_rank, file.owner.mp_rank};
  }
}

std::optional<Extent> place_of(const TensorSource& source, int64_t at) {
  std::optional<Extent> place;
  source.lower(at, 1, [&](const SourceRun& run) {
    if (!run.sources().empty()) place = run.sources().front().span(1);
  });
  return place;
}

}  // namespace dsckpt
