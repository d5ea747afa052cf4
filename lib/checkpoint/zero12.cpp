// ZeRO stages 1 and 2: every parameter group is one flat fp32 vector, cut into equal partitions.
// Layout: LAYOUTS.md; source: deepspeed/runtime/zero/stage_1_and_2.py, bf16_optimizer.py;
// zero_to_fp32.py _zero2_merge_trainable_params.

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/assemble.h"
#include "checkpoint/experts.h"
#include "checkpoint/flat_states.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"
#include "checkpoint/padding_books.h"
#include "checkpoint/salvage.h"
#include "checkpoint/zero_world.h"
#include "deepspeed/keys.h"
#include "deepspeed/zero_layout.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using pickle::Value;

// One rank's part of one group.
struct Partition {
  const Shard* shard;
  TensorSource masters;
  uint64_t length;  // elements saved
  bool requires_grad;
};

// BF16_Optimizer writes neither zero_stage nor a loss scaler, and does not cut the padding off.
bool keeps_padding(const Fields& state) {
  return !state.has(keys::kZeroStage) && !state.has(keys::kLossScaler);
}

// Where each parameter of a group lies in the group's flat vector.
struct Slice {
  std::string name;
  Shape shape;
  uint64_t begin;
  uint64_t numel;
};

struct FlatGroup {
  std::vector<Slice> slices;
  uint64_t used = 0;  // elements up to the end of the last parameter, alignment included
};

std::string member_of(size_t group) {
  return std::string(keys::kSingleFp32Partition) + "[" + std::to_string(group) + "]";
}

// The paddings of group `group` after each of its parameters; empty if the file has none.
std::vector<uint64_t> alignment_paddings(const Fields& state, size_t group, size_t params) {
  const auto all = state.sequence(keys::kParamAlignmentPaddings);
  if (all.empty()) return {};
  const Where where = state.where(keys::kParamAlignmentPaddings);
  return in_context(where, [&] {
    if (group >= all.size() || all[group].as_sequence().size() != params) {
      throw InconsistentError(where, "does not fit the " + counted(params, "parameter") +
                                         " of group " + std::to_string(group));
    }
    std::vector<uint64_t> paddings;
    for (const Value& value : all[group].as_sequence()) {
      if (value.as_int() < 0) throw CorruptError(where, "is negative");
      paddings.push_back(static_cast<uint64_t>(value.as_int()));
    }
    return paddings;
  });
}

// True if there is padding behind any parameter.
bool is_aligned(const Fields& state) {
  const auto groups = state.sequence(keys::kParamAlignmentPaddings);
  std::unordered_set<const void*> seen;  // groups may share them
  return std::any_of(groups.begin(), groups.end(), [&](const Value& paddings) {
    if (!seen.insert(paddings.identity()).second) return false;
    const auto all = paddings.sequence_or_empty();
    return std::any_of(all.begin(), all.end(), [](const Value& padding) {
      return padding.is(pickle::Kind::integer) && padding.as_int() != 0;
    });
  });
}

FlatGroup lay_out(const NamedShapes& shapes, const std::vector<uint64_t>& paddings) {
  FlatGroup group;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, shape] = shapes[i];
    const auto count = in_context({.tensor = name},
                                  [&sizes = shape] { return static_cast<uint64_t>(numel(sizes)); });
    group.slices.push_back({name, shape, group.used, count});
    group.used = checked_add(group.used, count);
    if (!paddings.empty()) group.used = checked_add(group.used, paddings[i]);
  }
  return group;
}

// The parameter that holds element `at` of the group, or the last one before it.
std::string name_at(const FlatGroup& group, uint64_t at) {
  std::string name;
  for (const Slice& slice : group.slices) {
    if (slice.begin > at && !name.empty()) break;
    name = slice.name;
  }
  return name;
}

// The contents of one world's shards.
struct FlatWorld {
  std::vector<OwnedParam> owned;
  bool round_robin = false;  // whether the order of the flat groups differs from the optimizer's
};

class Zero12WorldReader {
 public:
  Zero12WorldReader(const ModelStates& model, std::vector<const Shard*> optim,
                    const RunConfig& run_config, bool optimizer_states)
      : model_(model),
        run_config_(run_config),
        optim_(std::move(optim)),
        state_(optimizer_state(*optim_.front())),
        counts_(partition_counts(state_)),
        padding_kept_(keeps_padding(state_)),
        optimizer_states_(optimizer_states) {
    if (!optimizer_states) return;
    for (const Shard* shard : optim_) {
      optimizers_.try_emplace(shard, optimizer_state(*shard), keys::kBaseOptimizerState);
    }
  }

  // Accounts for every element of every rank's flat groups.
  FlatWorld read() const {
    const size_t groups = state_.sequence(keys::kSingleFp32Partition).size();
    if (groups != model_.param_shapes.size()) {
      throw InconsistentError(state_.where(keys::kSingleFp32Partition),
                              "has " + counted(groups, "group") + ", param_shapes of " +
                                  model_.shard().display + " has " +
                                  std::to_string(model_.param_shapes.size()));
    }
    FlatWorld world;
    bool mappings_fit = true;
    for (size_t g = 0; g < groups; ++g) {
      const ExpertParts parts = expert_parallel_parts(g);
      for (const auto& [ep_rank, ranks] : parts.by_rank) {
        const bool fits = add_group(g, ranks, ep_rank, parts.ep_size, world.owned);
        mappings_fit = mappings_fit && fits;
      }
    }
    world.round_robin = is_round_robin(mappings_fit);
    return world;
  }

  std::vector<ParamGroup> groups(bool round_robin) const {
    const Value base = state_.get(keys::kBaseOptimizerState).value_or(Value());
    const auto settings = base.find_or_none(keys::kParamGroups).sequence_or_empty();
    std::vector<uint32_t> ep_sizes;
    std::vector<uint32_t> ranks;
    for (size_t g = 0; g < model_.param_shapes.size(); ++g) {
      ep_sizes.push_back(static_cast<uint32_t>(expert_parallel_parts(g).by_rank.size()));
      const auto share = static_cast<uint32_t>(optim_.size()) / ep_sizes.back();
      ranks.push_back(round_robin ? share : 1);
    }
    std::vector<ParamGroup> groups =
        flat_param_groups(model_, ranks, state_.shard().archive, settings);
    for (size_t g = 0; g < groups.size(); ++g) groups[g].ep_size = ep_sizes[g];
    return groups;
  }

 private:
  // The ranks that share a group, by the expert-parallel rank whose experts they have; 0 of 1 for
  // parameters that are not experts.
  struct ExpertParts {
    std::map<uint32_t, std::vector<const Shard*>> by_rank;
    uint32_t ep_size = 1;
  };

  // Where the configuration is not in the files, param_slice_mappings tells, which DeepSpeed
  // computes in the optimizer's order. `mappings_fit`: they place parameters where the vectors do.
  bool is_round_robin(bool mappings_fit) const {
    if (padding_kept_) return false;  // BF16_Optimizer knows nothing of it
    return run_config_.saved ? run_config_.round_robin_gradients : !mappings_fit;
  }

  // Over how many ranks group `g` is cut.
  int64_t partition_count(size_t g) const {
    return g < counts_.size() ? counts_[g] : counts_.front();
  }

  // True if group `g` is of experts.
  bool is_moe_group(size_t g) const {
    const Value base = state_.get(keys::kBaseOptimizerState).value_or(Value());
    const auto groups = base.find_or_none(keys::kParamGroups).sequence_or_empty();
    return g < groups.size() && groups[g].find_or_none("moe").is_true();
  }

  // Where AutoEP is folded with tensor parallelism, the expert-parallel ranks run over the
  // tensor-parallel ones first; each file says of itself which it is.
  ExpertParts folded_parts(size_t g) const {
    ExpertParts parts;
    for (const Shard* shard : optim_) {
      const Fields folding = Fields(*shard, shard->archive.root()).in(keys::kFolding);
      const int64_t ep_rank = folding.integer("ep_rank");
      const int64_t ep_size = folding.integer("ep_size");
      if (ep_rank < 0 || ep_size < 1 || ep_rank >= ep_size || ep_size > 1 << 20) {
        throw CorruptError(folding.where("ep_rank"),
                           "is " + std::to_string(ep_rank) + " of " + std::to_string(ep_size));
      }
      parts.ep_size = static_cast<uint32_t>(ep_size);
      parts.by_rank[static_cast<uint32_t>(ep_rank)].push_back(shard);
    }
    const int64_t count = partition_count(g);
    for (const auto& [ep_rank, ranks] : parts.by_rank) {
      if (static_cast<int64_t>(ranks.size()) == count) continue;
      throw UnsupportedError(state_.where(keys::kPartitionCount),
                             "cuts experts over " + counted(count, "rank") + "; only " +
                                 std::to_string(ranks.size()) +
                                 " are in this tensor-parallel rank");
    }
    return parts;
  }

  // Those of one set of experts hold all of a group between them. utils/groups.py
  // _get_expert_parallel_ranks.
  ExpertParts expert_parallel_parts(size_t g) const {
    if (is_moe_group(g) &&
        Fields(state_.shard(), state_.shard().archive.root()).has(keys::kFolding)) {
      return folded_parts(g);
    }
    const auto share = static_cast<size_t>(partition_count(g));
    if (share == 0 || optim_.size() % share != 0) {
      throw InconsistentError(state_.where(keys::kPartitionCount),
                              "cuts group " + std::to_string(g) + " over " + std::to_string(share) +
                                  " of " + counted(optim_.size(), "rank"));
    }
    const size_t ep_size = optim_.size() / share;
    const std::optional<bool> data_first = run_config_.data_before_expert_parallelism;
    if (!data_first && ep_size > 1 && share > 1) {
      throw UnsupportedError(model_.fields.where(keys::kDsConfig),
                             "is not in the file: it says in which order the ranks share experts "
                             "(use_data_before_expert_parallelism)");
    }
    ExpertParts parts{.by_rank = {}, .ep_size = static_cast<uint32_t>(ep_size)};
    for (size_t rank = 0; rank < optim_.size(); ++rank) {
      const size_t ep_rank = data_first.value_or(false) ? rank / share : rank % ep_size;
      parts.by_rank[static_cast<uint32_t>(ep_rank)].push_back(optim_[rank]);
    }
    return parts;
  }

  // Adds the parameters that `ranks` share. True if param_slice_mappings has them where they lie.
  bool add_group(size_t g, const std::vector<const Shard*>& ranks, uint32_t ep_rank,
                 uint32_t ep_size, std::vector<OwnedParam>& params) const {
    const NamedShapes& shapes = model_.param_shapes[g];
    const FlatGroup group = in_context(model_.fields.where(keys::kParamShapes), [&] {
      return lay_out(shapes, alignment_paddings(state_, g, shapes.size()));
    });
    for (const Slice& slice : group.slices) check_module_shape(slice);

    std::vector<Partition> partitions = partitions_of(g, ranks);
    const FlatCut cut{.ranks = partitions.size(),
                      .length = partition_length(g, group, partitions),
                      .used = group.used};
    const PaddingBooks& books = books_of(g, cut, partitions);
    bool mappings_fit = true;
    for (size_t rank = 0; rank < partitions.size(); ++rank) {
      Partition& partition = partitions[rank];
      if (partition.shard->lost) {
        partition.length = cut.real(rank);
        partition.masters =
            lost_elements(*partition.shard, partition.masters.dtype(), partition.length);
        continue;
      }
      check_partition(g, group, partition, cut, rank, books);
      const bool fits = check_mapping(g, group, *partition.shard, cut, rank);
      mappings_fit = mappings_fit && fits;
    }

    std::vector<TensorSource> parts;
    for (const Partition& partition : partitions) parts.push_back(partition.masters);
    const TensorSource flat = in_context(state_.where(keys::kSingleFp32Partition),
                                         [&] { return TensorSource::cat(0, std::move(parts)); });
    const size_t first = params.size();
    for (const Slice& slice : group.slices) {
      in_context({.file = model_.shard().display, .tensor = slice.name}, [&] {
        params.push_back({.name = slice.name,
                          .shape = slice.shape,
                          .master = slice_of(flat, slice),
                          .requires_grad = partitions.front().requires_grad,
                          .states = {},
                          .step = {},
                          .others = {},
                          .ep_rank = ep_rank,
                          .ep_size = ep_size});
      });
    }
    if (optimizer_states_) {
      add_states(g, group, partitions, ranks, cut.length,
                 {params.data() + first, params.size() - first});
    }
    return mappings_fit;
  }

  static TensorSource slice_of(const TensorSource& flat, const Slice& slice) {
    return flat.narrow(0, static_cast<int64_t>(slice.begin), static_cast<int64_t>(slice.numel))
        .view(slice.shape);
  }

  void add_states(size_t g, const FlatGroup& group, const std::vector<Partition>& partitions,
                  const std::vector<const Shard*>& ranks, uint64_t length,
                  std::span<OwnedParam> params) const {
    std::vector<const FlatOptimizer*> optimizers;
    for (const Shard* shard : ranks) optimizers.push_back(&optimizers_.at(shard));
    FlatStates all = flat_states(optimizers, g);
    for (OwnedParam& param : params) {
      param.step = all.step;
      param.others = all.others;
    }
    for (FlatStates::State& state : all.states) {
      if (state.key == keys::kMomentumBuffer && is_muon_group(g)) {
        add_whole_momenta(g, group, state, ranks, length, params);
        continue;
      }
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        if (ranks[rank]->lost) {
          state.pieces[rank] =
              lost_elements(*ranks[rank], state.pieces[rank].dtype(), partitions[rank].length);
          continue;
        }
        const auto count = static_cast<uint64_t>(state.pieces[rank].numel());
        // Elastic files cut the padding off the states too.
        if (count == length || count == partitions[rank].length) continue;
        throw InconsistentError(
            ranks[rank]->where(FlatStates::member(keys::kBaseOptimizerState, g, state.key)),
            "has " + counted(count, "element") + ", the partition has " + std::to_string(length));
      }
      const TensorSource flat = TensorSource::cat(0, state.pieces);
      for (size_t i = 0; i < params.size(); ++i) {
        params[i].states.push_back({state.key, slice_of(flat, group.slices[i])});
      }
    }
  }

  // Muon works on whole matrices. Each rank keeps the whole momenta of all parameters that reach
  // into its partition, one after the other (stage_1_and_2.py get_flat_partition,
  // _apply_muon_update). Ranks that share a parameter have the same.
  void add_whole_momenta(size_t g, const FlatGroup& group, const FlatStates::State& state,
                         const std::vector<const Shard*>& ranks, uint64_t length,
                         std::span<OwnedParam> params) const {
    std::vector<std::vector<TensorSource>> copies(params.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank]->lost) continue;
      const uint64_t begin = rank * length;
      const uint64_t end = begin + length;
      const Where where =
          ranks[rank]->where(FlatStates::member(keys::kBaseOptimizerState, g, state.key));
      in_context(where, [&] {
        uint64_t at = 0;
        for (size_t i = 0; i < group.slices.size(); ++i) {
          const Slice& slice = group.slices[i];
          if (slice.numel == 0 || slice.begin >= end || slice.begin + slice.numel <= begin)
            continue;
          copies[i].push_back(
              state.pieces[rank]
                  .narrow(0, static_cast<int64_t>(at), static_cast<int64_t>(slice.numel))
                  .view(slice.shape));
          at += slice.numel;
        }
        if (at != static_cast<uint64_t>(state.pieces[rank].numel())) {
          throw InconsistentError({}, "has " + counted(state.pieces[rank].numel(), "element") +
                                          ", the parameters that reach into this "
                                          "partition have " +
                                          std::to_string(at));
        }
      });
    }
    for (size_t i = 0; i < params.size(); ++i) {
      if (copies[i].empty()) continue;
      const std::string what =
          "'" + params[i].name + "': " + state.key + " of the ranks that share it";
      params[i].states.push_back({state.key, TensorSource::same(std::move(copies[i]), what)});
    }
  }

  // MuonWithAuxAdam marks its groups.
  bool is_muon_group(size_t g) const {
    const Value base = state_.get(keys::kBaseOptimizerState).value_or(Value());
    const auto groups = base.find_or_none(keys::kParamGroups).sequence_or_empty();
    return g < groups.size() && groups[g].find_or_none(keys::kUseMuon).is_true();
  }

  // The flat vector cannot tell [37, 11] from [11, 37]; the 16-bit copy can.
  void check_module_shape(const Slice& slice) const {
    const auto found = model_.by_name.find(slice.name);
    const auto stripped = model_.stripped.find(slice.name);
    if (found == model_.by_name.end() && stripped == model_.stripped.end()) return;
    in_context({.file = model_.shard().display, .tensor = slice.name}, [&] {
      const Shape shape = stripped == model_.stripped.end()
                              ? model_.shard().archive.info(found->second).shape
                              : stripped->second;
      if (shape != slice.shape) {
        throw InconsistentError({.member = std::string(keys::kParamShapes)},
                                "does not have the shape that the tensor in `module` has");
      }
    });
  }

  std::vector<Partition> partitions_of(size_t g, const std::vector<const Shard*>& ranks) const {
    std::vector<Partition> partitions;
    for (const Shard* shard : ranks) {
      const Fields state = optimizer_state(*shard);
      const auto groups = state.sequence(keys::kSingleFp32Partition);
      in_context(shard->where(member_of(g)), [&] {
        if (groups.size() != model_.param_shapes.size()) {
          throw InconsistentError(
              {}, "a different number of groups than in " + optim_.front()->display);
        }
        const TensorSource masters = flat_masters(*shard, groups[g]);
        if (!partitions.empty() && masters.dtype() != partitions.front().masters.dtype()) {
          throw InconsistentError({}, "is " + std::string(torch_name(masters.dtype())) +
                                          ", not of the type it has in " + ranks.front()->display);
        }
        partitions.push_back({shard, masters, static_cast<uint64_t>(masters.numel()),
                              shard->archive.info(groups[g]).requires_grad});
      });
    }
    return partitions;
  }

  // This rank's padding in group `g`, as the file says; nullopt in files too old to say it.
  static std::optional<uint64_t> saved_padding(const Shard& shard, size_t g) {
    const Fields state = optimizer_state(shard);
    const auto paddings = state.sequence(keys::kGroupPaddings);
    if (paddings.empty()) return std::nullopt;
    return in_context(state.where(keys::kGroupPaddings), [&]() -> std::optional<uint64_t> {
      if (g >= paddings.size() || paddings[g].as_int() < 0) {
        throw CorruptError({}, "does not fit the groups");
      }
      return static_cast<uint64_t>(paddings[g].as_int());
    });
  }

  // Elements of a whole partition: all ranks' are equally long, padding included. Rank 0 has
  // padding only if all other ranks are nothing but padding, so it tells.
  uint64_t partition_length(size_t g, const FlatGroup& group,
                            const std::vector<Partition>& partitions) const {
    // stage_1_and_2.py: nccl_start_alignment_factor = 2.
    const uint64_t alignment = 2 * partitions.size();
    const Partition& first = partitions.front();
    uint64_t length = first.length;
    if (first.shard->lost) {
      length = round_up(group.used, alignment) / partitions.size();
    } else if (!padding_kept_) {
      length = checked_add(length, saved_padding(*first.shard, g).value_or(0));
    }
    const uint64_t total = checked_mul(length, partitions.size());
    if (group.used > total) {
      const std::string name = name_at(group, total);
      throw InconsistentError(
          {.file = first.shard->display, .member = member_of(g), .tensor = name, .offset = total},
          "the flat group ends here, at " + counted(partitions.size(), "rank") + " of " +
              counted(length, "element") + "; the parameters need " + std::to_string(group.used));
    }
    if (total - group.used >= alignment) {
      throw InconsistentError({.file = first.shard->display,
                               .member = member_of(g),
                               .tensor = name_at(group, group.used),
                               .offset = group.used},
                              counted(total - group.used, "element") +
                                  " after the last parameter, neither parameter nor "
                                  "padding (padding is less than " +
                                  std::to_string(alignment) + ")");
    }
    return length;
  }

  const PaddingBooks& books_of(size_t g, const FlatCut& cut,
                               const std::vector<Partition>& partitions) const {
    BooksEvidence evidence{.keeps_padding = padding_kept_};
    const Partition& last = partitions.back();
    if (!padding_kept_) evidence.last_padding = saved_padding(*last.shard, g);
    if (!last.shard->lost) evidence.last_saved = last.length;
    return padding_books(cut, evidence);
  }

  static void check_partition(size_t g, const FlatGroup& group, const Partition& partition,
                              const FlatCut& cut, size_t rank, const PaddingBooks& books) {
    const uint64_t expected = books.saved(cut, rank);
    if (partition.length != expected) {
      const uint64_t at = std::min(partition.length, expected);
      throw InconsistentError({.file = partition.shard->display,
                               .member = member_of(g),
                               .tensor = name_at(group, rank * cut.length + at),
                               .offset = at},
                              "has " + counted(partition.length, "element") +
                                  ", the parameters of this rank need " + std::to_string(expected));
    }
    const uint64_t padding = books.padding(cut, rank);
    if (const auto saved = saved_padding(*partition.shard, g); saved && *saved != padding) {
      throw InconsistentError(
          partition.shard->where(std::string(keys::kGroupPaddings) + "[" + std::to_string(g) + "]"),
          "is " + std::to_string(*saved) + ", but rank " + std::to_string(rank) + " has " +
              counted(padding, "element") + " of padding: the file is of another rank");
    }
  }

  // Start and numel of a fragment_address.
  static std::pair<uint64_t, uint64_t> fragment_of(const Value& address) {
    const Value& fields = address.as_object().state;
    return {static_cast<uint64_t>(fields.at("start").as_int()),
            static_cast<uint64_t>(fields.at("numel").as_int())};
  }

  static uint64_t mapped_numel(const Value& mapping) {
    uint64_t numel = 0;
    for (const auto& [name, address] : mapping.as_dict().items) {
      name.as_string();
      numel = checked_add(numel, fragment_of(address).second);
    }
    return numel;
  }

  // param_slice_mappings[g]: name -> fragment_address(numel, start), the part of each parameter in
  // this rank's partition. True if it places all of them where they lie, or if there is none.
  bool check_mapping(size_t g, const FlatGroup& group, const Shard& shard, const FlatCut& cut,
                     size_t rank) const {
    const Fields state = optimizer_state(shard);
    const auto mappings = state.sequence(keys::kParamSliceMappings);
    if (mappings.empty()) return true;
    const uint64_t begin = rank * cut.length;
    const uint64_t end = begin + cut.real(rank);
    const Where where =
        shard.where(std::string(keys::kParamSliceMappings) + "[" + std::to_string(g) + "]");
    const uint64_t saved_numel = in_context(where, [&] {
      if (g >= mappings.size()) throw CorruptError({}, "does not fit the groups");
      const auto [known, is_new] = mapped_.try_emplace(mappings[g].identity());
      if (is_new) known->second = mapped_numel(mappings[g]);
      return known->second;
    });
    // Under round-robin gradients DeepSpeed computes the mapping in an order the flat group does
    // not have (stage_1_and_2.py _link_all_hp_params). Only the file's rank-wide sum means
    // anything.
    const bool order_holds = !run_config_.may_be_round_robin();
    bool all_fit = true;
    uint64_t numel = 0;
    for (const Slice& slice : group.slices) {
      const uint64_t from = std::max(slice.begin, begin);
      const uint64_t to = std::min(slice.begin + slice.numel, end);
      if (from >= to) continue;
      numel += to - from;
      const Value* address = mappings[g].as_dict().find(slice.name);
      const bool fits =
          address != nullptr && fragment_of(*address) == std::pair(from - begin, to - from);
      all_fit = all_fit && fits;
      if (order_holds && !fits) {
        throw InconsistentError({.file = where.file,
                                 .member = where.member,
                                 .tensor = slice.name,
                                 .offset = from - begin},
                                "the file maps this parameter elsewhere: it is of another rank or "
                                "of another checkpoint");
      }
    }
    if (numel != saved_numel) {
      throw InconsistentError(where, "maps " + counted(saved_numel, "element") +
                                         ", this rank holds " + std::to_string(numel) +
                                         ": it is of another rank or of another checkpoint");
    }
    return all_fit;
  }

  const ModelStates& model_;
  const RunConfig& run_config_;
  std::vector<const Shard*> optim_;
  Fields state_;
  std::vector<int64_t> counts_;
  bool padding_kept_;
  bool optimizer_states_;
  std::map<const Shard*, FlatOptimizer> optimizers_;  // if states are wanted
  // The elements that a param_slice_mappings[g] maps, by its identity: groups may share one.
  mutable std::unordered_map<const void*, uint64_t> mapped_;
};

// Elements of each group on all ranks, as far as files have them.
std::vector<uint64_t> group_numels(const std::vector<const Shard*>& optim) {
  std::vector<uint64_t> numels;
  for (const Shard* shard : optim) {
    const auto groups = optimizer_state(*shard).sequence(keys::kSingleFp32Partition);
    numels.resize(std::max(numels.size(), groups.size()));
    for (size_t g = 0; g < groups.size(); ++g) {
      numels[g] = checked_add(numels[g],
                              static_cast<uint64_t>(numel(shard->archive.info(groups[g]).shape)));
    }
  }
  return numels;
}

// The facts of the optimizer's wrapper in a world's first file.
void take_wrapper(const Shard& optim, CheckpointFacts& facts) {
  const Fields state = optimizer_state(optim);
  facts.zero_stage = zero_stage_of(state);
  facts.optimizer_wrapper =
      keeps_padding(state) ? EngineWrapper::bf16_optimizer : EngineWrapper::zero12;
  facts.elastic = state.has(keys::kBaseOptimizerState) &&
                  state[keys::kBaseOptimizerState].is(pickle::Kind::list);
  facts.parameter_alignment = is_aligned(state);
}

bool probe_zero12(CheckpointDraft& draft) {
  return draft.folder.has(ShardName::Kind::optim_states);
}

void read_zero12(CheckpointDraft& draft) {
  open_optim_shards(draft);
  const Shard& first = draft.optim_shards.front();
  if (zero_stage_of(first) == 3) {
    throw InconsistentError({.file = draft.folder.path.string()},
                            "all zero_pp_rank_*_model_states.pt files are missing: " +
                                first.display + " is of stage 3");
  }
  open_model_shards(draft, ShardName::Kind::model_states);
  take_wrapper(first, draft.facts);

  look_up_tensors(draft, keys::kSingleFp32Partition, keys::kBaseOptimizerState,
                  draft.options.optimizer_states);
  check_steps(draft, keys::kBaseOptimizerState);
  std::deque<ModelStates> models;
  for (const Shard& shard : draft.model_shards) {
    models.emplace_back(shard);
    const auto optim = optim_shards_of(draft, shard.name.mp_rank);
    models.back().take_param_shapes(*optim.front());
    in_context(optim.front()->where(),
               [&] { models.back().split_param_shapes(group_numels(optim), 1); });
    models.back().drop_false_aliases();
    models.back().find_tied_views();
    add_router_aliases(models.back(), draft.inputs);
  }

  check_expert_files(draft);
  std::vector<World> worlds;
  for (const ModelStates& model : models) {
    const std::vector<const Shard*> optim = optim_shards_of(draft, model.shard().name.mp_rank);
    const Zero12WorldReader reader(model, optim, draft.run_config, draft.options.optimizer_states);
    FlatWorld read = reader.read();
    World& world = worlds.emplace_back(World{&model, std::move(read.owned), whole_frozen(model)});
    if (draft.options.optimizer_states) world.groups = reader.groups(read.round_robin);
    world.facts = draft.facts;
    take_wrapper(*optim.front(), world.facts);
    world.facts.round_robin = read.round_robin;
    world.wrapper_state = wrapper_state(*optim.front());
  }
  draft.wrapper_state = wrapper_state(first);
  draft.facts.round_robin = std::any_of(worlds.begin(), worlds.end(),
                                        [](const World& world) { return world.facts.round_robin; });
  keep_worlds(draft, models, worlds);
  assemble(draft, worlds, open_pipeline_layers(draft, names_in(worlds)));
  for (const World& world : worlds) world.model->note_not_tensors(draft);
}

}  // namespace

std::vector<ParamGroup> flat_param_groups(const ModelStates& model, std::span<const uint32_t> ranks,
                                          const TorchArchive& archive,
                                          std::span<const Value> settings) {
  std::vector<ParamGroup> groups;
  // Elastic files have no settings at all.
  if (!settings.empty() && settings.size() != model.param_shapes.size()) return groups;
  for (size_t g = 0; g < model.param_shapes.size(); ++g) {
    const NamedShapes& shapes = model.param_shapes[g];
    ParamGroup group;
    group.params.resize(shapes.size());
    const std::vector<size_t> order = round_robin_order(shapes.size(), ranks[g]);
    for (size_t i = 0; i < order.size(); ++i) group.params[order[i]] = shapes[i].first;
    if (g < settings.size()) group.settings = {&archive, settings[g]};
    groups.push_back(std::move(group));
  }
  return groups;
}

const Layout kZero12{"zero-1/2", probe_zero12, read_zero12};

}  // namespace dsckpt
