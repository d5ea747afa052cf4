#include <tbb/parallel_for.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "base/text.h"
#include "checkpoint/find/saved_states.h"
#include "checkpoint/find/tag_folder.h"
#include "dsckpt/error.h"
#include "dsckpt/pack.h"
#include "exec/frame_cuts.h"
#include "exec/staging_owner.h"
#include "format/checked_records.h"
#include "format/typed_extents.h"
#include "io/content_name.h"
#include "io/opening_files.h"
#include "job/job_impl.h"
#include "job/links.h"
#include "pack/plan_kept.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

struct FoundFile {
  fs::path stored;
  std::string name;  // of the content, relative to the output
};

// torch.distributed.checkpoint's files consist of archives in a row and are copied unchanged.
bool is_of_dcp(const FoundFile& file) {
  return is_dcp_name(fs::path(file.name).filename().string());
}

// Finds the files below a folder.
class Finder {
 public:
  // `marks`: also finds the files that ckpt-pack keep has added.
  Finder(std::vector<std::string>& notes, bool follow_links, bool marks)
      : notes_(notes), follow_links_(follow_links), marks_(marks) {}

  std::vector<FoundFile> below(const fs::path& folder) {
    folder_ = folder;
    add_folder(folder, {});
    std::sort(found_.begin(), found_.end(),
              [](const FoundFile& a, const FoundFile& b) { return a.name < b.name; });
    const auto twice =
        std::adjacent_find(found_.begin(), found_.end(),
                           [](const FoundFile& a, const FoundFile& b) { return a.name == b.name; });
    if (twice != found_.end()) {
      throw InconsistentError({.file = twice->stored.string()},
                              "has the same content as " + (twice + 1)->stored.string() +
                                  " by its name: leave one of them in the folder");
    }
    return std::move(found_);
  }

 private:
  void add_folder(const fs::path& folder, const fs::path& name) {
    std::error_code failed;
    const fs::path real = fs::canonical(folder, failed);
    // A folder may have several names by links, but a link to a folder above itself would never
    // end.
    if (std::find(above_.begin(), above_.end(), real) != above_.end()) {
      return leave_out(name, "is a link to a folder that it is in");
    }
    above_.push_back(real);
    fs::directory_iterator it(folder, failed);
    for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
      add(it->path(), name / it->path().filename());
    }
    if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
    above_.pop_back();
  }

  void add(const fs::path& path, const fs::path& name) {
    std::error_code ignored;
    if (path.filename().native().starts_with(kStagingPrefix))
      return leave_out(name, "is unfinished");
    if (!marks_ && path.filename().native().starts_with(kKeepPrefix)) return;
    if (!follow_links_ && leads_out(path, {&folder_, 1})) {
      throw UsageError(path.string() + ": is a link out of the folder")
          .with_hint("--follow-links copies its target");
    }
    switch (fs::status(path, ignored).type()) {
      case fs::file_type::directory:
        return add_folder(path, name);
      case fs::file_type::regular:
        found_.push_back({path, content_path(name).generic_string()});
        return;
      case fs::file_type::not_found:
        return leave_out(name, "is a broken link");
      default:
        return leave_out(name, "is neither file nor folder");
    }
  }

  void leave_out(const fs::path& name, const std::string& why) {
    notes_.push_back(name.generic_string() + " " + why + " and is left out");
  }

  std::vector<FoundFile> found_;
  std::vector<std::string>& notes_;
  bool follow_links_;
  bool marks_;
  fs::path folder_;
  std::vector<fs::path> above_;  // real names of the folders that are being listed
};

std::vector<FoundFile> find_all(const fs::path& input, bool follow_links,
                                std::vector<std::string>& notes, bool marks = true) {
  std::error_code failed;
  const fs::file_status status = fs::status(input, failed);
  std::vector<FoundFile> found;
  if (fs::is_directory(status)) {
    found = Finder(notes, follow_links, marks).below(input);
  } else if (fs::exists(status)) {
    if (is_latest(input)) {
      throw UsageError(input.string() + ": names a tag and holds no tensors")
          .with_hint("give the folder that it is in");
    }
    found.push_back({input, content_path(input.filename()).string()});
  } else if (failed && status.type() != fs::file_type::not_found) {
    throw IoError({.file = input.string()}, "cannot open", failed.value());
  } else {
    throw UsageError(input.string() + ": there is no such file or folder");
  }
  if (found.empty()) throw UsageError(input.string() + ": holds no files");
  return found;
}

// {"files": [{"path", "bytes", "packed"}], "notes", "bytes"}
class CopyReport : public JobReport {
 public:
  explicit CopyReport(bool packs) : packs_(packs) {}

  nlohmann::json json(const Job::Impl& job) const override {
    nlohmann::json files = nlohmann::json::array();
    for (const PlannedFile& file : job.plan.outputs()) {
      files.push_back(
          {{"path", file.path}, {"bytes", file.size}, {"packed", is_packable(file.path)}});
    }
    return {{"files", std::move(files)}, {"notes", job.notes}, {"bytes", job.plan.bytes_written()}};
  }

  Listing listing(const Job::Impl& job) const override {
    Listing listing;
    for (const PlannedFile& file : job.plan.outputs()) {
      listing.rows.push_back({printable(file.path), human_bytes(file.size)});
      if (packs_ && is_packable(file.path)) listing.rows.back().emplace_back("to be packed");
    }
    listing.below.push_back(counted(job.plan.outputs().size(), "file") + ", " +
                            human_bytes(job.plan.bytes_written()) + " unpacked");
    return listing;
  }

  std::string next(const Job::Impl&, const fs::path& output) const override {
    return packs_ ? "ckpt-pack unpack " + shell_word(output.string()) + " FOLDER" : "";
  }

 private:
  bool packs_;
};

// The types of tensors in the files, and notes on unreadable ones.
struct Types {
  std::vector<std::vector<TypedExtent>> tensors;
  std::vector<std::string> notes;
};

Types types_of(const InputFiles& inputs, const std::vector<FoundFile>& found,
               const std::vector<FileId>& ids) {
  Types types{std::vector<std::vector<TypedExtent>>(found.size()),
              std::vector<std::string>(found.size())};
  SharedPickles pickles;
  const OpeningFiles opening(inputs.progress(), found.size());
  tbb::parallel_for(size_t{0}, found.size(), [&](size_t i) {
    opening.throw_if_cancelled();
    try {
      if (is_packable(found[i].name)) {
        types.tensors[i] = typed_extents(inputs, ids[i], &pickles);
      } else if (!is_of_dcp(found[i])) {
        // The table has only this file: the call takes time for every file in the table.
        all_records(inputs.selected(std::span(&ids[i], 1)), {0});
      }
    } catch (const IoError&) {
      throw;
    } catch (const Error& error) {
      // The packer does not judge the file: it is packed byte by byte.
      if (found[i].name.ends_with(".swp")) {
        types.tensors[i] = {{{ids[i], 0, inputs[ids[i]].size()}, DType::float32}};
      } else {
        types.notes[i] = found[i].name + " is packed as plain bytes: " + error.message();
      }
    }
    opening.opened_one();
  });
  return types;
}

Place place_apart_from(const fs::path& input) {
  std::error_code failed;
  const bool is_folder = fs::is_directory(input, failed);
  return {.inputs = {{input, is_folder ? "the input folder" : "the input file"}}, .whole = true};
}

Job plan_copies(const fs::path& input, bool packs, ContentHash hash, bool follow_links,
                Progress* progress) {
  auto inputs = std::make_shared<InputFiles>();
  inputs->watch(progress);
  Job::Impl job{.inputs = inputs, .plan = {}, .place = place_apart_from(input), .hash = hash};
  const std::vector<FoundFile> found = find_all(input, follow_links, job.notes);
  std::error_code failed;
  const fs::path root = fs::is_directory(input, failed) ? input : input.parent_path();
  for (const FoundFile& file : found) job.copied.push_back(inputs->add(file.stored, root));
  Types types{std::vector<std::vector<TypedExtent>>(found.size()), {}};
  if (packs) types = types_of(*inputs, found, job.copied);

  PlanBuilder plan;
  uint64_t stored = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const InputFile& file = (*inputs)[job.copied[i]];
    const OutputId out = plan.add_output(found[i].name, file.size());
    put_file(plan, out, job.copied[i], file.size(), types.tensors[i]);
    if (packs && !types.notes[i].empty()) job.notes.push_back(types.notes[i]);
    if (!packs || !types.notes[i].empty() || is_of_dcp(found[i])) {
      job.as_they_are.insert(job.copied[i]);
    }
    stored += file.stored_size();
  }
  set_plan(job, plan);
  const auto is_plain = [&](FileId id) { return (*inputs)[id].encoding() == Encoding::plain; };
  if (!packs && std::all_of(job.copied.begin(), job.copied.end(), is_plain)) {
    job.notes.emplace_back("none of its files are packed: they are copied unchanged");
  }
  job.what = counted(found.size(), "file") + (packs ? "" : " of " + human_bytes(stored));
  job.report = std::make_shared<CopyReport>(packs);
  return Job(std::move(job));
}

// {"files": [{"path", "bytes"}], "bytes"}
class KeptReport : public JobReport {
 public:
  nlohmann::json json(const Job::Impl& job) const override { return plan_json(job.plan); }

  Listing listing(const Job::Impl& job) const override {
    Listing listing;
    for (const PlannedFile& file : job.plan.outputs()) {
      listing.rows.push_back({printable(file.path), human_bytes(file.size)});
    }
    listing.below.push_back(plan_totals(job.plan));
    return listing;
  }
};

}  // namespace

void lay_out_beside(InputFiles& inputs, const KeptBeside& beside, PlanBuilder& plan) {
  lay_out_neighbours(inputs, beside.files, plan);
  for (const KeptBeside::Text& text : beside.texts) {
    std::vector<JobFile> before;
    for (const PlannedFile& file : plan.outputs()) before.push_back({file.path, file.size});
    put_text(plan, text.path, text.content(before));
  }
}

Job plan_kept(const fs::path& folder, const std::string& name, const KeptBeside& beside, bool packs,
              Progress* progress) {
  auto inputs = std::make_shared<InputFiles>();
  inputs->watch(progress);
  Job::Impl job{.inputs = inputs, .plan = {}, .place = place_apart_from(folder)};
  const std::vector<FoundFile> found = find_all(folder, false, job.notes, false);
  std::vector<FileId> ids;
  for (const FoundFile& file : found) ids.push_back(inputs->add(file.stored, folder));
  const Types types = types_of(*inputs, found, ids);

  PlanBuilder plan;
  for (size_t i = 0; i < found.size(); ++i) {
    const uint64_t size = (*inputs)[ids[i]].size();
    const std::string path = (fs::path(name) / found[i].name).generic_string();
    put_file(plan, plan.add_output(path, size), ids[i], size, types.tensors[i]);
    if (!types.notes[i].empty() || is_of_dcp(found[i])) job.as_they_are.insert(ids[i]);
  }
  lay_out_beside(*inputs, beside, plan);
  set_plan(job, plan);
  job.what = counted(job.plan.outputs().size(), "file") + (packs ? " packed" : "");
  job.report = std::make_shared<KeptReport>();
  return Job(std::move(job));
}

Job plan_beside(const KeptBeside& beside) {
  const auto inputs = std::make_shared<InputFiles>();
  Job::Impl job{.inputs = inputs, .plan = {}};
  PlanBuilder plan;
  lay_out_beside(*inputs, beside, plan);
  set_plan(job, plan);
  for (FileId file = 0; file < inputs->size(); ++file) job.as_they_are.insert(file);
  job.what = counted(job.plan.outputs().size(), "file");
  job.report = std::make_shared<KeptReport>();
  return Job(std::move(job));
}

Job plan_pack(const fs::path& input, bool sha256, bool follow_links, Progress* progress) {
  return plan_copies(input, true, sha256 ? ContentHash::keep : ContentHash::none, follow_links,
                     progress);
}

Job plan_unpack(const fs::path& input, bool sha256, bool follow_links, Progress* progress) {
  return plan_copies(input, false, sha256 ? ContentHash::check : ContentHash::none, follow_links,
                     progress);
}

}  // namespace dsckpt
