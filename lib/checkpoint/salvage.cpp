#include "checkpoint/salvage.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using LostNumbers = std::map<FileId, size_t>;  // of draft.lost_files

std::set<size_t> lost_in(const LostNumbers& numbers, const TensorSource& source) {
  std::set<size_t> lost;
  for (const FileId file : source.files()) {
    if (const auto found = numbers.find(file); found != numbers.end()) lost.insert(found->second);
  }
  return lost;
}

// The lost files that the parameter and its states have elements in.
std::set<size_t> lost_of(const LostNumbers& numbers, const Param& param) {
  std::set<size_t> lost = lost_in(numbers, param.weight);
  for (const ParamState& state : param.states) lost.merge(lost_in(numbers, state.value));
  return lost;
}

}  // namespace

Shard stand_in(CheckpointDraft& draft, ShardName name, const Shard& other, std::string why) {
  const std::filesystem::path path = draft.folder.path / name.file_name();
  const std::string display = draft.folder.display(path);
  const FileId id = draft.inputs.add_again(other.path, display);
  draft.lost_files.push_back({name, display, std::move(why)});
  draft.lost_ids.push_back(id);
  return {name, path, display, TorchArchive::open(draft.inputs, id), true};
}

std::vector<Shard> open_with_stand_ins(CheckpointDraft& draft, const std::vector<ShardFile>& found,
                                       const std::vector<ShardName>& missing) {
  std::vector<UnreadableShard> unreadable;
  std::vector<Shard> shards =
      open_shards(draft.inputs, found, draft.folder.display_root(), &unreadable);
  for (const ShardName& name : missing) unreadable.push_back({{name, {}}, "is missing"});
  const size_t readable = shards.size();
  shards.reserve(readable + unreadable.size());
  for (UnreadableShard& lost : unreadable) {
    const ShardName& name = lost.file.name;
    const auto other =
        std::find_if(shards.begin(), shards.begin() + static_cast<std::ptrdiff_t>(readable),
                     [&](const Shard& shard) { return shard.name.mp_rank == name.mp_rank; });
    if (other == shards.begin() + static_cast<std::ptrdiff_t>(readable)) {
      throw InconsistentError({.file = draft.folder.display(draft.folder.path / name.file_name())},
                              lost.why + ", and no other file is left that tells what it held");
    }
    shards.push_back(stand_in(draft, name, *other, std::move(lost.why)));
  }
  std::sort(shards.begin(), shards.end(), [](const Shard& a, const Shard& b) {
    return std::tie(a.name.mp_rank, a.name.dp_rank) < std::tie(b.name.mp_rank, b.name.dp_rank);
  });
  return shards;
}

Shard open_first_readable(InputFiles& inputs, const std::vector<ShardFile>& files,
                          const std::filesystem::path& root) {
  for (const ShardFile& file : files) {
    std::vector<UnreadableShard> unreadable;
    std::vector<Shard> opened = open_shards(inputs, {file}, root, &unreadable);
    if (!opened.empty()) return std::move(opened.front());
  }
  return std::move(open_shards(inputs, {files.front()}, root).front());
}

TensorSource lost_elements(const Shard& lost, DType dtype, uint64_t count) {
  return TensorSource::stored({lost.archive.file(), 0, checked_mul(count, size_of(dtype))}, dtype,
                              {static_cast<int64_t>(count)});
}

void drop_incomplete(CheckpointDraft& draft) {
  if (draft.lost_ids.empty()) return;
  LostNumbers numbers;
  for (size_t i = 0; i < draft.lost_ids.size(); ++i) numbers.emplace(draft.lost_ids[i], i);
  std::vector<Param> complete;
  for (Param& param : draft.params) {
    param.weight = param.weight.without_copies_in(draft.lost_ids);
    for (ParamState& state : param.states) {
      state.value = state.value.without_copies_in(draft.lost_ids);
    }
    const std::set<size_t> lost = lost_of(numbers, param);
    if (lost.empty()) {
      complete.push_back(std::move(param));
    } else {
      draft.incomplete.push_back({param.name,
                                  param.kind,
                                  param.weight.dtype(),
                                  param.weight.shape(),
                                  {lost.begin(), lost.end()},
                                  param.alias_of});
    }
  }
  draft.params = std::move(complete);
}

}  // namespace dsckpt
