// The facts of a running engine, by which a target is chosen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "dsckpt/resume.h"
#include "format/torch_archive.h"
#include "io/input_file.h"
#include "reshard/run_facts.h"

namespace dsckpt {

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

}  // namespace dsckpt
