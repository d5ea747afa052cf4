#include "checkpoint/offloaded.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/flat_states.h"
#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"
#include "deepspeed/swap_name.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Kind;
using pickle::Value;
namespace {

// swap_tensor/utils.py AIO_ALIGNED_BYTES; files are padded to a multiple of it for each thread.
constexpr uint64_t kAlignment = 1024;

// The attribute ds_id of a tensor; "" if there is none.
std::string ds_id_of(const Shard& shard, const Value& tensor) {
  const Value id = shard.archive.info(tensor).attributes.find_or_none("ds_id");
  return id.is(Kind::string) ? std::string(id.as_string()) : std::string();
}

std::string master_member(size_t group) {
  return std::string(keys::kFp32FlatGroups) + "[" + std::to_string(group) + "]";
}

// The sub-groups of one rank that are in swap files.
class RankReader {
 public:
  RankReader(const Shard& optim, const std::vector<SubGroupSize>& sizes, uint32_t mp_ranks,
             const OffloadConfig& offload)
      : optim_(optim),
        sizes_(sizes),
        offload_(offload),
        // Tensor-parallel ranks are neighbours; stage 3 has no pipeline.
        global_rank_(uint64_t{optim.name.dp_rank} * mp_ranks + optim.name.mp_rank),
        state_(optimizer_state(optim)),
        optimizer_(state_, keys::kOptimizerStateDict) {}

  std::vector<SwappedTensor> read() {
    const auto masters = state_.sequence(keys::kFp32FlatGroups);
    if (masters.size() != sizes_.size()) return {};
    for (size_t g = 0; g < masters.size(); ++g) {
      in_context(optim_.where(master_member(g)), [&] { read_master(masters[g], g); });
      read_states(g);
    }
    if (!tensors_.empty()) check_ids();
    return std::move(tensors_);
  }

  // Each sub-group's ds_id, "" where there is none.
  const std::vector<std::string>& ids() const { return ids_; }

 private:
  void read_master(const Value& tensor, size_t g) {
    ids_.push_back(ds_id_of(optim_, tensor));
    if (!is_swapped_out(optim_.archive.tensor(tensor), sizes_[g].numel)) return;
    if (ids_[g].empty()) {
      throw CorruptError({}, "is empty and has no ds_id that would name its swap file");
    }
    add(master_member(g), ids_[g], sizes_[g].numel, false);
  }

  void read_states(size_t g) {
    for (const FlatStates::State& state : flat_states({&optimizer_}, g).states) {
      if (!is_swapped_out(state.pieces.front(), sizes_[g].numel)) continue;
      const std::string member = FlatStates::member(keys::kOptimizerStateDict, g, state.key);
      in_context(optim_.where(member), [&] {
        const std::string id = ds_id_of(optim_, state.tensors.front());
        if (ids_[g].empty() || id != state.key + "-" + ids_[g]) {
          throw InconsistentError(
              {}, "has the ds_id '" + id + "', but " + master_member(g) + " has '" + ids_[g] + "'");
        }
        add(member, id, sizes_[g].numel, true);
      });
    }
  }

  void add(const std::string& member, const std::string& id, uint64_t numel, bool is_state) {
    SwappedTensor tensor;
    tensor.member = member;
    tensor.path = offload_folder(optim_.path.parent_path()) / swap_file_name(global_rank_, id);
    const fs::path root = optim_.path.parent_path().parent_path();
    tensor.display = tensor.path.lexically_relative(root).string();
    tensor.numel = numel;
    // The empty tensors need not have it.
    tensor.dtype = offload_.master_dtype;
    tensor.is_state = is_state;
    checked_mul(numel, size_of(tensor.dtype));
    tensor.most_bytes = round_up(tensor.bytes(), kAlignment * offload_.aio_threads);
    tensors_.push_back(std::move(tensor));
  }

  // Every parameter has a number of its own, and belongs to one sub-group.
  void check_ids() const {
    std::map<uint64_t, size_t> group_of;
    for (size_t g = 0; g < ids_.size(); ++g) {
      if (ids_[g].empty()) continue;
      in_context(optim_.where(master_member(g)), [&] {
        const SubGroupId id = SubGroupId::parse(ids_[g]);
        if ((sizes_[g].params == 1) != (id.first == id.last)) {
          throw InconsistentError({}, "has the ds_id '" + ids_[g] + "', but holds " +
                                          counted(sizes_[g].params, "parameter"));
        }
        for (const uint64_t param : {id.first, id.last}) {
          const auto [found, is_new] = group_of.emplace(param, g);
          if (is_new || found->second == g) continue;
          throw InconsistentError(
              {}, "has the ds_id '" + ids_[g] + "', but " + master_member(found->second) +
                      " has '" + ids_[found->second] + "': no parameter is in two sub-groups");
        }
      });
    }
  }

  const Shard& optim_;
  const std::vector<SubGroupSize>& sizes_;
  const OffloadConfig& offload_;
  const uint64_t global_rank_;
  Fields state_;
  FlatOptimizer optimizer_;
  std::vector<std::string> ids_;
  std::vector<SwappedTensor> tensors_;
};

// Within a parameter group numbers rise with the model's order, which is mostly the optimizer's.
void note_order(const Shard& optim, const std::vector<std::string>& ids,
                std::vector<std::string>& notes) {
  const auto groups = optimizer_state(optim)
                          .get(keys::kOptimizerStateDict)
                          .value_or(Value())
                          .find_or_none(keys::kParamGroups)
                          .sequence_or_empty();
  size_t g = 0;
  for (const Value& group : groups) {
    const size_t end = g + group.find_or_none("params").sequence_or_empty().size();
    for (++g; g < end && g < ids.size(); ++g) {
      if (ids[g - 1].empty() || ids[g].empty()) continue;
      if (SubGroupId::parse(ids[g]).first > SubGroupId::parse(ids[g - 1]).last) continue;
      notes.push_back(optim.display + ": " + master_member(g) + " has the ds_id '" + ids[g] +
                      "' after '" + ids[g - 1] +
                      "': right only if the optimizer was not given the parameters in the "
                      "order of the model");
    }
    g = end;
  }
}

}  // namespace

bool is_swapped_out(const TensorSource& flat, uint64_t needed) {
  return needed > 0 && flat.numel() == 0;
}

fs::path offload_folder(const fs::path& tag_folder) {
  return tag_folder / "offloaded_tensors";
}

std::vector<std::vector<SwappedTensor>> swapped_tensors(
    const std::vector<const Shard*>& optim, const std::vector<std::vector<SubGroupSize>>& sizes,
    uint32_t mp_ranks, const OffloadConfig& offload, std::vector<std::string>& notes) {
  std::vector<std::vector<SwappedTensor>> by_rank;
  std::vector<std::string> expected;
  bool any = false;
  for (size_t rank = 0; rank < optim.size(); ++rank) {
    RankReader reader(*optim[rank], sizes[rank], mp_ranks, offload);
    by_rank.push_back(reader.read());
    any = any || !by_rank.back().empty();
    if (rank == 0) expected = reader.ids();
    if (!any) continue;
    for (size_t g = 0; g < std::max(expected.size(), reader.ids().size()); ++g) {
      const bool both = g < expected.size() && g < reader.ids().size();
      if (both && expected[g] == reader.ids()[g]) continue;
      throw InconsistentError(optim[rank]->where(master_member(g)),
                              both ? "has the ds_id '" + reader.ids()[g] + "', but '" +
                                         expected[g] + "' in " + optim.front()->display
                                   : "is not as in " + optim.front()->display);
    }
  }
  if (any) note_order(*optim.front(), expected, notes);
  return by_rank;
}

void check_swap_file(const InputFile& file, const SwappedTensor& tensor) {
  const uint64_t size = file.size();
  if (size >= tensor.bytes() && size <= tensor.most_bytes) return;
  const std::string needed = std::to_string(tensor.bytes()) + " for the " +
                             counted(tensor.numel, "element") + " of " + tensor.member;
  throw InconsistentError(
      {.file = tensor.display},
      "has " + counted(size, "byte") + ", needs " + needed +
          (size < tensor.bytes() ? std::string()
                                 : " and has at most " + std::to_string(tensor.most_bytes) +
                                       " with its padding: it is of another sub-group or run"));
}

SwapFiles::SwapFiles(InputFiles& inputs, const std::vector<const Shard*>& optim,
                     const std::vector<std::vector<SwappedTensor>>& tensors,
                     const OffloadConfig& offload, bool states)
    : by_rank_(tensors.size()) {
  std::vector<std::string> missing;
  for (const auto& of_rank : tensors) {
    for (const SwappedTensor& tensor : of_rank) {
      if (tensor.is_state && !states) continue;
      if (!is_stored(tensor.path)) {
        missing.push_back(tensor.display + ": " + tensor.member);
      }
    }
  }
  if (!missing.empty()) {
    const fs::path folder = optim.front()->path.parent_path();
    std::string text = counted(missing.size(), "swap file") +
                       (missing.size() == 1 ? " is" : " are") +
                       " missing of an optimizer that was offloaded to NVMe:" + listed(missing);
    InconsistentError error({.file = folder.string()}, text);
    if (!offload.node_local_storage) throw error;
    throw std::move(error).with_hint(
        "the run saved on each node's own disk (use_node_local_storage) under local ranks: rename "
        "the folders of offloaded_tensors after the global ranks");
  }
  for (size_t rank = 0; rank < tensors.size(); ++rank) {
    const fs::path root = optim[rank]->path.parent_path().parent_path();
    for (const SwappedTensor& tensor : tensors[rank]) {
      if (tensor.is_state && !states) continue;
      refuse_two_forms(tensor.path);
      const FileId id = inputs.add(tensor.path, root);
      check_swap_file(inputs[id], tensor);
      by_rank_[rank].emplace(tensor.member,
                             TensorSource::stored({id, 0, tensor.bytes()}, tensor.dtype,
                                                  {static_cast<int64_t>(tensor.numel)}));
      files_.push_back({tensor.path, id, optim[rank]->name});
    }
  }
}

const TensorSource* SwapFiles::find(size_t rank, const std::string& member) const {
  if (rank >= by_rank_.size()) return nullptr;
  const auto found = by_rank_[rank].find(member);
  return found == by_rank_[rank].end() ? nullptr : &found->second;
}

std::vector<fs::path> unreferenced_swap_files(const fs::path& folder,
                                              const std::set<fs::path>& known) {
  std::vector<fs::path> paths;
  std::error_code failed;
  if (!fs::is_directory(folder, failed)) return paths;
  fs::recursive_directory_iterator it(folder, failed);
  for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    if (!it->is_directory(ignored) && !known.contains(content_path(it->path()))) {
      paths.push_back(it->path());
    }
  }
  if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace dsckpt
