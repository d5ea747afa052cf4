// Compares copies that must be equal.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "checkpoint/model_states.h"
#include "deepspeed/keys.h"
#include "format/compare_values.h"
#include "format/read_tensor.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;
using pickle::Value;

// Statistics of the data that a rank has seen differ between ranks.
bool is_running_statistic(std::string_view name) {
  return name.ends_with("running_mean") || name.ends_with("running_var");
}

// Counts compared bytes, and throws if the run is cancelled.
void count_compared(Verification& v, uint64_t bytes) {
  v.stop_if_cancelled();
  v.progress.bytes_done += bytes;
}

// Returns the position in `whole_a` of the first byte that differs. Both have the same type and
// shape.
std::optional<Extent> first_difference(Verification& v, const TensorSource& whole_a,
                                       const TensorSource& whole_b) {
  const std::pair<TensorSource, TensorSource> read = without_same_repeats(whole_a, whole_b);
  const TensorSource& a = read.first;
  const TensorSource& b = read.second;
  std::vector<std::byte> left;
  std::vector<std::byte> right;
  const uint64_t item = size_of(a.dtype());
  v.progress.bytes_total += a.nbytes() + b.nbytes();
  for (int64_t at = 0; at < a.numel(); at += kPieceElements) {
    const int64_t count = std::min(kPieceElements, a.numel() - at);
    left.resize(static_cast<size_t>(count) * item);
    right.resize(left.size());
    read_elements(v.inputs, a, at, count, left);
    read_elements(v.inputs, b, at, count, right);
    count_compared(v, 2 * left.size());
    const auto differs = std::mismatch(left.begin(), left.end(), right.begin()).first;
    if (differs == left.end()) continue;
    const uint64_t begin = static_cast<uint64_t>(at) * item;
    count_compared(v, 2 * (a.nbytes() - begin - left.size()));
    return place_of(a, at + (differs - left.begin()) / static_cast<int64_t>(item));
  }
  return std::nullopt;
}

// Hashes the first elements.
uint64_t hash_of_start(Verification& v, const TensorSource& tensor) {
  const int64_t count = std::min(kPieceElements, tensor.numel());
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(tensor.dtype()));
  read_elements(v.inputs, tensor, 0, count, bytes);
  return keyed_hash(as_text(bytes));
}

struct Copy {
  CheckedFile* file;
  TensorSource value;
};

void report_copy(Verification& v, const std::string& name, const Copy& copy, const Copy& right,
                 const std::optional<Extent>& at, const std::string& message) {
  Finding finding{.check = Check::replica, .message = message, .file = copy.file->display};
  finding.rank = copy.file->rank();
  v.set_place(finding, at);
  finding.tensor = name;
  finding.message += right.file->display;
  v.add(std::move(finding));
}

// Compares the copies of a tensor with the one that most files have.
void compare_copies(Verification& v, const std::string& name, std::vector<Copy> copies) {
  std::erase_if(copies, [&](const Copy& copy) { return v.is_doubtful(copy.value); });
  if (copies.size() < 2) return;
  const auto alike = [&](const Copy& a, const Copy& b) {
    return a.value.shape() == b.value.shape() && a.value.dtype() == b.value.dtype();
  };
  const std::vector<size_t> group = first_equals(
      copies.size(), [&](size_t i) { return hash_of_start(v, copies[i].value); },
      [&](size_t i, size_t j) {
        return alike(copies[i], copies[j]) &&
               !first_difference(v, copies[i].value, copies[j].value);
      });
  const size_t best = largest_kind(group);
  for (size_t i = 0; i < copies.size(); ++i) {
    if (group[i] == best) continue;
    if (!alike(copies[i], copies[best])) {
      v.add({.check = Check::shape,
             .message = "is " + to_text(copies[i].value.shape()) + ", but " +
                        to_text(copies[best].value.shape()) + " in " + copies[best].file->display,
             .file = copies[i].file->display,
             .rank = copies[i].file->rank(),
             .member = std::string(keys::kModule),
             .tensor = name});
      continue;
    }
    const auto at = first_difference(v, copies[i].value, copies[best].value);
    report_copy(v, name, copies[i], copies[best], at ? at : place_of(copies[i].value, 0),
                "differs from the copy in ");
  }
}

// At stage 3 every rank writes `module`, but only its buffers have values.
void compare_ranks(Verification& v, const std::vector<CheckedFile*>& files) {
  std::map<std::string, std::vector<Copy>> copies;
  for (CheckedFile* file : files) {
    v.attempt(Check::layout, *file, [&] {
      const ModelStates model(*file->shard);
      for (const auto& [name, value] : model.module) {
        if (is_running_statistic(name)) continue;
        const auto stored =
            if_supported([&, &tensor = value] { return file->shard->archive.tensor(tensor); });
        if (!stored) continue;
        if (!model.buffer_names.contains(name) && model.is_placeholder(stored->shape())) continue;
        if (stored->numel() > 0) copies[name].push_back({file, *stored});
      }
    });
  }
  for (auto& [name, some] : copies) {
    if (some.size() < files.size()) {
      std::set<const CheckedFile*> have;
      for (const Copy& copy : some) have.insert(copy.file);
      for (CheckedFile* file : files) {
        if (have.contains(file)) continue;
        v.add({.check = Check::replica,
               .message = "is not there, but is in " + some.front().file->display,
               .file = file->display,
               .rank = file->rank(),
               .member = std::string(keys::kModule),
               .tensor = name});
      }
    }
    compare_copies(v, name, std::move(some));
  }
}

// Parameters that are equal on all tensor-parallel ranks according to universal_checkpoint_info.
class TpReplicated {
 public:
  explicit TpReplicated(const Value& info) {
    for (const Value& pattern : info.find_or_none(keys::kTpReplicated).sequence_or_empty()) {
      if (!pattern.is(pickle::Kind::string)) continue;
      auto expression = compile_quietly(std::string(pattern.as_string()));
      if (expression->ok()) patterns_.push_back(std::move(expression));
    }
  }

  // AutoEP with folded tensor parallelism lists experts there, which differ.
  bool contains(const std::string& name) const {
    if (name.find("experts") != name.npos) return false;
    return std::any_of(patterns_.begin(), patterns_.end(), [&](const auto& pattern) {
      return pattern->Match(name, 0, name.size(), RE2::ANCHOR_START, nullptr, 0);
    });
  }

 private:
  std::vector<std::unique_ptr<RE2>> patterns_;
};

// Compares tensor-parallel ranks without a pipeline.
void compare_slices(Verification& v) {
  std::map<std::string, std::vector<Copy>> copies;
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    v.attempt(Check::layout, *file, [&] {
      const TpReplicated replicated(
          file->shard->archive.root().find_or_none(keys::kUniversalCheckpointInfo));
      for (const auto& [name, value] : ModelStates(*file->shard).module) {
        if (!replicated.contains(name)) continue;
        const auto stored =
            if_supported([&, &tensor = value] { return file->shard->archive.tensor(tensor); });
        if (stored) copies[name].push_back({file, *stored});
      }
    });
  }
  for (auto& [name, some] : copies) {
    if (some.size() > 1) compare_copies(v, name, std::move(some));
  }
}

// Compares tensors that one file has twice: frozen parameters at stage 2, and tied ones.
void compare_within(Verification& v, CheckedFile& file) {
  ModelStates model(*file.shard);
  model.drop_false_aliases();
  const auto compare = [&](const std::string& name, const Value& a, const Value& b) {
    const auto left = if_supported([&] { return file.shard->archive.tensor(a); });
    const auto right = if_supported([&] { return file.shard->archive.tensor(b); });
    if (!left || !right) return;
    const Copy mine{&file, *left};
    const Copy other{&file, *right};
    if (v.is_doubtful(mine.value) || v.is_doubtful(other.value)) return;
    if (mine.value.shape() != other.value.shape() || mine.value.dtype() != other.value.dtype()) {
      return;
    }
    if (const auto at = first_difference(v, mine.value, other.value)) {
      report_copy(v, name, mine, other, at, "differs from its other copy in ");
    }
  };
  if (model.frozen_param_fragments && model.frozen_param_fragments->is_mapping()) {
    for (const auto& entry : model.frozen_param_shapes) {
      const auto found = model.by_name.find(entry.first);
      const Value fragment = model.frozen_param_fragments->find_or_none(entry.first);
      if (found == model.by_name.end() || !TorchArchive::is_tensor(fragment)) continue;
      compare(entry.first, found->second, fragment);
    }
  }
  for (const auto& [alias, owner] : model.shared_params) {
    const auto a = model.by_name.find(alias);
    const auto b = model.by_name.find(owner);
    if (a == model.by_name.end() || b == model.by_name.end()) continue;
    compare(alias, a->second, b->second);
  }
}

// Compares several ranks' copies of a tensor.
void check_same(Verification& v, const std::string& name, const TensorSource& source) {
  std::set<FileId> reported;
  source.without_repeats().lower([&](const SourceRun& run) {
    if (run.combine != Combine::same) return;
    const Rows& first = run.sources().front();
    const std::span<const Rows> others = run.sources().subspan(1);
    v.progress.bytes_total += first.row_bytes * others.size();
    for (const Rows& other : others) {
      std::vector<std::byte> left;
      std::vector<std::byte> right;
      for (uint64_t at = 0; at < first.row_bytes; at += left.size()) {
        left.resize(std::min<uint64_t>(first.row_bytes - at, 256 << 10));
        count_compared(v, left.size());
        if (reported.contains(other.file)) continue;
        right.resize(left.size());
        v.inputs[first.file].read_at(first.offset + at, left);
        v.inputs[other.file].read_at(other.offset + at, right);
        const auto differs = std::mismatch(left.begin(), left.end(), right.begin()).second;
        if (differs == right.end()) continue;
        reported.insert(other.file);
        Finding finding{.check = Check::replica,
                        .message = *run.what + " are not the same; the other is in " +
                                   v.inputs[first.file].display(),
                        .file = {}};
        const uint64_t offset = other.offset + at + static_cast<uint64_t>(differs - right.begin());
        v.set_place(finding, Extent{other.file, offset, 1});
        finding.tensor = name;
        v.add(std::move(finding));
      }
    }
  });
}

}  // namespace

void check_module_replicas(Verification& v) {
  std::set<uint32_t> worlds;
  for (const CheckedFile* file : v.of_kind(Kind::zero_model_states)) {
    worlds.insert(file->name->mp_rank);
  }
  for (const uint32_t mp_rank : worlds) {
    compare_ranks(v, v.of_kind(Kind::zero_model_states, mp_rank));
  }
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    v.attempt(Check::layout, *file, [&] { compare_within(v, *file); });
  }
  // With masters, check_same_tensors and check_rounding compare these.
  if (v.of_kind(Kind::optim_states).empty()) compare_slices(v);
}

void check_same_tensors(Verification& v) {
  if (!v.checkpoint) return;
  std::vector<std::pair<std::string, TensorSource>> tensors;
  for (const Param& param : v.checkpoint->params()) {
    if (!param.alias_of.empty()) continue;
    tensors.push_back({param.name, param.weight});
    for (const ParamState& state : param.states) tensors.push_back({param.name, state.value});
  }
  for_each_index(tensors.size(), [&](size_t i) {
    v.stop_if_cancelled();
    if (!v.has_damaged() || !v.is_doubtful(tensors[i].second)) {
      check_same(v, tensors[i].first, tensors[i].second);
    }
  });
}

}  // namespace dsckpt
