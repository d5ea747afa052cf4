// Source: an open checkpoint, or open weights to start from. Only metadata is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsckpt/dtype.h"
#include "dsckpt/export.h"
#include "dsckpt/run.h"
#include "dsckpt/tensor.h"

namespace dsckpt {

struct Progress;

// Another set of parameters for the run that goes on. Patterns are regular expressions of RE2,
// found anywhere in a name. Each must fit a parameter that it changes.
struct SetChange {
  std::vector<std::string> unfreeze = {};  // frozen ones that become trained
  std::vector<std::string> freeze = {};    // trained ones that become frozen
  std::vector<std::string> drop = {};      // entries of the model that go
  // A file or folder of weights with new parameters, by the engine's names. Empty: none.
  std::filesystem::path add = {};
  // The rows of the vocabulary in the new run. nullopt: as it was.
  std::optional<int64_t> vocab_rows = {};
  // Which parameters have a row for each token. Empty: those with the usual names.
  std::vector<std::string> vocab = {};
  // The values of new rows: "mean" of the old ones, "zero", or a file or folder of weights.
  std::string new_rows = "mean";

  bool any() const {
    return !unfreeze.empty() || !freeze.empty() || !drop.empty() || !add.empty() || vocab_rows;
  }
};

struct SourceOptions {
  // The tag's folder name. Default: the tag that the file `latest` names, else `latest_universal`;
  // or the folder itself if it holds shards.
  std::string tag = {};
  // Further folders with shards of the same tag, for instance disks of other nodes.
  std::vector<std::filesystem::path> roots = {};
  // The name of the model, where several were saved: an actor and its critic, or the models of one
  // DCP folder. Empty: there is only one.
  std::string model = {};
  // A file with the names of the model's parameters, one a line, in the order of
  // model.named_parameters(). Optimizers of other frameworks that number their parameters need it.
  // Empty: none.
  std::filesystem::path param_names = {};
  // The parameter names of each group of the run that continues, in its order. They are for an
  // optimizer of another framework that numbers its parameters. Empty: the groups of `like`.
  std::vector<std::vector<std::string>> group_names = {};
  // Read the optimizer states too. to-universal, reshard and strip to a resume need them.
  bool optimizer_states = false;
  // Rules that join the slices of tensor-parallel ranks where the checkpoint does not say how:
  // "REGEX=cat:0", "=cat:1", "=replicated", "=average" or "=sum".
  std::vector<std::string> tp_rules = {};
  // For plan_reshard, which leaves slices apart: a parameter without a rule for its slices is no
  // error. Other plans then stop at slices that differ.
  bool slices_apart = false;
  // For plan_reshard to another number of tensor-parallel ranks: the rules are also for a model
  // that no tensor-parallel ranks share so far. Not with slices_apart.
  bool cut_anew = false;
  // Continue without the files of ranks that are missing or cannot be read.
  bool allow_missing = false;
  // For weights, also those of `weights_from`: maps the names in the files to the engine's.
  // `strip_prefix` is removed from names that begin with it, then `add_prefix` is put before every
  // name.
  std::string strip_prefix = {};
  std::string add_prefix = {};
  // A file of rules that rename, cut and join tensors with their optimizer states, with lines of
  // "REGEX => REPLACEMENT" (apps/zero_to_fp32/README.md). They are for the names of the checkpoint.
  // If weights are given, they are for the names of these, behind the prefixes. Empty: none. For
  // plans that a training goes on from; plan_weights has rules of its own.
  std::filesystem::path key_map = {};
  // For weights with the hub's names of a transformers model: use the module's names instead. The
  // config.json in their folder says which (lib/checkpoint/names), unless there is a `key_map`.
  // With `like` and `weights_from` the names of the checkpoint decide. For weights that a training
  // starts from.
  bool module_names = false;
  // A checkpoint of the run that will start, or that saved files are for. It is read with its
  // optimizer states. Empty: none.
  std::filesystem::path like = {};
  // Weights that replace those of the checkpoint, from a Hugging Face folder, a .safetensors or a
  // .bin file. The fp32 masters become exactly these numbers; 16-bit copies and frozen parameters
  // are rounded from them once. Buffers are replaced where the file has them. Optimizer states,
  // steps and everything else stay. Names pass through strip_prefix and add_prefix. Empty: none.
  // For reshard.
  std::filesystem::path weights_from = {};
  // Another set of parameters. The states of what is new begin empty; `strip_prefix` and
  // `add_prefix` are for the names of `set_change.add` too. With `like`, the groups and the order
  // are those of `like`; else of new parameters `param_names` gives the order. For reshard.
  SetChange set_change = {};
  // Where files beside the shards are copied, follow links that leave the checkpoint's folders.
  bool follow_links = false;
  // Accept a folder or file of weights as input too. If false, `path` must be a checkpoint.
  bool weights = true;
  // Counts the opened files. If it is cancelled, opening stops with InterruptedError. It must live
  // until the plans of the source are made. nullptr: no progress.
  Progress* progress = nullptr;
};

// How the checkpoints of an average are weighted.
struct AverageOptions {
  // One for each checkpoint, in the order of the paths, above 0. Only their ratio counts. Empty:
  // all equal.
  std::vector<double> weights = {};
  // The factor D of the exponential moving average, above 0 and below 1. The average A starts as
  // the oldest checkpoint; each newer one makes it D * A + (1 - D) * next. Not with weights.
  std::optional<double> ema = {};
  // If not 0: averages this many of the newest complete tags of the one path given, the oldest
  // first.
  size_t last = 0;
};

// Facts about the run that wrote the checkpoint. Empty where the files do not say.
struct SourceFacts {
  std::string layout;  // "zero-1/2", "universal", ...
  int zero_stage = 0;
  std::string optimizer_wrapper;  // DeepSpeed's class: "DeepSpeedZeroOptimizer"
  uint32_t pp = 1;                // ranks of each kind of parallelism
  uint32_t tp = 1;
  uint32_t dp = 1;
  uint32_t ep = 1;
  std::string ds_version;
  std::optional<int64_t> global_steps;
  std::string tag;
  bool from_weights = false;
  // For weights: the `__metadata__` of all files of safetensors, of the last file for each key.
  std::map<std::string, std::string> metadata = {};
};

// Elements [first, first + count) of `tensor`, row-major, and the memory to read them into.
struct TensorRead {
  const SourceTensor* tensor = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  std::span<std::byte> out = {};
};

// Cheap to copy. Any thread may read tensors; only one thread at a time may plan.
class DSCKPT_EXPORT Source {
 public:
  // Opens `path`: a checkpoint's folder (with `latest`, or a tag's own) or weights. Weights are a
  // Hugging Face folder, a .safetensors or a .bin file. Reads the metadata of every shard and
  // accounts for every element. Throws IoError, and CorruptError for a damaged file. Throws
  // InconsistentError for missing shards and shards that disagree. Throws UnsupportedError for
  // layouts that have no reader, UsageError for options that do not fit the input.
  static Source open(const std::filesystem::path& path, const SourceOptions& options = {});

  // The weighted mean of checkpoints of one model, element by element: sum(w * x) / sum(w). It is
  // computed in float64 and rounded once to the type that is written. Trained parameters (their
  // masters, where there are any) and frozen ones are averaged. Buffers and whole numbers are the
  // newest checkpoint's: the one of the highest step, else the last path. The result has no
  // optimizer states. Throws as open(), and InconsistentError for checkpoints that do not fit each
  // other. Throws UsageError for options that do not fit.
  static Source open_average(const std::vector<std::filesystem::path>& paths,
                             const SourceOptions& options, const AverageOptions& average);

  SourceFacts facts() const;
  const std::vector<std::string>& notes() const;
  // In the order of DeepSpeed's zero_to_fp32: buffers, frozen parameters, trainable ones by group,
  // aliases. The optimizer states of each follow it, if they were asked for. Vocabularies are
  // without the rows that only pad them for tensor parallelism.
  std::vector<SourceTensor> tensors() const;
  // Gathers the elements of `tensor`, one of tensors(), in row-major order. `out` must have
  // tensor.bytes() bytes. Throws the errors of reading.
  void read(const SourceTensor& tensor, std::span<std::byte> out) const;
  // Gathers the elements of all `reads`, on all cores. With `check`, reads every record of the
  // input that any of them lies in as a whole, and compares its CRC32, once for each Source. Throws
  // CorruptError for a wrong record, IoError, also for a file that was changed or cut since it was
  // opened. Throws InterruptedError if `progress` is cancelled.
  void gather(std::span<const TensorRead> reads, bool check, Progress& progress) const;
  // Checks the records that hold `tensor`, as gather() does.
  void check(const SourceTensor& tensor, Progress& progress) const;
  // The files that hold the elements of `tensor`, named as messages name them.
  std::vector<std::string> files(const SourceTensor& tensor) const;
  // As read(), without a copy: a private mapping of the file. Only if the elements lie in one
  // stored file as torch's as_strided can view them; else nullopt. A failing disk raises SIGBUS.
  std::optional<TensorView> view(const SourceTensor& tensor) const;

  // Internal to the library.
  struct Impl;
  explicit Source(std::shared_ptr<Impl> impl);
  Impl* operator->() const { return impl_.get(); }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsckpt
