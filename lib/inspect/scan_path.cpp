#include <tbb/parallel_for.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <system_error>

#include "dsckpt/error.h"
#include "inspect/dcp_items.h"
#include "inspect/scan.h"
#include "inspect/scan_content.h"
#include "io/input_file.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

struct FoundFile {
  fs::path path;
  std::string display;
  std::string refused;              // why the file is not read, or ""
  std::vector<DcpItem> items = {};  // parts that DCP loads
};

std::string refusal_of(const fs::directory_entry& entry) {
  std::error_code failed;
  const fs::file_status target = entry.status(failed);
  if (fs::is_regular_file(target)) return "";
  if (fs::is_directory(target)) return "a link to a folder, which is not followed";
  if (target.type() == fs::file_type::not_found) return "a link to nothing";
  return "not a regular file";
}

void sort_by_name(std::vector<FoundFile>& files) {
  std::sort(files.begin(), files.end(),
            [](const FoundFile& a, const FoundFile& b) { return a.display < b.display; });
}

// Files below `root`, sorted.
std::vector<FoundFile> files_below(const fs::path& root) {
  std::vector<FoundFile> files;
  std::vector<fs::path> folders{root};
  while (!folders.empty()) {
    const fs::path folder = std::move(folders.back());
    folders.pop_back();
    std::error_code failed;
    fs::directory_iterator at(folder, failed);
    const auto give_up = [&] {
      files.push_back({folder, folder.lexically_relative(root).string(), failed.message()});
    };
    if (failed) {
      give_up();
      continue;
    }
    for (; at != fs::directory_iterator(); at.increment(failed)) {
      const fs::directory_entry& entry = *at;
      std::error_code ignored;
      if (entry.symlink_status(ignored).type() == fs::file_type::directory) {
        folders.push_back(entry.path());
        continue;
      }
      files.push_back(
          {entry.path(), entry.path().lexically_relative(root).string(), refusal_of(entry)});
    }
    if (failed) give_up();
  }
  sort_by_name(files);
  return files;
}

ScanResult scan_file(const FoundFile& found) {
  ScanResult result;
  result.files = 1;
  try {
    if (!found.refused.empty()) throw IoError({}, found.refused, 0);
    scan_content(InputFile(found.path, found.display), found.items, result);
  } catch (const Error& error) {
    result.unreadable.push_back({found.display, "", error.message()});
  }
  return result;
}

// The files of DCP checkpoints, with the items that their `.metadata` lists. If only the
// `.metadata` is scanned, the files beside it are added. An item in a missing file counts as
// unreadable.
class DcpFiles {
 public:
  DcpFiles(std::vector<FoundFile>& files, ScanResult& result) : files_(files), result_(result) {
    for (size_t i = 0; i < files.size(); ++i) known_.emplace(files[i].path.lexically_normal(), i);
  }

  void follow(const FoundFile& metadata) {
    // Other programs use this name for texts.
    if (!metadata.refused.empty() || scan_file(metadata).pickles == 0) return;
    try {
      for (DcpFile& part : dcp_items(InputFile(metadata.path, metadata.display))) {
        add(metadata, std::move(part));
      }
    } catch (const Error& error) {
      give_up(metadata, "the files that it loads are unknown: " + error.message());
    }
  }

 private:
  void give_up(const FoundFile& metadata, const std::string& reason) {
    result_.unreadable.push_back({metadata.display, "", reason});
  }

  void add(const FoundFile& metadata, DcpFile part) {
    const fs::path folder = metadata.path.parent_path();
    const fs::path name = fs::path(part.name).lexically_normal();
    if (name.empty() || name.is_absolute() || *name.begin() == "..") {
      return give_up(metadata, "it leads out of its folder, to " + part.name);
    }
    const fs::path path = (folder / name).lexically_normal();
    const auto [at, is_new] = known_.emplace(path, files_.size());
    if (is_new) {
      const std::string display =
          (fs::path(metadata.display).parent_path() / name).lexically_normal().string();
      std::error_code failed;
      const bool is_there = fs::exists(path, failed);
      files_.push_back({path, display,
                        is_there ? refusal_of(fs::directory_entry(path))
                                 : "is not there, but '" + metadata.display + "' names it"});
    }
    merge_items(files_[at->second].items, std::move(part.items));
  }

  std::vector<FoundFile>& files_;
  ScanResult& result_;
  std::map<fs::path, size_t> known_;
};

template <typename T>
void append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

GlobalClass ScanResult::worst() const {
  GlobalClass worst = GlobalClass::harmless;
  for (const Unreadable& part : unreadable) worst = std::max(worst, part.danger);
  for (const ScanFinding& finding : findings) worst = std::max(worst, finding.danger);
  return worst;
}

void ScanResult::allow(const Patterns& names) {
  for (ScanFinding& finding : findings) {
    if (finding.danger == GlobalClass::unknown && finding.form == pickle::NamedGlobal::Form::name &&
        names.match_all(finding.global)) {
      finding.danger = GlobalClass::allowed;
    }
  }
}

ScanResult scan(const fs::path& path, Progress* progress) {
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (status.type() == fs::file_type::not_found || status.type() == fs::file_type::none) {
    throw IoError({.file = path.string()}, "cannot open", failed ? failed.value() : ENOENT);
  }
  std::vector<FoundFile> files;
  if (fs::is_directory(status)) {
    files = files_below(path);
  } else {
    files.push_back({path, path.filename().string(), refusal_of(fs::directory_entry(path))});
  }
  ScanResult all;
  DcpFiles dcp(files, all);
  for (size_t i = 0, count = files.size(); i < count; ++i) {
    if (is_dcp_metadata(files[i].path.filename().string())) dcp.follow(FoundFile(files[i]));
  }
  sort_by_name(files);
  std::vector<ScanResult> results(files.size());
  const OpeningFiles opening(progress, files.size());
  tbb::parallel_for(size_t{0}, files.size(), [&](size_t i) {
    opening.throw_if_cancelled();
    results[i] = scan_file(files[i]);
    opening.opened_one();
  });

  for (ScanResult& result : results) {
    all.files += result.files;
    all.pickles += result.pickles;
    append(all.not_examined, result.not_examined);
    append(all.findings, result.findings);
    append(all.unreadable, result.unreadable);
  }
  return all;
}

}  // namespace dsckpt
