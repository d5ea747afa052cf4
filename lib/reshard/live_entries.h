// The entries of a running engine's model that are in files of layers and of single experts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/regrid.h"
#include "dsckpt/resume.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"
#include "reshard/copies.h"
#include "reshard/experts.h"
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

// Immutable; any thread.
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
