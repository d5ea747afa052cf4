#include "inspect/summary.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "checkpoint/trained_types.h"
#include "deepspeed/run_config.h"
#include "deepspeed/shard_name.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Value;
namespace {

std::string joined(const std::set<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string precision_of(const Contents& contents) {
  std::set<DType> types;
  if (contents.checkpoint()) {
    types = trained_types(*contents.checkpoint());
  } else {
    for (const NamedTensor& tensor : contents.tensors()) {
      if (is_floating_point(tensor.value.dtype())) types.insert(tensor.value.dtype());
    }
  }
  std::set<std::string> names;
  for (const DType type : types) names.emplace(torch_name(type));
  return joined(names);
}

std::string optimizer_of(const Contents& contents) {
  const Checkpoint* checkpoint = contents.checkpoint();
  if (!checkpoint || checkpoint->facts().from_weights()) return "";
  const std::optional<std::string>& type = checkpoint->run_config().optimizer_type;
  if (type) return *type;
  std::set<std::string> states;
  for (const NamedTensor& tensor : contents.tensors()) {
    if (!tensor.state.empty()) states.insert(tensor.state);
  }
  return states.empty() ? "" : "not named; it keeps " + joined(states);
}

std::string module_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

void count_tensors(const Contents& contents, Summary& summary) {
  std::map<std::string, int64_t> modules;
  for (const NamedTensor& tensor : contents.tensors()) {
    if (!tensor.state.empty()) continue;
    if (!tensor.alias_of.empty()) {
      ++summary.tied;
      continue;
    }
    TensorCount& count = summary.counts[tensor.kind ? to_string(*tensor.kind) : "tensor"];
    ++count.tensors;
    add_saturating(count.elements, tensor.value.numel());
    if (tensor.kind == ParamKind::buffer) continue;
    int64_t& layer = modules[module_of(tensor.name)];
    add_saturating(layer, tensor.value.numel());
    summary.largest_layer = std::max(summary.largest_layer, layer);
  }
}

void share_bytes(const InputFiles& inputs, const Contents& contents,
                 const std::vector<FileBytes>& files, Summary& summary) {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<FileBytes>> by_rank;
  for (const FileBytes& file : files) {
    ++summary.files;
    summary.bytes += file.bytes;
    summary.stored += file.stored;
    const auto name = contents.writer_of(inputs, file.file);
    if (name) by_rank[{name->mp_rank, name->dp_rank}].push_back(file);
  }
  for (const auto& [rank, some] : by_rank) {
    RankShare share{rank.second, rank.first, 0, total_kinds(some)};
    for (const FileBytes& file : some) share.bytes += file.bytes;
    summary.ranks.push_back(std::move(share));
  }
}

void list_other_files(const Contents& contents, Summary& summary) {
  if (!contents.checkpoint()) return;
  KeyedSet<std::string> read;
  for (const CheckpointFile& file : contents.archives()) {
    read.insert(file.path.lexically_normal().string());
  }
  for (const SwapFile& file : contents.checkpoint()->files().swap) {
    read.insert(file.path.lexically_normal().string());
  }
  for (const WeightsFile& file : contents.weights_files()) {
    read.insert(file.path.lexically_normal().string());
  }
  for (const DataFile& file : contents.checkpoint()->files().data) {
    read.insert(file.path.lexically_normal().string());
  }
  std::vector<fs::path> folders = contents.checkpoint()->folder().other_roots;
  folders.push_back(contents.checkpoint()->tag_folder());
  for (const fs::path& folder : folders) {
    std::error_code failed;
    fs::recursive_directory_iterator it(folder, failed);
    for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
      std::error_code ignored;
      if (!it->is_regular_file(ignored)) continue;
      if (read.contains(content_path(it->path()).lexically_normal().string())) continue;
      const uint64_t size = it->file_size(ignored);
      const fs::path shown =
          folders.size() == 1 ? it->path().lexically_relative(folder) : it->path();
      summary.other_files.emplace_back(shown.string(), ignored ? 0 : size);
    }
  }
  std::sort(summary.other_files.begin(), summary.other_files.end());
}

}  // namespace

int64_t Summary::parameters() const {
  int64_t sum = 0;
  for (const auto& [kind, count] : counts) {
    if (kind != to_string(ParamKind::buffer)) add_saturating(sum, count.elements);
  }
  return sum;
}

Summary summarize(const InputFiles& inputs, const Contents& contents) {
  Summary summary;
  summary.precision = precision_of(contents);
  summary.optimizer = optimizer_of(contents);
  count_tensors(contents, summary);
  const std::vector<FileBytes> files = byte_kinds(inputs, contents);
  summary.kinds = total_kinds(files);
  share_bytes(inputs, contents, files, summary);
  list_other_files(contents, summary);
  if (contents.checkpoint() != nullptr) summary.grid = grid_of(*contents.checkpoint());
  return summary;
}

}  // namespace dsckpt
