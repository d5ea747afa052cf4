#include "exec/step_files.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/host.h"
#include "base/kernels.h"
#include "base/random.h"
#include "base/text.h"
#include "base/varint.h"
#include "dsckpt/error.h"
#include "exec/commit.h"
#include "exec/far_output.h"
#include "exec/staging_owner.h"
#include "io/content_name.h"
#include "io/far_files.h"
#include "io/text_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPortions = "portions";
constexpr const char* kBegun = "portions.begun";
constexpr const char* kResults = "results";
constexpr const char* kFailed = "failed";
constexpr const char* kTaken = "taken";
constexpr uint64_t kStepFormat = 5;

std::string shown_in(const Folder& folder, const fs::path& name) {
  return (folder.path() / name).string();
}

IoError damaged_step(const Folder& folder, const fs::path& name, const std::string& hint) {
  return IoError({.file = shown_in(folder, name)}, "is damaged", 0).with_hint(hint);
}

std::string how_to_begin_anew(const Folder& folder) {
  return "dsckpt abandon " + folder.path().string() + ", and plan anew";
}

std::string with_checksum(const std::string& content) {
  std::string bytes;
  append_le(bytes, crc32(0, as_byte_span(content)));
  return bytes + content;
}

// nullopt if the checksum does not match.
std::optional<std::string_view> without_checksum(std::string_view bytes) {
  constexpr size_t kSize = sizeof(uint32_t);
  if (bytes.size() < kSize) return std::nullopt;
  const std::string_view content = bytes.substr(kSize);
  if (load_le<uint32_t>(as_byte_span(bytes).data()) != crc32(0, as_byte_span(content))) {
    return std::nullopt;
  }
  return content;
}

// The members behind the program and the format. Any version can read those two of another one.
void code_rest(auto& codec, auto& plan, auto& folder) {
  codec(plan.by.words, plan.by.folder, folder, plan.made_folders, plan.job, plan.unit_bytes,
        plan.number, plan.portions);
}

std::string encode(const StepPlan& plan, uint64_t folder) {
  VarintWriter writer;
  writer(plan.by.program, kStepFormat);
  code_rest(writer, plan, folder);
  return writer.take();
}

StepPlan decode(const Folder& folder, std::string_view bytes) {
  VarintReader reader(bytes);
  StepPlan plan;
  plan.by.program = reader.text();
  if (reader.number() != kStepFormat) {
    throw UsageError(shown_in(folder, kPlanFile) +
                     ": another release has planned it: " + plan.by.program)
        .with_hint("continue with that release, or " + how_to_begin_anew(folder));
  }
  uint64_t planned_in = 0;
  code_rest(reader, plan, planned_in);
  if (planned_in != folder.number()) {
    throw UsageError(folder.path().string() + ": is a copy of the folder that was planned in")
        .with_hint("continue in that folder; the files of a copy may be another run's");
  }
  return plan;
}

// The content of `plan`; nothing if there is none.
std::optional<std::string> plan_content(const Folder& folder) {
  const std::optional<std::string> bytes = own_content(folder, kPlanFile);
  if (!bytes) return std::nullopt;
  const std::optional<std::string_view> content = without_checksum(*bytes);
  if (!content) throw damaged_step(folder, kPlanFile, how_to_begin_anew(folder));
  return std::string(*content);
}

fs::path numbered(const char* folder, size_t portion) {
  return fs::path(folder) / std::to_string(portion);
}

IoError damaged_result(const Folder& folder, size_t portion) {
  return damaged_step(folder, numbered(kResults, portion),
                      "remove it, and that portion is done again");
}

// Which portions have a file in it.
std::vector<bool> numbers_in(const Folder& folder, const char* name, size_t portions) {
  std::vector<bool> found(portions);
  for (const std::string& file : folder.below(name).names()) {
    size_t number = 0;
    const char* const end = file.data() + file.size();
    const auto [last, bad] = std::from_chars(file.data(), end, number);
    if (bad == std::errc() && last == end && number < portions) found[number] = true;
  }
  return found;
}

// Letters, digits and hyphens of it.
std::string name_of_host() {
  std::string name = host_name();
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_'; }, '-');
  return name.empty() ? "host" : name;
}

std::string first_that_begins(const Folder& folder, std::string_view prefix) {
  for (std::string& name : folder.names()) {
    if (name.starts_with(prefix)) return std::move(name);
  }
  return "";
}

// The folder, without what a planner that was killed has left.
const Folder& begun(const Folder& folder) {
  folder.remove(kBegun);
  return folder;
}

Planned planned_in(const Folder& folder, const StepPlan& plan) {
  Planned planned{.folder = folder.path(), .portions = plan.portions.size()};
  for (const StepPlan::Entry& entry : plan.portions) planned.bytes += entry.bytes;
  return planned;
}

bool holds_something(const fs::path& output) {
  std::error_code failed;
  if (!fs::is_directory(output, failed)) return fs::exists(output, failed);
  fs::directory_iterator at(output, failed);
  for (const fs::directory_iterator end; !failed && at != end; at.increment(failed)) {
    if (!at->path().filename().string().starts_with(kStagingPrefix)) return true;
  }
  return false;
}

// Returns whether something is there that a tool may have written: a file of tensors, or a folder
// with one. Packed files may hold anything.
bool may_be_output(const fs::path& output) {
  constexpr int kDeepest = 2;  // "OUT/global_step4/mp_rank_00_model_states.pt", and one more
  static const std::set<std::string> kOfTensors{".pt", ".bin", ".safetensors", ".distcp"};
  const auto is_written_by_tools = [](const fs::path& file) {
    return file.extension() == ".dspack" ||
           kOfTensors.contains(content_path(file).extension().string());
  };
  std::error_code failed;
  if (!fs::is_directory(output, failed)) {
    return fs::is_regular_file(output, failed) && is_written_by_tools(output);
  }
  fs::recursive_directory_iterator at(output, failed);
  for (const fs::recursive_directory_iterator end; !failed && at != end; at.increment(failed)) {
    if (at->path().filename().string().starts_with(kStagingPrefix)) {
      at.disable_recursion_pending();
    } else if (is_written_by_tools(at->path())) {
      return true;
    }
    if (at.depth() >= kDeepest) at.disable_recursion_pending();
  }
  return false;
}

}  // namespace

PlanWriter::PlanWriter(const Folder& folder) : folder_(folder), file_(begun(folder), kBegun) {}

PlanWriter::~PlanWriter() {
  folder_.remove(kBegun);
}

void PlanWriter::add(StepPlan::Entry entry, std::string_view portion) {
  entry.begin = size_;
  entry.size = portion.size();
  entry.crc = crc32(0, as_byte_span(portion));
  file_.write_at(size_, as_byte_span(portion));
  size_ += portion.size();
  portions_.push_back(entry);
}

void PlanWriter::add(const Shares& shares,
                     const std::function<std::string(const BatchRange&)>& encode,
                     const Progress& progress) {
  for (int rank = 0; rank < shares.ranks(); ++rank) {
    for (const Shares::Piece& piece : shares.of(rank)) {
      if (progress.cancelled) throw InterruptedError();
      add({.batches = piece.batches, .bytes = piece.bytes, .share = static_cast<uint64_t>(rank)},
          encode(piece.batches));
    }
  }
}

Planned PlanWriter::save(StepPlan plan) {
  const bool durable = plan.job.sync_results;
  plan.number = random_number();
  plan.portions = std::move(portions_);
  for (const char* name : {kResults, kFailed, kTaken}) {
    // An earlier plan, which was never finished, may have left it.
    int failed = folder_.remove_all(name);
    if (failed == 0) failed = folder_.make_folder(name, 0700);
    if (failed != 0) {
      throw IoError({.file = shown_in(folder_, name)}, "cannot make the folder", failed);
    }
  }
  if (durable) file_.sync();
  file_.close();
  if (const int failed = folder_.rename(kBegun, folder_, kPortions)) {
    throw IoError({.file = shown_in(folder_, kPortions)}, "cannot write", failed);
  }
  if (durable) folder_.sync();
  replace_text_file(folder_, kPlanFile, with_checksum(encode(plan, folder_.number())), durable);
  return planned_in(folder_, plan);
}

bool has_plan(const Folder& folder) {
  return folder.has(kPlanFile);
}

std::optional<std::string> planned_by(const Folder& folder) {
  const std::optional<std::string> content = plan_content(folder);
  if (!content) return std::nullopt;
  return VarintReader(*content).text();
}

StepPlan load_plan(const Folder& folder) {
  const std::optional<std::string> content = plan_content(folder);
  if (!content) {
    throw IoError({.file = shown_in(folder, kPlanFile)}, "cannot open", ENOENT);
  }
  try {
    return decode(folder, *content);
  } catch (const CorruptError&) {
    throw damaged_step(folder, kPlanFile, how_to_begin_anew(folder));
  }
}

std::string load_task(const Folder& folder, const StepPlan& plan, size_t portion) {
  const StepPlan::Entry& entry = plan.portions.at(portion);
  std::optional<std::string> bytes =
      own_content(folder, kPortions, entry.begin, static_cast<size_t>(entry.size));
  if (!bytes) throw IoError({.file = shown_in(folder, kPortions)}, "cannot open", ENOENT);
  if (crc32(0, as_byte_span(*bytes)) != entry.crc || bytes->size() != entry.size) {
    throw damaged_step(folder, kPortions, how_to_begin_anew(folder));
  }
  return *std::move(bytes);
}

Portion load_portion(const Folder& folder, const StepPlan& plan, size_t portion) {
  Portion found = Portion::decode(load_task(folder, plan, portion));
  for (const FileId file : found.part.files) {
    if (file >= plan.job.inputs.size()) {
      throw damaged_step(folder, kPortions, how_to_begin_anew(folder));
    }
  }
  return found;
}

void save_result(const Folder& folder, const StepPlan& plan, size_t portion,
                 const std::string& result, int rank) {
  VarintWriter writer;
  writer.number(plan.number);
  writer.number(portion);
  writer.number(static_cast<uint64_t>(rank));
  writer.text(result);
  replace_text_file(folder.below(kResults), std::to_string(portion), with_checksum(writer.take()),
                    plan.job.sync_results);
}

bool has_result(const Folder& folder, size_t portion) {
  return folder.has(numbered(kResults, portion));
}

std::optional<StepResult> load_result(const Folder& folder, const StepPlan& plan, size_t portion) {
  if (!has_result(folder, portion)) return std::nullopt;
  const std::optional<std::string> bytes =
      own_content(folder.below(kResults), std::to_string(portion));
  if (!bytes) return std::nullopt;
  const std::optional<std::string_view> content = without_checksum(*bytes);
  if (!content) throw damaged_result(folder, portion);
  try {
    VarintReader reader(*content);
    const bool is_of_plan = reader.number() == plan.number && reader.number() == portion;
    if (!is_of_plan) throw damaged_result(folder, portion);
    const int rank = static_cast<int>(reader.number());
    return StepResult{reader.text(), rank};
  } catch (const CorruptError&) {
    throw damaged_result(folder, portion);
  }
}

std::vector<bool> with_results(const Folder& folder, const StepPlan& plan) {
  return numbers_in(folder, kResults, plan.portions.size());
}

std::vector<bool> taken(const Folder& folder, const StepPlan& plan) {
  return numbers_in(folder, kTaken, plan.portions.size());
}

std::vector<RankStats> add_results(const Folder& folder, Reached& reached) {
  std::vector<RankStats> ranks;
  if (!has_plan(folder)) return ranks;
  const StepPlan plan = load_plan(folder);
  if (reached.run.unit_bytes != plan.unit_bytes) {
    throw damaged_step(folder, kPlanFile, how_to_begin_anew(folder));
  }
  std::vector<BatchRange> done = reached.run.done;
  const auto is_begun = [&](const BatchRange& range) {
    return std::any_of(reached.run.done.begin(), reached.run.done.end(), [&](const auto& each) {
      return each.first < range.last && range.first < each.last;
    });
  };
  std::vector<OutputSums::State::Written>& written = reached.sums.written;
  for (size_t portion = 0; portion < plan.portions.size(); ++portion) {
    if (is_begun(plan.portions[portion].batches)) continue;
    const std::optional<StepResult> found = load_result(folder, plan, portion);
    if (!found) continue;
    const PortionResult result = [&] {
      try {
        return PortionResult::decode(found->bytes);
      } catch (const CorruptError&) {
        throw damaged_result(folder, portion);
      }
    }();
    const BatchRange& batches = plan.portions[portion].batches;
    if (result.batches.first != batches.first || result.batches.last != batches.last) {
      throw damaged_result(folder, portion);
    }
    done.push_back(result.batches);
    reached.run.bytes_read += result.sums.bytes_read;
    reached.bytes_stored += result.bytes_stored;
    reached.sent.push_back(result.sent);
    const auto rank = static_cast<size_t>(found->rank);
    ranks.resize(std::max(ranks.size(), rank + 1));
    ranks[rank].bytes_read += result.sums.bytes_read;
    ranks[rank].bytes_done += plan.portions[portion].bytes;
    const PartSums& sums = result.sums;
    reached.run.digests.insert(reached.run.digests.end(), sums.digests.begin(), sums.digests.end());
    reached.run.records.insert(reached.run.records.end(), sums.records.begin(), sums.records.end());
    written.insert(written.end(), result.written.written.begin(), result.written.written.end());
  }
  std::sort(done.begin(), done.end(),
            [](const BatchRange& a, const BatchRange& b) { return a.first < b.first; });
  reached.run.done.clear();
  for (const BatchRange& range : done) {
    if (!reached.run.done.empty() && reached.run.done.back().last == range.first) {
      reached.run.done.back().last = range.last;
    } else {
      reached.run.done.push_back(range);
    }
  }
  std::sort(written.begin(), written.end(), [](const auto& a, const auto& b) {
    return std::pair(a.out, a.offset) < std::pair(b.out, b.offset);
  });
  join_pieces(reached.run.digests);
  return ranks;
}

bool take_portion(const Folder& folder, size_t portion, int rank) {
  const fs::path name = numbered(kTaken, portion);
  const int fd = folder.create(name);
  if (fd < 0 && errno == EEXIST) return false;
  if (fd < 0) throw IoError({.file = shown_in(folder, name)}, "cannot write", errno);
  // One that lacks it is taken for a lost rank's.
  static_cast<void>(write_all(fd, std::to_string(rank)));
  ::close(fd);
  return true;
}

std::optional<int> taker_of(const Folder& folder, size_t portion) {
  const std::string text = own_content(folder.below(kTaken), std::to_string(portion)).value_or("");
  int rank = 0;
  const auto [last, bad] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return bad == std::errc() ? std::optional(rank) : std::nullopt;
}

void StepFailure::raise() const {
  throw_failure(failure, "portion " + std::to_string(portion) + ", on " + host);
}

void save_failure(const Folder& folder, size_t portion, const std::exception& failure) {
  try {
    replace_text_file(folder.below(kFailed), std::to_string(portion) + "." + name_of_host(),
                      with_checksum(encode_failure(failure)), false);
  } catch (const Error&) {  // it is only said, and said elsewhere as well
  }
}

std::vector<StepFailure> load_failures(const Folder& folder) {
  std::vector<StepFailure> failures;
  if (!folder.has(kFailed)) return failures;
  const Folder failed = folder.below(kFailed);
  for (const std::string& name : failed.names()) {
    StepFailure found;
    const char* const end = name.data() + name.size();
    const auto [dot, bad] = std::from_chars(name.data(), end, found.portion);
    if (bad != std::errc() || dot == end || *dot != '.' || has_result(folder, found.portion) ||
        name.find(".dsckpt-") != std::string::npos) {
      continue;
    }
    found.host = std::string(dot + 1, end);
    const std::optional<std::string> bytes = own_content(failed, name);
    const std::optional<std::string_view> content = bytes ? without_checksum(*bytes) : std::nullopt;
    if (!content) continue;
    found.failure = std::string(*content);
    failures.push_back(std::move(found));
  }
  std::sort(failures.begin(), failures.end(), [](const StepFailure& a, const StepFailure& b) {
    return std::pair(a.portion, a.host) < std::pair(b.portion, b.host);
  });
  return failures;
}

std::string files_now(const Folder& folder) {
  return first_that_begins(folder, Staging::kFilesPrefix);
}

std::string attempts_now(const Folder& folder) {
  return first_that_begins(folder, Staging::kAttemptsPrefix);
}

Steps find_steps(const fs::path& path) {
  const fs::path given = without_slash(path);
  const std::string name = given.filename().string();
  const std::string resume = std::string(kStagingPrefix) + "resume";
  Steps steps;
  if (name.starts_with(kStagingPrefix)) {
    const bool is_beside = name.starts_with(resume + "-");
    steps.output =
        is_beside ? given.parent_path() / name.substr(resume.size() + 1) : given.parent_path();
    std::error_code failed;
    if (fs::is_directory(given.parent_path(), failed)) {
      steps.place = Folder::at(given.parent_path());
      steps.folder = steps.place->own(name);
    }
  } else {
    steps.output = resolved_path(given);
    for (const bool whole_folder : {true, false}) {
      if (steps.folder) break;
      if (std::optional<Resumable> found = find_resumable(steps.output, whole_folder)) {
        steps.place = std::move(found->place);
        steps.folder = std::move(found->folder);
      }
    }
  }
  if (steps.folder && !has_job(*steps.folder)) steps.left_over = std::exchange(steps.folder, {});
  steps.is_output_there = holds_something(steps.output);
  return steps;
}

bool Steps::is_committed() const {
  if (!is_output_there) return false;
  std::error_code failed;
  // An output in an object store.
  if (fs::is_regular_file(output / kCommittedFile, failed)) return true;
  const std::optional<bool> noted = is_noted_commit(output);
  return noted ? *noted : may_be_output(output);
}

Steps find_planned(const fs::path& path) {
  Steps steps = find_steps(path);
  if (!steps.folder) {
    throw UsageError(path.string() + ": nothing is planned there, and it is not an output of steps")
        .with_hint(
            "the tool's command with --emit-plan plans; give its output, or the folder that "
            "it prints");
  }
  if (!has_plan(*steps.folder)) {
    throw UsageError(steps.folder->path().string() + ": holds a run that was stopped, and no plan")
        .with_hint("the same command resumes it with --resume, or plans the rest with --emit-plan");
  }
  return steps;
}

Planned planned_before(const Folder& folder, const JobIdentity& identity, const fs::path& output) {
  const std::string difference = difference_from_saved(folder, identity);
  if (!difference.empty()) {
    throw UsageError(folder.path().string() + ": something else is planned there: " + difference)
        .with_hint("dsckpt commit " + output.string() + " ends it, dsckpt abandon " +
                   output.string() + " removes it");
  }
  Planned planned = planned_in(folder, load_plan(folder));
  planned.was_there = true;
  return planned;
}

void abandon_steps(const Steps& steps) {
  const Folder& folder = steps.folder ? *steps.folder : steps.left_over.value();
  const std::string path = folder.path().string();
  std::vector<std::string> made;
  StagingPlace place;
  try {
    if (has_plan(folder)) {
      StepPlan plan = load_plan(folder);
      made = std::move(plan.made_folders);
      place = std::move(plan.job.place);
    }
  } catch (const Error&) {  // it is removed all the same
  }
  {
    const StagingOwner owner(folder);
    bool is_written = false;
    try {
      is_written = has_job(folder) && load_written(folder).has_value();
    } catch (const IoError&) {  // a damaged one
    }
    if (is_written) {
      throw UsageError(path + ": is written, and its commit may have begun")
          .with_hint("dsckpt commit " + steps.output.string() + " ends it");
    }
    if (place.far.part_bytes != 0) {
      remove_far(far_place_called(place.target.string()), place.far);
    }
    // Processes that work there find neither, and make nothing new.
    folder.remove(kPlanFile);
    forget_reached(folder);
    for (const std::string& name : {files_now(folder), attempts_now(folder)}) {
      if (!name.empty()) folder.rename(name, folder, "gone-" + std::to_string(random_number()));
    }
  }
  const int failed = remove_staging_folder(*steps.place, folder);
  if (failed != 0 && failed != ENOENT) {
    throw IoError({.file = path}, "cannot be removed", failed);
  }
  for (auto each = made.rbegin(); each != made.rend(); ++each) ::rmdir(each->c_str());
}

}  // namespace dsckpt
