// A running engine: the facts by which a target is chosen, and the entries that it reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/regrid.h"
#include "dsckpt/resume.h"
#include "format/torch_archive.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"
#include "reshard/copies.h"
#include "reshard/experts.h"
#include "reshard/run_facts.h"
#include "reshard/target.h"

namespace dsckpt {

// The experts of DeepSpeed's own that a rank of an engine has.
class LocalExperts {
 public:
  explicit LocalExperts(const EngineFacts& engine);
  // How many its layer has, by the name of a parameter of one. 0: it is of none.
  int64_t count(const std::string& name) const;

 private:
  KeyedMap<std::string, int64_t> counts_;  // by the part of the name before the number
};

// The facts of a run that has saved nothing yet.
class LiveRun {
 public:
  // `inputs`, those of `source`, which it is to load, have to outlive it. Tied parameters go by the
  // name that `source` has for them. Throws UsageError for impossible facts, and as
  // Document::parse().
  LiveRun(const EngineFacts& engine, const Checkpoint& source, const InputFiles& inputs);
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  const RunFacts& facts() const { return facts_; }

 private:
  void match_owners(const EngineFacts& engine, const Checkpoint& source);
  void add_params(const EngineFacts& engine, const Checkpoint& source);
  void add_expert(const EngineTensor& tensor, int64_t of_rank);
  void add_groups(const EngineFacts& engine, const InputFiles& inputs);
  void add_config(const EngineFacts& engine);
  const std::string& owner_of(const std::string& name) const;

  std::vector<Param> params_;
  KeyedMap<std::string, std::string> owners_;  // of tied parameters, the engine's -> the source's
  std::optional<TorchArchive> settings_;
  RunFacts facts_;
};

// The entries of its model that are in files of layers and of single experts. Immutable; any
// thread.
class LiveEntries {
 public:
  // `world` is the part of `whole` that the engine's mp rank loads, as `target`. `grid` is the one
  // that has cut it, if it is none of the checkpoint's own. Throws
  // InconsistentError for missing files, and for a tensor of the rank's layers or experts that a
  // strict engine does not have. Otherwise as plan_reshard(), which has them written to files.
  LiveEntries(InputFiles& inputs, const Checkpoint& whole, const Checkpoint& world,
              const Regrid* grid, const EngineFacts& engine, const ReshardTarget& target);

  // Those of a data-parallel rank. Entries that no file has are left out.
  std::vector<ModuleEntry> of(uint32_t rank) const;
  // True if they have the values of the files, not those of the masters.
  bool are_copies() const { return are_copies_; }

 private:
  // One in the engine.
  struct Wanted {
    std::string name;
    uint32_t ep = 0;      // EngineTensor::ep
    int64_t experts = 0;  // of a rank, in one tensor of AutoEP's
  };
  void take_params(const Checkpoint& world, const ReshardTarget& target);
  void take_tensors(RankFreeFiles& files, const Checkpoint& whole, const Checkpoint& world,
                    const EngineFacts& engine, const ReshardTarget& target);
  void refuse_others(const Checkpoint& whole, const EngineFacts& engine) const;
  std::string local_name(const std::string& name) const;
  TensorSource joined(const Wanted& wanted, uint32_t ep_rank) const;

  bool are_copies_ = false;
  LocalExperts local_;
  ExpertMesh mesh_;  // of no layer: its `ep` is not set
  std::vector<Wanted> wanted_;
  KeyedMap<std::string, size_t> numbers_;  // in `wanted_`, by name
  KeyedMap<std::string, TensorSource> found_;
};

}  // namespace dsckpt
