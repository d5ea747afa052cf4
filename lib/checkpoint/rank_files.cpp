// A file of each rank, with its parts of the model's and the optimizer's state_dict. verl and SkyRL
// save DTensors of FSDP2 so, and FSDP1 ShardedTensors. Layout: LAYOUTS.md; source:
// torch/distributed/tensor/_dtensor_spec.py, torch/distributed/_shard/sharded_tensor/api.py.

#include <tbb/parallel_for.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/boxes.h"
#include "checkpoint/find/folders.h"
#include "checkpoint/find/rank_name.h"
#include "checkpoint/layout.h"
#include "checkpoint/state_dicts.h"
#include "dsckpt/error.h"
#include "format/rank_tensor.h"
#include "format/tensors_in.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using pickle::Kind;
using pickle::Value;

// The files of one kind, by rank.
using RankPaths = std::map<uint32_t, fs::path>;

class RankFilesReader {
 public:
  explicit RankFilesReader(CheckpointDraft& draft) : draft_(draft) {}

  void read() {
    list_files();
    open_models();
    draft_.facts.mesh.dp = static_cast<uint32_t>(models_.size());
    std::vector<ModelEntry> model;
    const Value& first = models_.front().dict;
    for (const auto& [key, value] : first.as_dict().items) {
      if (!key.is(Kind::string)) continue;
      add_entry(std::string(key.as_string()), value, model);
    }
    check_names();
    const std::optional<OptimizerDict> optimizer = read_optimizer();
    read_state_dicts(draft_, std::move(model), optimizer ? &*optimizer : nullptr);
  }

 private:
  // A file of one rank, opened, with the dict of it that is asked for.
  struct Opened {
    uint32_t rank = 0;
    const TorchArchive* archive = nullptr;
    std::string display = {};
    Value dict = {};
  };

  void list_files() {
    const RankName of_model{.front = draft_.folder.rank_name.first,
                            .back = draft_.folder.rank_name.second};
    const auto other = parse_rank_name(of_model.sibling("optim"));
    std::vector<fs::path> roots = draft_.folder.other_roots;
    roots.insert(roots.begin(), draft_.folder.path);
    Folders folders;
    uint32_t ranks = 0;
    for (const fs::path& folder : roots) {
      for (const fs::path& path : folders[folder].files) {
        const auto name = parse_rank_name(path.filename().string());
        if (!name) continue;
        const bool is_model = name->front == of_model.front && name->back == of_model.back;
        const bool is_optimizer = other && name->front == other->front && name->back == other->back;
        if (is_model) model_paths_.emplace(name->rank, path);
        if (is_optimizer) optimizer_paths_.emplace(name->rank, path);
        if (!is_model && !is_optimizer) continue;
        ranks = std::max({ranks, name->rank + 1, name->ranks.value_or(0)});
      }
    }
    std::vector<std::string> missing;
    const auto find_missing = [&](const RankPaths& paths, const RankName& name) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        if (!paths.contains(rank)) missing.push_back(name.of_rank(rank));
      }
    };
    find_missing(model_paths_, of_model);
    if (!optimizer_paths_.empty()) find_missing(optimizer_paths_, *other);
    if (missing.empty()) return;
    if (!draft_.options.allow_missing || model_paths_.empty()) {
      throw InconsistentError({.file = draft_.folder.path.string()},
                              counted(missing.size(), "file") +
                                  (missing.size() == 1 ? " of a rank is" : " of ranks are") +
                                  " missing:" + listed(missing))
          .with_hint("--root DIR reads the files that another node has kept, too");
    }
    for (const std::string& name : missing) {
      lose(name, parse_rank_name(name)->rank, "is missing");
    }
  }

  void lose(const std::string& name, uint32_t rank, std::string why) {
    ShardName shard{.kind = ShardName::Kind::model_states};
    shard.dp_rank = rank;
    draft_.lost_files.push_back(
        {shard, draft_.folder.display(draft_.folder.path / name), std::move(why)});
  }

  std::vector<Opened> open(const RankPaths& paths) {
    std::vector<Opened> opened;
    const OpeningFiles opening(draft_.inputs.progress(), paths.size());
    std::vector<FileId> ids;
    for (const auto& [rank, path] : paths) {
      const FileId id = draft_.inputs.add(path, draft_.folder.display_root());
      ids.push_back(id);
      opened.push_back({.rank = rank, .display = draft_.inputs[id].display()});
    }
    std::vector<std::optional<TorchArchive>> archives(ids.size());
    tbb::parallel_for(size_t{0}, ids.size(), [&](size_t i) {
      opening.throw_if_cancelled();
      archives[i] = TorchArchive::open(draft_.inputs, ids[i]);
      opening.opened_one();
    });
    size_t i = 0;
    for (const auto& [rank, path] : paths) {
      ShardName name{.kind = ShardName::Kind::zero_model_states};
      name.dp_rank = rank;
      draft_.module_shards.push_back({.name = name,
                                      .path = path,
                                      .display = opened[i].display,
                                      .archive = std::move(*archives[i])});
      opened[i++].archive = &draft_.module_shards.back().archive;
    }
    return opened;
  }

  void open_models() {
    draft_.module_shards.reserve(model_paths_.size() + optimizer_paths_.size());
    models_ = open(model_paths_);
    for (Opened& each : models_) {
      in_context({.file = each.display}, [&] {
        const TrainingFile file = training_file(each.archive->root());
        const KeyedDict& model = chosen_model(draft_.options.model, file, each.display);
        each.dict = model.dict;
        if (model.dict.find("_flat_param")) {
          throw UnsupportedError({.tensor = "_flat_param"},
                                 "is the flat parameter of FSDP (LOCAL_STATE_DICT), which does not "
                                 "tell the shapes of what lies in it")
              .with_hint("a state_dict of type SHARDED_STATE_DICT or FULL_STATE_DICT does");
        }
        if (!optimizer_paths_.empty()) return;
        const std::vector<const KeyedDict*> optimizers = optimizers_of(file, model);
        if (optimizers.size() > 1) throw several_optimizers(file, each.display);
        for (const KeyedDict* optimizer : optimizers) {
          own_optimizers_.push_back({each.rank, each.archive, each.display, optimizer->dict});
        }
      });
    }
  }

  void check_names() const {
    const auto& first = models_.front();
    for (const Opened& each : models_) {
      for (const auto& [key, value] : each.dict.as_dict().items) {
        if (!key.is(Kind::string) || first.dict.find(key.as_string())) continue;
        throw InconsistentError({.file = each.display, .tensor = std::string(key.as_string())},
                                "is not in " + first.display + ", of another rank");
      }
    }
  }

  static Value item(const Opened& of, const std::string& name) {
    const std::optional<Value> found = of.dict.find(name);
    if (found) return *found;
    throw InconsistentError({.file = of.display, .tensor = name}, "is not in this rank's file");
  }

  // Puts the boxes of all ranks together; nullopt where those of lost ranks are missing.
  std::optional<TensorSource> join(const std::string& name, const RankTensor& whole,
                                   const std::vector<std::pair<const Opened*, Value>>& parts) {
    std::map<std::pair<Shape, Shape>, std::vector<TensorSource>> copies;
    for (const auto& [of, value] : parts) {
      in_context({.file = of->display, .tensor = name}, [&, &from = *of, &part = value] {
        const std::optional<RankTensor> tensor = rank_tensor(*from.archive, part);
        if (!tensor || tensor->shape != whole.shape || tensor->dtype != whole.dtype) {
          throw InconsistentError({}, "is a different tensor than in " + models_.front().display);
        }
        for (const RankBox& box : tensor->boxes) {
          if (numel(box.sizes) == 0) continue;
          copies[{box.offsets, box.sizes}].push_back(from.archive->tensor(box.tensor));
        }
      });
    }
    std::vector<TensorBox> boxes;
    for (auto& [place, same] : copies) {
      TensorSource value = TensorSource::same(
          std::move(same), "the replicas of '" + name + "' at " + to_text(place.first));
      boxes.push_back({place.first, std::move(value)});
    }
    try {
      return in_context({.file = models_.front().display, .tensor = name},
                        [&] { return join_boxes(whole.dtype, whole.shape, std::move(boxes)); });
    } catch (const InconsistentError&) {
      if (draft_.lost_files.empty()) throw;
      return std::nullopt;
    }
  }

  void leave_out(const std::string& name, const std::string& why) {
    draft_.valueless.push_back(name);
    draft_.notes.push_back("'" + printable(name) + "' " + why + "; left out");
  }

  void add_entry(const std::string& name, const Value& value, std::vector<ModelEntry>& model) {
    const Opened& first = models_.front();
    const Where where{.file = first.display, .tensor = name};
    const auto whole = in_context(where, [&] { return rank_tensor(*first.archive, value); });
    if (whole) {
      if (!whole->unsupported.empty()) return leave_out(name, whole->unsupported);
      std::vector<std::pair<const Opened*, Value>> parts;
      for (const Opened& each : models_) parts.emplace_back(&each, item(each, name));
      if (auto joined = join(name, *whole, parts)) {
        model.push_back({name, std::move(*joined), place_of(parts)});
      } else {
        IncompleteParam& lost = draft_.incomplete.emplace_back();
        lost = {.name = name, .dtype = whole->dtype, .shape = whole->shape};
        for (size_t i = 0; i < draft_.lost_files.size(); ++i) lost.lost.push_back(i);
      }
      return;
    }
    if (!TorchArchive::is_tensor(value)) {
      for (const OpaqueTensor& opaque : find_tensors(value).opaque) {
        leave_out(name, "is a tensor of an unsupported kind (" + opaque.kind + ")");
      }
      return;
    }
    // Values that every rank has by itself: torch keeps the first rank's buffers.
    for (const Opened& each : models_) {
      const Value own = item(each, name);
      const bool is_alike =
          TorchArchive::is_tensor(own) && in_context({.file = each.display, .tensor = name}, [&] {
            return each.archive->info(own).shape == first.archive->info(value).shape;
          });
      if (is_alike) continue;
      throw InconsistentError({.file = each.display, .tensor = name},
                              "has a different shape than in " + first.display +
                                  ", and nothing says how they go together")
          .with_hint("a state_dict of type SHARDED_STATE_DICT or FULL_STATE_DICT tells this");
    }
    in_context(where, [&] {
      model.push_back({name, first.archive->tensor(value), place_of({{&first, value}})});
    });
  }

  // Which bytes of the first rank it is made of.
  static std::string place_of(const std::vector<std::pair<const Opened*, Value>>& parts) {
    const auto& [of, value] = parts.front();
    Value local = value;
    std::string text;
    if (const auto tensor = rank_tensor(*of->archive, value)) {
      text = to_text(tensor->shape);
      if (tensor->boxes.empty()) return "";
      local = tensor->boxes.front().tensor;
    }
    const TensorInfo info = of->archive->info(local);
    if (numel(info.shape) == 0) return "";
    return text + info.storage_key + " " + std::to_string(info.storage_offset) +
           to_text(info.shape) + to_text(info.strides);
  }

  std::optional<OptimizerDict> read_optimizer() {
    std::vector<Opened> files = own_optimizers_;
    if (!optimizer_paths_.empty()) {
      RankPaths wanted = optimizer_paths_;
      // The trained parameters and their steps, on the first rank alone.
      if (!draft_.options.optimizer_states) wanted.erase(std::next(wanted.begin()), wanted.end());
      files = open(wanted);
      for (Opened& each : files) {
        const TrainingFile file = training_file(each.archive->root());
        if (file.optimizers.size() != 1) {
          throw InconsistentError({.file = each.display}, "has no optimizer's state_dict");
        }
        each.dict = file.optimizers.front().dict;
      }
    }
    if (files.empty()) return std::nullopt;
    const Opened& first = files.front();
    return in_context({.file = first.display}, [&] {
      OptimizerDict optimizer{.groups = optimizer_groups(*first.archive, first.dict)};
      for (const auto& [key, states] : first.dict.at("state").as_dict().items) {
        if (!states.is_mapping()) continue;
        optimizer.states.emplace(optimizer_key(key), read_states(files, key, states));
      }
      return optimizer;
    });
  }

  OptimizerEntry read_states(const std::vector<Opened>& files, const Value& key,
                             const Value& states) {
    const Opened& first = files.front();
    const std::string param = optimizer_key(key);
    OptimizerEntry entry;
    for (const auto& [name, value] : states.as_dict().items) {
      if (!name.is(Kind::string)) continue;
      const std::string state(name.as_string());
      if (state == "step") {
        if (!value.is_none()) entry.step = {first.archive, value};
        continue;
      }
      const std::string called = param + "." + state;
      const auto whole = in_context({.tensor = called},
                                    [&, &own = value] { return rank_tensor(*first.archive, own); });
      if (!whole) {
        const bool is_tensor = TorchArchive::is_tensor(value);
        const TensorInfo info = is_tensor ? first.archive->info(value) : TensorInfo{};
        if (is_tensor && !info.shape.empty()) {
          entry.tensors.push_back({state, first.archive->tensor(value)});
          if (!entry.shape) entry.shape = info.shape;
        } else {
          entry.others.push_back({state, {first.archive, value}});
        }
        continue;
      }
      if (!entry.shape) entry.shape = whole->shape;
      if (!draft_.options.optimizer_states) continue;
      std::vector<std::pair<const Opened*, Value>> parts;
      for (const Opened& each : files) {
        const Value all = each.dict.at("state");
        const Value* own = key.is(Kind::string) ? all.as_dict().find(key.as_string())
                                                : all.as_dict().find(key.as_int());
        if (own == nullptr || own->find_or_none(state).is_none()) {
          throw InconsistentError({.file = each.display, .tensor = called},
                                  "is not in this rank's file");
        }
        parts.emplace_back(&each, own->find_or_none(state));
      }
      if (auto joined = join(called, *whole, parts)) {
        entry.tensors.push_back({state, std::move(*joined)});
      }
    }
    return entry;
  }

  CheckpointDraft& draft_;
  RankPaths model_paths_;
  RankPaths optimizer_paths_;
  std::vector<Opened> models_;
  std::vector<Opened> own_optimizers_;  // in the model's files
};

bool probe_rank_files(CheckpointDraft& draft) {
  return !draft.folder.rank_name.first.empty();
}

void read_rank_files(CheckpointDraft& draft) {
  refuse_foreign_options(draft, "of one rank's state_dict in each file");
  RankFilesReader(draft).read();
}

}  // namespace

const Layout kRankFiles{"rank-files", probe_rank_files, read_rank_files, true};

}  // namespace dsckpt
