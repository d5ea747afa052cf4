#include "exec/rank_inputs.h"

#include <filesystem>
#include <memory>

#include "dsckpt/error.h"
#include "exec/node_files.h"
#include "io/content_name.h"

namespace dsckpt {
namespace fs = std::filesystem;

std::vector<FileId> RankInputs::open(const std::vector<FileId>& inputs) {
  std::vector<FileId> ids;
  for (const FileId input : inputs) ids.push_back(open(input));
  return ids;
}

void RankInputs::check_unchanged() const {
  for (FileId file = 0; file < files_.size(); ++file) files_[file].check_unchanged();
}

// Adds a file, which perhaps only another rank has.
FileId RankInputs::add(const RankJob::Input& input) {
  if (input.owner < 0 || rank_ == nullptr) return input.open(files_);
  const fs::path there = input.path_there;
  const FileLook here = look_at(there);
  const bool is_here =
      here.is_there && here.size == input.stored_size && here.modified == input.modified;
  if (input.owner == rank_->number || is_here) {
    return files_.add_again(content_path(there), input.display);
  }
  return files_.add_far(content_path(there), input.display,
                        {.reader = std::make_shared<RankReader>(rank_->files, input.owner),
                         .machine = input.owner,
                         .path = there,
                         .size = input.stored_size,
                         .modified = input.modified});
}

FileId RankInputs::open(FileId input) {
  if (const auto known = ids_.find(input); known != ids_.end()) return known->second;
  const RankJob::Input& wanted = job_.inputs.at(input);
  const FileId id = add(wanted);
  const InputFile& file = files_[id];
  if (!wanted.is_same(file)) throw other_input(wanted, file, rank_ != nullptr);
  file.read_exactly();
  ids_.emplace(input, id);
  return id;
}

}  // namespace dsckpt
