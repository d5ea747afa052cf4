// Checks that every element is accounted for: lengths of flat tensors, shapes, paddings. The reader
// of the layout runs last, and stops at the first defect.

#include <algorithm>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"
#include "deepspeed/run_config.h"
#include "format/read_tensor.h"
#include "format/tensors_in.h"
#include "inspect/verify/flat_files.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;

// The flat tensors of one rank.
struct RankTensors {
  CheckedFile* file;
  std::vector<FlatTensor> tensors;
};

// Returns the most common value, and of equally common ones the first.
uint64_t most_common(const std::vector<uint64_t>& values) {
  std::map<uint64_t, size_t> votes;
  for (const uint64_t value : values) ++votes[value];
  const auto fewer = [&](uint64_t a, uint64_t b) { return votes[a] < votes[b]; };
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end(), fewer);
}

void add_length(Verification& v, CheckedFile& file, const std::string& member, uint64_t length,
                uint64_t expected, const std::string& whose) {
  v.add({.check = Check::layout,
         .message =
             "has " + counted(length, "element") + ", " + whose + " " + std::to_string(expected),
         .file = file.display,
         .rank = file.rank(),
         .member = member,
         .offset = std::min(length, expected)});
  file.suspect = true;
}

// BF16_Optimizer, and releases before 0.16.4, record the padding of all ranks at the last one.
bool is_booked_on_last(const std::vector<RankTensors>& ranks, size_t g, uint64_t length) {
  for (size_t r = 0; r + 1 < ranks.size(); ++r) {
    if (ranks[r].tensors[g].padding != 0) return false;
  }
  return ranks.back().tensors[g].padding > length;
}

// All ranks must have masters of the same type.
void compare_types(Verification& v, const std::vector<RankTensors>& ranks) {
  std::vector<uint64_t> types;
  for (const RankTensors& rank : ranks) {
    if (rank.tensors.empty()) return;
    types.push_back(static_cast<uint64_t>(rank.tensors.front().dtype));
  }
  const uint64_t expected = most_common(types);
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (types[r] == expected) continue;
    v.add(Check::layout, *ranks[r].file, ranks[r].tensors.front().member,
          "is " + std::string(torch_name(ranks[r].tensors.front().dtype)) + ", but " +
              std::string(torch_name(static_cast<DType>(expected))) + " on other ranks");
    ranks[r].file->suspect = true;
  }
}

// Infers the padding that was cut off the last rank's masters. It is smaller than the number of
// ranks.
void tell_padding(const std::vector<RankTensors>& ranks, FlatTensor& last, size_t g) {
  const uint64_t whole = ranks.front().tensors[g].saved;
  if (last.padding_untold && last.saved < whole && whole - last.saved < ranks.size()) {
    last.padding = whole - last.saved;
  }
}

// The partitions of a group must have the same length on all ranks, including padding.
void compare_lengths(Verification& v, std::vector<RankTensors>& ranks) {
  std::vector<uint64_t> counts;
  for (const RankTensors& rank : ranks) counts.push_back(rank.tensors.size());
  const uint64_t groups = most_common(counts);
  std::erase_if(ranks, [&](const RankTensors& rank) {
    if (rank.tensors.size() == groups) return false;
    v.add(Check::layout, *rank.file, std::string(keys::kOptimizerStateDict),
          "has " + counted(rank.tensors.size(), "flat tensor") + ", other ranks have " +
              std::to_string(groups));
    rank.file->suspect = true;
    return true;
  });
  compare_types(v, ranks);
  for (size_t g = 0; g < groups; ++g) {
    tell_padding(ranks, ranks.back().tensors[g], g);
    std::vector<uint64_t> lengths;
    for (const RankTensors& rank : ranks) lengths.push_back(rank.tensors[g].length());
    const uint64_t expected = most_common(lengths);
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (lengths[r] == expected) continue;
      if (r + 1 == ranks.size() && is_booked_on_last(ranks, g, expected)) continue;
      add_length(v, *ranks[r].file, ranks[r].tensors[g].member, lengths[r], expected,
                 "with its padding; other ranks have");
    }
  }
}

// The optimizer's states must be as long as the partition, or in elastic files as its saved part.
void check_states(Verification& v, RankTensors& rank) {
  for (size_t g = 0; g < rank.tensors.size(); ++g) {
    const FlatTensor& tensor = rank.tensors[g];
    for (const FlatState& state : flat_states_of(*rank.file->shard, g)) {
      if (tensor.muon && state.key == keys::kMomentumBuffer) continue;
      if (state.numel == tensor.length() || state.numel == tensor.saved) continue;
      // The last rank's recorded padding belongs to other ranks too.
      if (tensor.padding > tensor.length() - tensor.padding) continue;
      add_length(v, *rank.file, state.member, state.numel, tensor.length(), "the partition has");
    }
  }
}

// Tensors of an optimizer's file must not share elements.
void check_overlaps(Verification& v, CheckedFile& file) {
  struct Part {
    std::string storage;
    uint64_t begin;
    uint64_t end;
    std::string path;
  };
  std::vector<Part> parts;
  std::set<const void*> seen;
  for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
    const auto info = if_supported([&] { return file.shard->archive.info(found.value); });
    if (!info) continue;
    const auto count = static_cast<uint64_t>(numel(info->shape));
    if (count < 2 || info->shape.size() != 1 || !seen.insert(found.value.identity()).second) {
      continue;
    }
    const uint64_t item = size_of(info->dtype);
    const uint64_t begin = static_cast<uint64_t>(info->storage_offset) * item;
    parts.push_back({info->storage_key, begin, begin + count * item, found.path});
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  for (size_t i = 1; i < parts.size(); ++i) {
    const Part& before = parts[i - 1];
    if (parts[i].storage != before.storage || parts[i].begin >= before.end) continue;
    v.add(Check::layout, file, parts[i].path, "shares elements with " + before.path);
    file.suspect = true;
  }
}

std::vector<RankTensors> tensors_of(Verification& v, uint32_t mp_rank) {
  std::vector<RankTensors> ranks;
  for (CheckedFile* file : v.of_kind(Kind::optim_states, mp_rank)) {
    v.attempt(Check::layout, *file, [&] { ranks.push_back({file, flat_tensors(*file->shard)}); });
  }
  return ranks;
}

std::set<uint32_t> worlds_of(Verification& v) {
  std::set<uint32_t> worlds;
  for (const CheckedFile* file : v.of_kind(Kind::optim_states)) worlds.insert(file->name->mp_rank);
  return worlds;
}

// The positions of all parameters in the partition of a rank, as its param_slice_mappings should
// have them: for each group name -> (start, numel).
using Mapping = std::vector<std::map<std::string, std::pair<uint64_t, uint64_t>>>;

Mapping mapping_of_rank(const std::vector<std::vector<FlatSlice>>& groups,
                        const std::vector<FlatTensor>& tensors, uint64_t rank) {
  Mapping mapping(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const uint64_t begin = rank * tensors[g].length();
    const uint64_t end = begin + tensors[g].length();
    for (const FlatSlice& slice : groups[g]) {
      const uint64_t from = std::max(slice.begin, begin);
      const uint64_t to = std::min(slice.begin + slice.numel, end);
      if (from < to) mapping[g].emplace(slice.name, std::pair(from - begin, to - from));
    }
  }
  return mapping;
}

Mapping saved_mapping(const Shard& shard) {
  Mapping mapping;
  for (const pickle::Value& group : optimizer_state(shard).sequence(keys::kParamSliceMappings)) {
    auto& names = mapping.emplace_back();
    for (const auto& [name, address] : group.as_dict().items) {
      const pickle::Value& fields = address.as_object().state;
      names.emplace(name.as_string(),
                    std::pair(static_cast<uint64_t>(fields.at("start").as_int()),
                              static_cast<uint64_t>(fields.at("numel").as_int())));
    }
  }
  return mapping;
}

// Returns the positions of the parameters in the groups, from the model's file and one rank's file.
// Returns none if the files lack them or are unreadable.
std::vector<std::vector<FlatSlice>> slices_of(Verification& v, CheckedFile& model_file,
                                              const RankTensors& rank) {
  std::vector<std::vector<FlatSlice>> groups;
  v.attempt(Check::layout, model_file, [&] {
    const ModelStates model(*model_file.shard);
    const pickle::Value config = model_file.shard->archive.root().find_or_none(keys::kDsConfig);
    if (run_config(config, {}).may_be_round_robin()) return;
    if (model.param_shapes.size() != rank.tensors.size()) return;
    v.attempt(Check::layout, *rank.file, [&] {
      for (size_t g = 0; g < model.param_shapes.size(); ++g) {
        groups.push_back(flat_slices(model, *rank.file->shard, g));
      }
    });
  });
  return groups;
}

// A file that was copied and saved again under another rank's name still lists the parameters of
// the first rank.
void check_mappings(Verification& v, const std::vector<RankTensors>& ranks, uint32_t mp_rank) {
  const std::vector<CheckedFile*> models = v.of_kind(Kind::model_states, mp_rank);
  if (models.empty() || ranks.empty()) return;
  const auto groups = slices_of(v, *models.front(), ranks[0]);
  if (groups.size() != ranks[0].tensors.size()) return;
  std::vector<int64_t> counts;
  v.attempt(Check::layout, *ranks[0].file,
            [&] { counts = partition_counts(optimizer_state(*ranks[0].file->shard)); });
  if (counts.empty()) return;
  // Only some of the ranks share experts.
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  if (std::any_of(counts.begin(), counts.end(), [&](int64_t n) { return n != most; })) return;
  for (const RankTensors& rank : ranks) {
    if (rank.tensors.size() != groups.size()) continue;  // compare_lengths says so
    v.attempt(Check::layout, *rank.file, [&] {
      const Mapping saved = saved_mapping(*rank.file->shard);
      const uint32_t own = rank.file->name->dp_rank;
      if (saved.empty() || saved == mapping_of_rank(groups, rank.tensors, own)) return;
      for (uint32_t other = 0; other < static_cast<uint32_t>(most); ++other) {
        if (saved != mapping_of_rank(groups, rank.tensors, other)) continue;
        v.add(Check::wrong_rank, *rank.file, std::string(keys::kParamSliceMappings),
              "has the parameters of rank " + std::to_string(other));
        rank.file->suspect = true;
        return;
      }
    });
  }
}

// Returns the check that an error of the reader belongs to. The key in the error decides.
Check check_of(const Error& error) {
  const std::string& member = error.where().member;
  const auto names = [&](std::string_view key) { return member.find(key) != member.npos; };
  if (names(keys::kParamShapes) || names(keys::kFrozenParamShapes)) return Check::shape;
  if (names(keys::kFp32Groups)) return Check::rounding;
  if (error.kind() == ErrorKind::inconsistent &&
      (names(keys::kGlobalSteps) || names(keys::kSkippedSteps) || names(keys::kGlobalSamples) ||
       names(keys::kLossScaler) || names(".step"))) {
    return Check::step;
  }
  return error.kind() == ErrorKind::corrupt && member.empty() ? Check::unreadable : Check::layout;
}

// Returns why the reader must fail, or "".
std::string known_obstacle(const Verification& v) {
  if (v.has(Check::missing)) return "files are missing";
  if (v.report.form == "universal" && v.has(Check::extra)) return "there are too many files";
  for (const CheckedFile& file : v.files) {
    if (!file.left_out && !file.whole()) return file.display + " cannot be read";
    if (!file.left_out && file.suspect) return file.display + " has wrong content";
  }
  return "";
}

}  // namespace

void check_flat_groups(Verification& v) {
  for (const uint32_t mp_rank : worlds_of(v)) {
    std::vector<RankTensors> ranks = tensors_of(v, mp_rank);
    if (ranks.empty()) continue;
    check_mappings(v, ranks, mp_rank);
    std::erase_if(ranks, [](const RankTensors& rank) { return rank.file->suspect; });
    if (ranks.empty()) continue;
    // Experts are partitioned over some of the ranks.
    if (!optimizer_state(*ranks[0].file->shard).has(keys::kZeroPartitionGroups)) {
      compare_lengths(v, ranks);
    }
    for (RankTensors& rank : ranks) {
      v.attempt(Check::layout, *rank.file, [&] { check_states(v, rank); });
      v.attempt(Check::layout, *rank.file, [&] { check_overlaps(v, *rank.file); });
    }
  }
}

// At stages 1 and 2 the gradients of padding are zero, so states that start at zero stay zero
// there.
void check_padding(Verification& v) {
  static const std::set<std::string_view> kStayZero = {"exp_avg", "exp_avg_sq", "momentum_buffer"};
  constexpr uint64_t kMostPadding = 1 << 20;
  const auto check = [&](CheckedFile& file, const pickle::Value& value, uint64_t padding,
                         const std::string& member) {
    const TensorSource tensor = file.shard->archive.tensor(value).flatten();
    const uint64_t first = static_cast<uint64_t>(tensor.numel()) - padding;
    std::vector<std::byte> bytes(padding * size_of(tensor.dtype()));
    read_elements(v.inputs, tensor, static_cast<int64_t>(first), static_cast<int64_t>(padding),
                  bytes);
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) {
      return (byte & std::byte{0x7F}) != std::byte{0};
    });
    if (bad == bytes.end()) return;
    const auto at = static_cast<uint64_t>(bad - bytes.begin()) / size_of(tensor.dtype());
    v.add({.check = Check::layout,
           .message = "an element of padding is not zero",
           .file = file.display,
           .rank = file.rank(),
           .member = member,
           .offset = first + at});
  };
  for (CheckedFile* file : v.of_kind(Kind::optim_states)) {
    v.attempt(Check::layout, *file, [&] {
      if (zero_stage_of(*file->shard) == 3) return;
      const std::vector<FlatTensor> tensors = flat_tensors(*file->shard);
      for (size_t g = 0; g < tensors.size(); ++g) {
        const FlatTensor& tensor = tensors[g];
        const uint64_t padding = std::min(tensor.padding, tensor.length());
        if (padding == 0 || padding > kMostPadding || tensor.muon) continue;
        if (tensor.padding_kept) check(*file, tensor.masters, padding, tensor.member);
        for (const FlatState& state : flat_states_of(*file->shard, g)) {
          if (!kStayZero.contains(state.key) || state.numel != tensor.length()) continue;
          if (v.is_doubtful(file->shard->archive.tensor(state.value))) continue;
          check(*file, state.value, padding, state.member);
        }
      }
    });
  }
}

void open_checkpoint(Verification& v) {
  if (const std::string obstacle = known_obstacle(v); !obstacle.empty()) {
    for (const Check check : {Check::layout, Check::replica, Check::nonfinite}) {
      v.skip(check, "not all of it: " + obstacle, true);
    }
    return;
  }
  try {
    v.checkpoint =
        std::make_unique<Checkpoint>(Checkpoint::open(v.inputs, v.folder, checkpoint_options(v)));
    for (const Error& doubt : v.checkpoint->doubts()) v.add(check_of(doubt), doubt);
    return;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted || error.kind() == ErrorKind::usage) throw;
    for (const Check check : {Check::layout, Check::replica, Check::nonfinite}) {
      v.skip(check, std::string("not all of it: ") + error.what(), true);
    }
    const Check check = check_of(error);
    if (error.kind() == ErrorKind::unsupported || v.has(check) ||
        v.is_reported(error.where().file)) {
      return;
    }
    v.add(check, error);
  }
}

}  // namespace dsckpt
