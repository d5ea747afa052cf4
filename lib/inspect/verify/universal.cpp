// Checks universal checkpoints: a folder for each parameter, with its master and the same states as
// the others. See ds_to_universal.py; universal_checkpoint.py load_hp_checkpoint_state.

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "checkpoint/experts.h"
#include "checkpoint/model_states.h"
#include "deepspeed/keys.h"
#include "format/meta_tensor.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;
using pickle::Value;

constexpr std::string_view kFp32 = "fp32";
constexpr std::string_view kStep = "step";

// The files of one parameter, by content: "fp32", "exp_avg", "step".
using States = std::map<std::string, CheckedFile*>;

std::map<std::string, States> states_by_name(Verification& v) {
  std::map<std::string, States> params;
  const std::filesystem::path zero = v.folder.path / "zero";
  for (CheckedFile& file : v.files) {
    if (file.name->kind != Kind::universal || file.path.parent_path() == zero) continue;
    const std::string name = file.path.parent_path().lexically_relative(zero).generic_string();
    params[name].emplace(file.path.stem().string(), &file);
  }
  return params;
}

std::string display(const Verification& v, const std::string& path) {
  return (v.folder.path.lexically_relative(v.folder.path.parent_path()) / "zero" / path).string();
}

std::string shortest(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

// Returns a file's tensor, which is the root or under 'param'.
std::optional<TensorSource> tensor_in(const CheckedFile& file) {
  const Value root = file.shard->archive.root();
  const Value value = root.is_mapping() ? root.find_or_none("param") : root;
  if (!TorchArchive::is_tensor(value)) return std::nullopt;
  return file.shard->archive.tensor(value);
}

// Returns whether the file's values were stripped (CheckpointFacts::stripped).
bool is_stripped(const CheckedFile& file) {
  const Value root = file.shard->archive.root();
  return is_meta_tensor(root.is_mapping() ? root.find_or_none("param") : root);
}

class Universal {
 public:
  explicit Universal(Verification& v) : v_(v), params_(states_by_name(v)) {}

  void check() {
    read_models();
    if (!v_.folder.path.empty() && !has_wrapper()) {
      v_.add({.check = Check::missing,
              .message = "is not there: the loader takes the hyper-parameters from it",
              .file = display(v_, "optimizer_state.pt")});
    }
    check_unknown();
    for (const auto& group : groups_) check_group(group);
    for (const auto& [name, states] : params_) check_values(name, states);
    check_steps();
  }

 private:
  void read_models() {
    for (const Kind kind : {Kind::model_states, Kind::zero_model_states}) {
      for (CheckedFile* file : v_.of_kind(kind)) {
        v_.attempt(Check::layout, *file, [&] {
          const ModelStates model(*file->shard);
          std::vector<NamedShapes> groups = model.param_shapes;
          for (const auto& entry : model.module) known_.insert(entry.first);
          for (const auto& entry : model.frozen_param_shapes) known_.insert(entry.first);
          for (const auto& entry : model.shared_params) known_.insert(entry.first);
          known_.insert(model.buffer_names.begin(), model.buffer_names.end());
          known_.insert(model.trainable_names.begin(), model.trainable_names.end());
          has_shapes_ = has_shapes_ || !groups.empty();
          if (groups_.empty()) groups_ = std::move(groups);
          sliced_ = sliced_ || file->name->mp_rank > 0;
        });
      }
    }
    flat_ = !v_.of_kind(Kind::zero_model_states).empty();
  }

  bool has_wrapper() const {
    return std::any_of(v_.files.begin(), v_.files.end(), [&](const CheckedFile& file) {
      return file.path == v_.folder.path / "zero" / "optimizer_state.pt";
    });
  }

  // DeepSpeed's own experts are numbered through the model here, but from 0 on each rank in its
  // file. The reader checks their number.
  bool is_known(const std::string& name) const {
    if (known_.contains(name)) return true;
    const auto expert = parse_expert_name(name);
    return expert && known_.contains(expert->with(0));
  }

  void check_unknown() {
    if (!has_shapes_) return;
    for (auto& [name, states] : params_) {
      if (is_known(name) || known_.empty()) continue;
      for (auto& [key, file] : states) {
        v_.add({.check = Check::extra,
                .message = "the model has no such parameter",
                .file = file->display,
                .tensor = name});
        file->left_out = true;
      }
    }
  }

  // Every parameter of a group must have its master, and the same states as the others.
  void check_group(const NamedShapes& group) {
    std::map<std::string, size_t> having;
    size_t present = 0;
    for (const auto& entry : group) {
      const auto found = params_.find(entry.first);
      if (found == params_.end()) continue;
      ++present;
      for (const auto& state : found->second) ++having[state.first];
    }
    for (const auto& [name, shape] : group) {
      const auto found = params_.find(name);
      std::set<std::string> expected{std::string(kFp32)};
      for (const auto& [key, count] : having) {
        if (2 * count > present) expected.insert(key);
      }
      for (const std::string& key : expected) {
        if (found != params_.end() && found->second.contains(key)) continue;
        v_.add({.check = Check::missing,
                .message = key == kFp32 ? "is not there: it is the parameter's value"
                                        : "is not there, but other parameters of the group have it",
                .file = display(v_, name + "/" + key + ".pt"),
                .tensor = name});
      }
      if (found == params_.end()) continue;
      for (const auto& [key, file] : found->second) {
        if (2 * having[key] <= present && !expected.contains(key)) {
          v_.add({.check = Check::extra,
                  .message = "other parameters of the group have no such state",
                  .file = file->display,
                  .tensor = name});
          file->left_out = true;
        } else if (key != kStep) {
          check_shape(name, shape, *file);
        }
      }
    }
  }

  // Returns whether `found` is a fused parameter of all experts. `shape` has one rank's.
  static bool holds_all_experts(const Shard& file, const Shape& found, const Shape& shape) {
    const Value count = file.archive.root().find_or_none("ep_num_experts");
    if (!count.is(pickle::Kind::integer) || found.empty() || found.size() != shape.size()) {
      return false;
    }
    return found.front() == count.as_int() && shape.front() > 0 &&
           count.as_int() % shape.front() == 0 &&
           std::equal(found.begin() + 1, found.end(), shape.begin() + 1);
  }

  void check_shape(const std::string& name, const Shape& shape, CheckedFile& file) {
    if (!file.usable() || is_stripped(file)) return;
    v_.attempt(Check::layout, file, [&] {
      const auto tensor = tensor_in(file);
      if (!tensor) throw CorruptError({.tensor = name}, "has no tensor");
      const Shape& found = tensor->shape();
      // Vocabularies are saved without padding.
      if (file.shard->archive.root().find_or_none("vocab_tensor").is_true()) return;
      if (sliced_) return;
      if (found == shape || (shape.empty() && found == Shape{1})) return;
      if (flat_ && found.size() == 1 && found[0] == numel(shape)) return;
      if (holds_all_experts(*file.shard, found, shape)) return;
      v_.add({.check = Check::shape,
              .message = "is " + to_text(found) + ", but " + to_text(shape) + " in param_shapes",
              .file = file.display,
              .tensor = name});
      file.suspect = true;
    });
  }

  // The states must have the size of the master.
  void check_values(const std::string& name, const States& states) {
    const auto master = states.find(std::string(kFp32));
    if (master == states.end() || !master->second->usable()) return;
    for (const auto& state : states) {
      CheckedFile* const file = state.second;
      if (state.first == kFp32 || state.first == kStep) continue;
      if (!file->usable() || is_stripped(*file)) continue;
      v_.attempt(Check::layout, *file, [&] {
        const auto tensor = tensor_in(*file);
        const auto expected = tensor_in(*master->second);
        if (!tensor) throw CorruptError({.tensor = name}, "has no tensor");
        if (!expected || tensor->shape() == expected->shape()) return;
        v_.add({.check = Check::shape,
                .message = "is " + to_text(tensor->shape()) + ", but " +
                           to_text(expected->shape()) + " in fp32.pt",
                .file = file->display,
                .tensor = name});
        file->suspect = true;
      });
    }
  }

  // All parameters must have made the same number of steps.
  void check_steps() {
    std::map<double, std::vector<std::pair<std::string, CheckedFile*>>> by_step;
    for (const auto& [name, states] : params_) {
      const auto found = states.find(std::string(kStep));
      if (found == states.end() || !found->second->usable()) continue;
      CheckedFile& file = *found->second;
      v_.attempt(Check::layout, file, [&, &param = name] {
        const Value root = file.shard->archive.root();
        if (TorchArchive::is_tensor(root) && v_.is_doubtful(file.shard->archive.tensor(root))) {
          return;
        }
        const auto step = file.shard->archive.scalar(root);
        if (!step) throw CorruptError({.tensor = param}, "is not a number");
        by_step[*step].emplace_back(param, &file);
      });
    }
    if (by_step.size() < 2) return;
    const auto most = std::max_element(
        by_step.begin(), by_step.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    for (const auto& [step, files] : by_step) {
      if (step == most->first) continue;
      for (const auto& [name, file] : files) {
        v_.add({.check = Check::step,
                .message = "is " + shortest(step) + ", but " + shortest(most->first) +
                           " of other parameters",
                .file = file->display,
                .tensor = name});
        file->suspect = true;
      }
    }
  }

  Verification& v_;
  std::map<std::string, States> params_;
  std::vector<NamedShapes> groups_;
  std::set<std::string> known_;
  bool has_shapes_ = false;
  bool flat_ = false;    // stage 3: values may be vectors
  bool sliced_ = false;  // shapes in the model's files are those of slices
};

}  // namespace

void check_universal(Verification& v) {
  Universal(v).check();
}

}  // namespace dsckpt
