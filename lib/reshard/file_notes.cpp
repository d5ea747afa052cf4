#include "reshard/file_notes.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "checkpoint/module_entries.h"
#include "checkpoint/shard.h"
#include "deepspeed/keys.h"
#include "reshard/model_file.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Each rank has its own of these, or rank 0 alone has one.
constexpr std::array kOfRanks{keys::kModule,
                              keys::kSharedParams,
                              keys::kFrozenParamFragments,
                              keys::kParamShapes,
                              keys::kAutoEpLayers,
                              keys::kAutoEpLayersLegacy,
                              keys::kUniversalCheckpointInfo};

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

// True if `differs` is true of any file but the first.
template <typename F>
bool any_other(const std::vector<CheckpointFile>& files, F&& differs) {
  return std::any_of(files.begin() + 1, files.end(), differs);
}

void add_keys_that_differ(const Checkpoint& checkpoint, std::vector<std::string>& names) {
  const auto& files = checkpoint.files().model;
  const TorchArchive& first = *files.front().archive;
  const Value root = first.root();
  for (const auto& [key, value] : root.as_dict().items) {
    if (!key.is(Kind::string)) continue;
    const std::string_view name = key.as_string();
    if (std::find(kOfRanks.begin(), kOfRanks.end(), name) != kOfRanks.end()) continue;
    const std::vector<uint32_t> sums = first.checksums(value);
    const bool differs = any_other(files, [&, &saved = value](const CheckpointFile& file) {
      const auto other = file.archive->root().find(name);
      return !other || !same_plain_data(saved, *other) || file.archive->checksums(*other) != sums;
    });
    if (differs) names.emplace_back(name);
  }
}

void add_buffers_that_differ(const Checkpoint& checkpoint, std::vector<std::string>& names) {
  const auto& files = checkpoint.files().model;
  std::vector<ModuleEntries> modules;
  for (const CheckpointFile& file : files) {
    modules.emplace_back(file.archive->root().find_or_none(keys::kModule));
  }
  for (const Param& param : checkpoint.params()) {
    if (param.kind != ParamKind::buffer) continue;
    const auto sums = [&](const CheckpointFile& file) {
      const auto index = static_cast<size_t>(&file - files.data());
      return file.archive->checksums(
          modules[index].find(param.saved_name.empty() ? param.name : param.saved_name));
    };
    const std::vector<uint32_t> first = sums(files.front());
    if (any_other(files, [&](const CheckpointFile& file) { return sums(file) != first; })) {
      names.push_back(param.name);
    }
  }
}

// Stage 3 has a model-states file a rank, and a program may have put another client_state into
// each.
std::vector<std::string> client_state_notes(const ShardSource& from) {
  const size_t files = from.checkpoint.files().model.size();
  const size_t kept = from.target.stage == 3 ? from.target.dp : 1;
  if (files == 1 || kept == files) return {};
  std::vector<std::string> names;
  add_keys_that_differ(from.checkpoint, names);
  add_buffers_that_differ(from.checkpoint, names);
  if (names.empty()) return {};
  return {(kept < files ? "data that each rank saved for itself is kept of the first " +
                              std::to_string(kept) + " only: "
                        : "of data that each rank saved for itself, the new ranks get rank 0's: ") +
          quoted_list(names)};
}

std::string learning_rates(const ReshardLayout& layout) {
  std::string text;
  for (const ReshardLayout::Group& group : layout.groups()) {
    const Value rate = group.settings.value.find_or_none("lr");
    if (!rate.is(Kind::real) && !rate.is(Kind::integer)) continue;
    std::ostringstream number;
    number << rate.as_real();
    text += (text.empty() ? ", where the learning rate is " : ", ") + number.str();
  }
  return text;
}

std::vector<std::string> start_notes(const ShardSource& from) {
  std::vector<std::string> notes{
      "the new run starts at step 0, with an optimizer that took no step and a schedule that "
      "begins; hyper-parameters are those of " +
      from.checkpoint.files().model.front().path.string() + learning_rates(from.layout)};
  std::vector<std::string> left_out;
  const Value root = model_file_for(from, 0).archive->root();
  for (const auto& [key, value] : root.as_dict().items) {
    if (!key.is(Kind::string) || is_written_at_start(key.as_string()) || value.is_none()) continue;
    left_out.emplace_back(key.as_string());
  }
  if (!left_out.empty()) {
    notes.push_back("data that the program saved is left out: " + quoted_list(left_out));
  }
  return notes;
}

}  // namespace

std::vector<std::string> file_notes(const ShardSource& from) {
  return from.offer.starts ? start_notes(from) : client_state_notes(from);
}

}  // namespace dsckpt
