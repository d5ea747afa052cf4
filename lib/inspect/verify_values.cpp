// Values: weights that are roundings of their masters, copies that must be equal, NaN and Inf.

#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/kernels.h"
#include "checkpoint/keys.h"
#include "checkpoint/optim_states.h"
#include "format/read_tensor.h"
#include "format/tensors_in.h"
#include "inspect/flat_files.h"
#include "inspect/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;
using pickle::Value;

constexpr int64_t kPieceElements = 64 << 10;
// What one task looks at.
constexpr int64_t kTaskElements = 4 << 20;

// Where element `at` of a tensor lies: the file and the byte, of the first of several copies.
std::optional<Extent> place_of(const TensorSource& source, int64_t at) {
  std::optional<Extent> place;
  source.lower(at, 1, [&](const SourceRun& run) {
    if (run.combine != Combine::zeros) place = Extent{run.file, run.offset, run.row_bytes};
  });
  return place;
}

void set_place(Verification& v, Finding& finding, const std::optional<Extent>& place) {
  if (!place) return;
  finding.offset = place->offset;
  finding.member = v.record_at(place->file, place->offset);
  finding.file = v.inputs[place->file].display();
  if (const CheckedFile* file = v.file_of(place->file)) finding.rank = file->rank();
}

// A 16-bit weight and the master that it was rounded from.
struct Weight {
  std::string name;
  TensorSource stored;
  TensorSource master;
};

bool is_nan(DType dtype, const std::byte* at) {
  float value = 0;
  if (!can_convert(dtype, DType::float32)) return false;
  convert(dtype, DType::float32, at, reinterpret_cast<std::byte*>(&value), 1);
  return std::isnan(value);
}

// The first element of [first, last) that is not the rounding of the master's.
std::optional<int64_t> first_not_rounded(const InputFiles& inputs, const Weight& weight,
                                         int64_t first, int64_t last) {
  thread_local std::vector<std::byte> stored;
  thread_local std::vector<std::byte> master;
  thread_local std::vector<std::byte> rounded;
  const DType to = weight.stored.dtype();
  const DType from = weight.master.dtype();
  const size_t to_size = size_of(to);
  for (int64_t at = first; at < last; at += kPieceElements) {
    const int64_t count = std::min(kPieceElements, last - at);
    const auto n = static_cast<size_t>(count);
    stored.resize(n * to_size);
    master.resize(n * size_of(from));
    rounded.resize(n * to_size);
    read_elements(inputs, weight.stored, at, count, stored);
    read_elements(inputs, weight.master, at, count, master);
    if (from == to) {
      std::swap(master, rounded);
    } else {
      convert(from, to, master.data(), rounded.data(), n);
    }
    if (std::memcmp(stored.data(), rounded.data(), n * to_size) == 0) continue;
    for (size_t i = 0; i < n; ++i) {
      const std::byte* a = stored.data() + i * to_size;
      const std::byte* b = rounded.data() + i * to_size;
      if (std::memcmp(a, b, to_size) == 0 || (is_nan(to, a) && is_nan(to, b))) continue;
      return at + static_cast<int64_t>(i);
    }
  }
  return std::nullopt;
}

// Where a weight of world `mp_rank` stands in 16 bit: in the world's model-states file or, of a
// pipeline, in the file of its layer.
class ModuleFiles {
 public:
  ModuleFiles(Verification& v, const Shard& model) : v_(v), model_(model) {
    const Value dimensions = model.archive.root().find_or_none(keys::kCheckpointParallelDimensions);
    const Value tp = dimensions.find_or_none("tp_degree");
    if (tp.is(pickle::Kind::integer) && tp.as_int() > 0) {
      slice_ = model.name.mp_rank % static_cast<uint32_t>(std::min<int64_t>(tp.as_int(), 1 << 20));
    }
  }

  std::optional<TensorSource> find(const std::string& name) {
    const Value module = model_.archive.root().find_or_none(keys::kModule);
    if (module.is_mapping()) return tensor_of(model_, module.find_or_none(name));
    const size_t dot = name.find('.');
    if (dot == 0 || dot > 6 || name.find_first_not_of("0123456789") != dot) return std::nullopt;
    const auto layer = static_cast<uint32_t>(std::stoul(name));
    for (const CheckedFile* file : v_.of_kind(Kind::layer, slice_)) {
      if (file->name->layer != layer) continue;
      return tensor_of(*file->shard,
                       file->shard->archive.root().find_or_none(name.substr(dot + 1)));
    }
    return std::nullopt;
  }

 private:
  static std::optional<TensorSource> tensor_of(const Shard& shard, const Value& value) {
    if (!TorchArchive::is_tensor(value)) return std::nullopt;
    return shard.archive.tensor(value);
  }

  Verification& v_;
  const Shard& model_;
  uint32_t slice_ = 0;
};

bool can_compare(const TensorSource& stored, const TensorSource& master) {
  return stored.shape() == master.shape() &&
         (stored.dtype() == master.dtype() || can_convert(master.dtype(), stored.dtype()));
}

// The weights of one world whose masters the ranks of that world share. Parameters of experts, of
// which each rank has others, are left out: the readers know how they are named.
std::vector<Weight> weights_of_world(Verification& v, CheckedFile& model_file) {
  const ModelStates model(*model_file.shard);
  const std::vector<CheckedFile*> optim = v.of_kind(Kind::optim_states, model_file.name->mp_rank);
  std::vector<Weight> weights;
  if (optim.empty()) return weights;
  std::vector<std::vector<FlatTensor>> tensors;
  for (const CheckedFile* file : optim) tensors.push_back(flat_tensors(*file->shard));
  const std::vector<int64_t> counts = partition_counts(optimizer_state(*optim.front()->shard));
  ModuleFiles module(v, *model_file.shard);
  for (size_t g = 0; g < model.param_shapes.size(); ++g) {
    const int64_t count = g < counts.size() ? counts[g] : counts.front();
    if (count != static_cast<int64_t>(optim.size())) continue;
    std::vector<TensorSource> parts;
    for (size_t r = 0; r < optim.size(); ++r) {
      parts.push_back(flat_masters(*optim[r]->shard, tensors[r].at(g).masters));
    }
    const TensorSource flat = TensorSource::cat(0, std::move(parts));
    for (const FlatSlice& slice : flat_slices(model, *optim.front()->shard, g)) {
      if (slice.begin + slice.numel > static_cast<uint64_t>(flat.numel())) break;
      const auto stored = module.find(slice.name);
      if (!stored) continue;
      const TensorSource master =
          flat.narrow(0, static_cast<int64_t>(slice.begin), static_cast<int64_t>(slice.numel))
              .view(slice.shape);
      if (can_compare(*stored, master)) weights.push_back({slice.name, *stored, master});
    }
  }
  return weights;
}

// What is not as it should be of a list of weights: the first element of each.
std::vector<std::optional<int64_t>> not_rounded(Verification& v,
                                                const std::vector<Weight>& weights) {
  struct Task {
    size_t weight;
    int64_t first;
    int64_t last;
  };
  std::vector<Task> tasks;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t count = weights[i].stored.numel();
    for (int64_t at = 0; at < count; at += kTaskElements) {
      tasks.push_back({i, at, std::min(count, at + kTaskElements)});
    }
  }
  for (const Task& task : tasks) {
    v.progress.bytes_total += static_cast<uint64_t>(task.last - task.first) *
                              size_of(weights[task.weight].stored.dtype());
  }
  std::vector<std::optional<int64_t>> of_task(tasks.size());
  for_each_index(tasks.size(), [&](size_t i) {
    v.stop_if_cancelled();
    const Task& task = tasks[i];
    of_task[i] = first_not_rounded(v.inputs, weights[task.weight], task.first, task.last);
    v.progress.bytes_done += static_cast<uint64_t>(task.last - task.first) *
                             size_of(weights[task.weight].stored.dtype());
  });
  std::vector<std::optional<int64_t>> first(weights.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    std::optional<int64_t>& known = first[tasks[i].weight];
    if (of_task[i] && !known) known = of_task[i];
  }
  return first;
}

std::string text_of(Verification& v, const TensorSource& source, int64_t at) {
  std::byte bytes[16];
  float value = 0;
  const size_t size = size_of(source.dtype());
  read_elements(v.inputs, source, at, 1, std::span(bytes).first(size));
  if (source.dtype() == DType::float32) {
    std::memcpy(&value, bytes, sizeof value);
  } else {
    convert(source.dtype(), DType::float32, bytes, reinterpret_cast<std::byte*>(&value), 1);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

void report_weight(Verification& v, const Weight& weight, int64_t at) {
  Finding finding{.check = Check::rounding, .message = {}, .file = {}};
  set_place(v, finding, place_of(weight.stored, at));
  finding.tensor = weight.name;
  const auto master = place_of(weight.master, at);
  finding.message = "element " + std::to_string(at) + " is " + text_of(v, weight.stored, at) +
                    ", not the rounding of its master " + text_of(v, weight.master, at);
  if (master) {
    finding.message +=
        " at byte " + std::to_string(master->offset) + " of " + v.inputs[master->file].display();
  }
  v.add(std::move(finding));
}

// How many weights each file has, and of how many of them some are wrong.
struct Tally {
  size_t all = 0;
  std::vector<size_t> wrong;
};

// A file of another save differs almost everywhere: one finding then says so.
std::set<size_t> report_stale_files(Verification& v, const std::vector<Weight>& weights,
                                    const std::vector<std::optional<int64_t>>& first) {
  // By file, of the parts of masters that lie in it.
  std::map<FileId, Tally> tallies;
  Tally all;
  for (size_t i = 0; i < weights.size(); ++i) {
    std::set<FileId> files;
    weights[i].master.lower([&](const SourceRun& run) { files.insert(run.file); });
    for (const FileId id : files) ++tallies[id].all;
    ++all.all;
    if (!first[i]) continue;
    all.wrong.push_back(i);
    if (const auto place = place_of(weights[i].master, *first[i])) {
      tallies[place->file].wrong.push_back(i);
    }
  }
  std::set<size_t> explained;
  const auto most = [](const Tally& tally) {
    return tally.wrong.size() > 2 && 2 * tally.wrong.size() > tally.all;
  };
  const auto report = [&](FileId id, const Tally& tally, const std::string& whose) {
    const CheckedFile* file = v.file_of(id);
    if (file == nullptr) return;
    v.add({.check = Check::rounding,
           .message = std::to_string(tally.wrong.size()) + " of " + std::to_string(tally.all) +
                      " weights are not the roundings of their masters: " + whose +
                      " is of another save",
           .file = file->display,
           .rank = file->rank(),
           .tensor = weights[tally.wrong.front()].name});
    explained.insert(tally.wrong.begin(), tally.wrong.end());
  };
  const auto bad = std::count_if(tallies.begin(), tallies.end(),
                                 [&](const auto& entry) { return most(entry.second); });
  if (bad > 0 && static_cast<size_t>(bad) < tallies.size()) {
    for (const auto& [id, tally] : tallies) {
      if (most(tally)) report(id, tally, "this rank's file");
    }
  } else if (most(all)) {
    if (const auto place = place_of(weights[all.wrong.front()].stored, 0)) {
      report(place->file, all, "this file, or those of all ranks,");
    }
  }
  return explained;
}

void check_weights_of(Verification& v, std::vector<Weight> weights) {
  std::erase_if(weights, [&](const Weight& weight) {
    return v.is_doubtful(weight.stored) || v.is_doubtful(weight.master);
  });
  const std::vector<std::optional<int64_t>> first = not_rounded(v, weights);
  const std::set<size_t> explained = report_stale_files(v, weights, first);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (first[i] && !explained.contains(i)) report_weight(v, weights[i], *first[i]);
  }
}

// Those of a universal checkpoint, whose masters are whole.
std::vector<Weight> universal_weights(Verification& v) {
  std::vector<Weight> weights;
  const std::vector<CheckedFile*> models = v.of_kind(Kind::model_states);
  if (!v.checkpoint || models.size() != 1) return weights;
  ModuleFiles module(v, *models.front()->shard);
  for (const Param& param : v.checkpoint->params()) {
    if (param.kind != ParamKind::trainable || !param.alias_of.empty()) continue;
    const auto stored = module.find(param.name);
    if (stored && can_compare(*stored, param.weight)) {
      weights.push_back({param.name, *stored, param.weight});
    }
  }
  return weights;
}

// Those in files of single experts, which only the reader knows to name: DeepSpeed's own experts
// have their global number in the name, AutoEP's have it behind the name of the fused parameter.
std::vector<Weight> expert_weights(Verification& v) {
  std::vector<Weight> weights;
  if (!v.checkpoint) return weights;
  for (const CheckedFile* file : v.of_kind(Kind::expert)) {
    const Value root = file->shard->archive.root();
    if (!root.is_mapping()) continue;
    for (const auto& [key, value] : root.as_dict().items) {
      if (!key.is(pickle::Kind::string) || !TorchArchive::is_tensor(value)) continue;
      const std::string name(key.as_string());
      const TensorSource stored = file->shard->archive.tensor(value);
      std::optional<TensorSource> master;
      if (const Param* param = v.checkpoint->find(name)) {
        master = param->weight;
      } else if (const Param* fused = v.checkpoint->find(name.substr(0, name.rfind('.')))) {
        const Shape& shape = fused->weight.shape();
        if (shape.empty() || file->name->expert >= shape[0] ||
            stored.numel() * shape[0] != fused->weight.numel()) {
          continue;
        }
        master = fused->weight.narrow(0, file->name->expert, 1).view(stored.shape());
      }
      if (master && can_compare(stored, *master)) weights.push_back({name, stored, *master});
    }
  }
  return weights;
}

// What each rank has seen of the data; nobody keeps it equal.
bool is_running_statistic(std::string_view name) {
  return name.ends_with("running_mean") || name.ends_with("running_var");
}

// The first byte in which two tensors of one type and shape differ.
std::optional<uint64_t> first_difference(const InputFiles& inputs, const TensorSource& a,
                                         const TensorSource& b) {
  std::vector<std::byte> left;
  std::vector<std::byte> right;
  const uint64_t item = size_of(a.dtype());
  for (int64_t at = 0; at < a.numel(); at += kPieceElements) {
    const int64_t count = std::min(kPieceElements, a.numel() - at);
    left.resize(static_cast<size_t>(count) * item);
    right.resize(left.size());
    read_elements(inputs, a, at, count, left);
    read_elements(inputs, b, at, count, right);
    const auto differs = std::mismatch(left.begin(), left.end(), right.begin()).first;
    if (differs != left.end()) {
      return static_cast<uint64_t>(at) * item + static_cast<uint64_t>(differs - left.begin());
    }
  }
  return std::nullopt;
}

struct Copy {
  CheckedFile* file;
  TensorSource value;
};

void report_copy(Verification& v, const std::string& name, const Copy& copy, const Copy& right,
                 uint64_t at, const std::string& message) {
  const auto element = static_cast<int64_t>(at / size_of(copy.value.dtype()));
  Finding finding{.check = Check::replica, .message = message, .file = copy.file->display};
  finding.rank = copy.file->rank();
  set_place(v, finding, place_of(copy.value, element));
  finding.tensor = name;
  finding.message += right.file->display;
  v.add(std::move(finding));
}

// Compares copies of one tensor with the one that most files have.
void compare_copies(Verification& v, const std::string& name, std::vector<Copy> copies) {
  std::erase_if(copies, [&](const Copy& copy) { return v.is_doubtful(copy.value); });
  std::vector<size_t> group(copies.size());  // the first that it equals
  std::vector<size_t> votes(copies.size());
  std::vector<uint64_t> differs(copies.size());
  const auto alike = [&](const Copy& a, const Copy& b) {
    return a.value.shape() == b.value.shape() && a.value.dtype() == b.value.dtype();
  };
  for (size_t i = 0; i < copies.size(); ++i) {
    group[i] = i;
    for (size_t j = 0; j < i; ++j) {
      if (group[j] != j || !alike(copies[i], copies[j])) continue;
      if (first_difference(v.inputs, copies[i].value, copies[j].value)) continue;
      group[i] = j;
      break;
    }
    ++votes[group[i]];
  }
  const auto best =
      static_cast<size_t>(std::max_element(votes.begin(), votes.end()) - votes.begin());
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
    const auto at = first_difference(v.inputs, copies[i].value, copies[best].value);
    report_copy(v, name, copies[i], copies[best], at.value_or(0), "differs from the copy in ");
  }
}

// Stage 3 writes `module` for every rank; only buffers have values there.
void compare_ranks(Verification& v, const std::vector<CheckedFile*>& files) {
  std::map<std::string, std::vector<Copy>> copies;
  for (CheckedFile* file : files) {
    v.attempt(Check::layout, *file, [&] {
      for (const auto& [name, value] : ModelStates(*file->shard).module) {
        if (is_running_statistic(name)) continue;
        const TensorSource stored = file->shard->archive.tensor(value);
        if (stored.numel() > 0) copies[name].push_back({file, stored});
      }
    });
  }
  for (auto& [name, some] : copies) {
    if (some.size() < files.size()) {
      for (CheckedFile* file : files) {
        if (std::any_of(some.begin(), some.end(), [&](const Copy& c) { return c.file == file; })) {
          continue;
        }
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

// Whether universal_checkpoint_info says that all tensor-parallel ranks have the same. Of AutoEP
// folded with tensor parallelism it says so of different experts.
bool is_tp_replicated(const Value& info, const std::string& name) {
  if (name.find("experts") != name.npos) return false;
  RE2::Options quiet;
  quiet.set_log_errors(false);
  for (const Value& pattern : info.find_or_none(keys::kTpReplicated).sequence_or_empty()) {
    if (!pattern.is(pickle::Kind::string)) continue;
    const RE2 expression(pattern.as_string(), quiet);
    if (expression.ok() && expression.Match(name, 0, name.size(), RE2::ANCHOR_START, nullptr, 0)) {
      return true;
    }
  }
  return false;
}

// Tensor-parallel ranks that are no pipeline's.
void compare_slices(Verification& v) {
  std::map<std::string, std::vector<Copy>> copies;
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    v.attempt(Check::layout, *file, [&] {
      const Value info = file->shard->archive.root().find_or_none(keys::kUniversalCheckpointInfo);
      for (const auto& [name, value] : ModelStates(*file->shard).module) {
        if (!is_tp_replicated(info, name)) continue;
        copies[name].push_back({file, file->shard->archive.tensor(value)});
      }
    });
  }
  for (auto& [name, some] : copies) {
    if (some.size() > 1) compare_copies(v, name, std::move(some));
  }
}

// What one file has twice: frozen parameters of stage 2 and tied ones.
void compare_within(Verification& v, CheckedFile& file) {
  ModelStates model(*file.shard);
  model.drop_false_aliases();
  const auto compare = [&](const std::string& name, const Value& a, const Value& b) {
    const Copy mine{&file, file.shard->archive.tensor(a)};
    const Copy other{&file, file.shard->archive.tensor(b)};
    if (v.is_doubtful(mine.value) || v.is_doubtful(other.value)) return;
    if (mine.value.shape() != other.value.shape() || mine.value.dtype() != other.value.dtype()) {
      return;
    }
    if (const auto at = first_difference(v.inputs, mine.value, other.value)) {
      report_copy(v, name, mine, other, *at, "differs from its other copy in ");
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

// Compares the copies of one tensor that several ranks hold.
void check_same(Verification& v, const std::string& name, const TensorSource& source) {
  std::set<FileId> reported;
  source.lower([&](const SourceRun& run) {
    if (run.combine != Combine::same) return;
    for (const Operand& operand : run.more) {
      std::vector<std::byte> left;
      std::vector<std::byte> right;
      for (uint64_t at = 0; at < run.row_bytes && !reported.contains(operand.in);
           at += left.size()) {
        left.resize(std::min<uint64_t>(run.row_bytes - at, 256 << 10));
        right.resize(left.size());
        v.inputs[run.file].read_at(run.offset + at, left);
        v.inputs[operand.in].read_at(operand.src + at, right);
        const auto differs = std::mismatch(left.begin(), left.end(), right.begin()).second;
        if (differs == right.end()) continue;
        reported.insert(operand.in);
        Finding finding{.check = Check::replica,
                        .message = *run.what + " are not the same; the other is in " +
                                   v.inputs[run.file].display(),
                        .file = {}};
        const uint64_t offset = operand.src + at + static_cast<uint64_t>(differs - right.begin());
        set_place(v, finding, Extent{operand.in, offset, 1});
        finding.tensor = name;
        v.add(std::move(finding));
      }
    }
  });
}

// How many NaN and Inf there are, and where the first one is.
struct Count {
  uint64_t nan = 0;
  uint64_t inf = 0;
  std::optional<int64_t> first;
};

Count count_nonfinite(const InputFiles& inputs, const TensorSource& source, bool may_be_infinite) {
  thread_local std::vector<std::byte> bytes;
  thread_local std::vector<float> values;
  Count count;
  for (int64_t at = 0; at < source.numel(); at += kPieceElements) {
    const int64_t n = std::min(kPieceElements, source.numel() - at);
    bytes.resize(static_cast<size_t>(n) * size_of(source.dtype()));
    values.resize(static_cast<size_t>(n));
    read_elements(inputs, source, at, n, bytes);
    if (source.dtype() == DType::float32) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      convert(source.dtype(), DType::float32, bytes.data(),
              reinterpret_cast<std::byte*>(values.data()), values.size());
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i]) || (may_be_infinite && std::isinf(values[i]))) continue;
      ++(std::isnan(values[i]) ? count.nan : count.inf);
      if (!count.first) count.first = at + static_cast<int64_t>(i);
    }
  }
  return count;
}

struct Named {
  std::string name;
  TensorSource value;
  bool may_be_infinite = false;  // masks among buffers are
};

bool is_floating(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
      return true;
    default:
      return false;
  }
}

// Every copy that a source is made of, so that none is left out.
void add_parts(std::vector<Named>& out, const std::string& name, const TensorSource& source) {
  bool plain = true;
  source.lower([&](const SourceRun& run) {
    plain = plain && run.combine != Combine::same && run.combine != Combine::mean &&
            run.stored == run.result;
  });
  if (plain) return out.push_back({name, source});
  const auto add = [&](FileId file, uint64_t offset, uint64_t bytes, DType dtype) {
    const auto count = static_cast<int64_t>(bytes / size_of(dtype));
    out.push_back({name, TensorSource::stored({file, offset, bytes}, dtype, {count})});
  };
  source.lower([&](const SourceRun& run) {
    if (run.combine == Combine::zeros) return;
    const auto add_rows = [&](FileId file, uint64_t offset, uint64_t row_bytes, int64_t stride) {
      for (uint64_t row = 0; row < run.rows; ++row) {
        add(file, offset + row * static_cast<uint64_t>(stride), row_bytes, run.stored);
      }
    };
    if (run.combine != Combine::interleave) {
      add_rows(run.file, run.offset, run.row_bytes, run.rows == 1 ? 0 : run.stride);
    }
    for (const Operand& operand : run.more) {
      const bool column = run.combine == Combine::interleave;
      add_rows(operand.in, operand.src, column ? operand.row_bytes : run.row_bytes,
               column ? operand.stride : 0);
    }
  });
}

// Weights, 16-bit weights, states and buffers.
std::vector<Named> finite_tensors(Verification& v) {
  std::vector<Named> tensors;
  for (const Param& param : v.checkpoint->params()) {
    if (!param.alias_of.empty()) continue;
    if (param.kind == ParamKind::buffer) {
      tensors.push_back({param.name, param.weight, true});
      continue;
    }
    add_parts(tensors, param.name, param.weight);
    for (const ParamState& state : param.states) add_parts(tensors, param.name, state.value);
  }
  for (const CheckedFile* file : v.of_kind(Kind::model_states)) {
    const ModelStates model(*file->shard);
    for (const auto& [name, value] : model.module) {
      if (model.buffer_names.contains(name)) continue;
      tensors.push_back({name, file->shard->archive.tensor(value)});
    }
  }
  for (const CheckedFile* file : v.of_kind(Kind::layer)) {
    for (const auto& [key, value] : file->shard->archive.root().as_dict().items) {
      if (!key.is(pickle::Kind::string) || !TorchArchive::is_tensor(value)) continue;
      tensors.push_back({std::string(key.as_string()), file->shard->archive.tensor(value)});
    }
  }
  return tensors;
}

void report_nonfinite(Verification& v, const Named& tensor, const Count& count) {
  Finding finding{.check = Check::nonfinite, .message = {}, .file = {}};
  set_place(v, finding, place_of(tensor.value, *count.first));
  finding.tensor = tensor.name;
  finding.message = std::to_string(count.nan) + " NaN and " + std::to_string(count.inf) +
                    " Inf among " + std::to_string(tensor.value.numel()) + " elements";
  v.add(std::move(finding));
}

}  // namespace

void check_rounding(Verification& v) {
  if (v.report.form == "universal") return check_weights_of(v, universal_weights(v));
  for (CheckedFile* file : v.of_kind(Kind::model_states)) {
    // Without the files of all ranks nothing tells where a parameter lies.
    const bool all = !v.has(Check::missing) &&
                     std::all_of(v.files.begin(), v.files.end(), [](const CheckedFile& other) {
                       return other.left_out || other.usable();
                     });
    if (!all) {
      v.skip(Check::rounding, "not all files are fit to be compared");
      return;
    }
    v.attempt(Check::layout, *file, [&] {
      if (v.of_kind(Kind::optim_states, file->name->mp_rank).empty()) return;
      check_weights_of(v, weights_of_world(v, *file));
    });
  }
  check_weights_of(v, expert_weights(v));
}

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
  // With masters check_same_tensors and check_rounding look at them.
  if (v.of_kind(Kind::optim_states).empty()) compare_slices(v);
}

void check_same_tensors(Verification& v) {
  if (!v.checkpoint) return;
  std::vector<Named> tensors;
  for (const Param& param : v.checkpoint->params()) {
    if (!param.alias_of.empty()) continue;
    tensors.push_back({param.name, param.weight});
    for (const ParamState& state : param.states) tensors.push_back({param.name, state.value});
  }
  for_each_index(tensors.size(), [&](size_t i) {
    v.stop_if_cancelled();
    if (v.damaged.empty() || !v.is_doubtful(tensors[i].value)) {
      check_same(v, tensors[i].name, tensors[i].value);
    }
  });
}

void check_finite(Verification& v) {
  std::vector<Named> tensors;
  if (v.checkpoint) tensors = finite_tensors(v);
  for (const CheckedFile& file : v.files) {
    if (file.name) continue;
    if (file.safetensors) {
      for (const SafetensorsEntry& entry : file.safetensors->entries()) {
        tensors.push_back({entry.name, file.safetensors->tensor(entry)});
      }
    }
    if (!file.usable() || !file.shard) continue;
    for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
      tensors.push_back({found.path, file.shard->archive.tensor(found.value)});
    }
  }
  std::erase_if(tensors, [&](const Named& tensor) {
    return !is_floating(tensor.value.dtype()) ||
           (!v.damaged.empty() && v.is_doubtful(tensor.value));
  });
  std::vector<std::optional<Count>> counts(tensors.size());
  for_each_index(tensors.size(), [&](size_t i) {
    v.stop_if_cancelled();
    const Count count = count_nonfinite(v.inputs, tensors[i].value, tensors[i].may_be_infinite);
    if (count.first) counts[i] = count;
  });
  std::set<std::pair<FileId, uint64_t>> reported;  // some tensors are views of one another
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!counts[i]) continue;
    const auto place = place_of(tensors[i].value, *counts[i]->first);
    if (place && !reported.emplace(place->file, place->offset).second) continue;
    report_nonfinite(v, tensors[i], *counts[i]);
  }
}

}  // namespace dsckpt
