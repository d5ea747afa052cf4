// Source: a checkpoint, or weights to start from, opened. Metadata only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
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

struct SourceOptions {
  // The tag's folder name. Default: what the file `latest` says, or else `latest_universal`; the
  // folder itself if it holds shards.
  std::string tag = {};
  // Further folders with shards of the same tag, such as other nodes' disks.
  std::vector<std::filesystem::path> roots = {};
  // Where several models were saved, such as an actor and its critic, or the models of one DCP
  // folder: the one of that name. Empty: there is one.
  std::string model = {};
  // A file with the names of the model's parameters, one a line, in the order of
  // model.named_parameters(): for optimizers of other frameworks that number them. Empty: none.
  std::filesystem::path param_names = {};
  // The names of the parameters of each group of the run that goes on, in its order, for an
  // optimizer of another framework that numbers them; without, those of `like`.
  std::vector<std::vector<std::string>> group_names = {};
  // Read the optimizer's states too. to-universal, reshard and strip to a resume need them.
  bool optimizer_states = false;
  // How slices of tensor-parallel ranks go together where the checkpoint does not say it:
  // "REGEX=cat:0", "=cat:1", "=replicated", "=average" or "=sum".
  std::vector<std::string> tp_rules = {};
  // For plan_reshard, which leaves slices apart: where nothing says how those of a parameter go
  // together, it is no error. Other plans then stop when they meet slices that differ.
  bool slices_apart = false;
  // Go on without the files of ranks that are missing or cannot be read.
  bool allow_missing = false;
  // Of weights, `weights_from` too: from the names in the files to the engine's. `strip_prefix`
  // goes from the front of those that have it, then `add_prefix` comes to the front of all.
  std::string strip_prefix = {};
  std::string add_prefix = {};
  // A file of rules that rename tensors, cut them and join them, with their optimizer states: lines
  // of "REGEX => REPLACEMENT" (apps/zero_to_fp32/README.md). Of the checkpoint, of what it has;
  // where weights are given, of these, behind the prefixes. Empty: none. For plans that a training
  // goes on from; plan_weights has rules of its own.
  std::filesystem::path key_map = {};
  // Of weights with the names that models of transformers have on the hub: take the module's, as
  // the config.json in their folder says (lib/checkpoint/names), unless there is a `key_map`. With
  // `like` and `weights_from` the names of the checkpoint decide. For what a training goes on from.
  bool module_names = false;
  // A checkpoint of the run that is to start, or that saved files are for; it is read with its
  // optimizer states. Empty: none.
  std::filesystem::path like = {};
  // Weights, a folder of Hugging Face, a .safetensors or a .bin file, that the checkpoint's
  // parameters have instead of their own: fp32 masters exactly these numbers, 16-bit copies and
  // frozen parameters rounded from them once, and the buffers that are there. Optimizer states,
  // steps and all else stay. Names go through strip_prefix and add_prefix. Empty: none. For
  // reshard.
  std::filesystem::path weights_from = {};
  // Where files beside the shards are copied: those, too, that links in the checkpoint's folders
  // lead to outside of them.
  bool follow_links = false;
  // A folder or file of weights is an input too. Without, a checkpoint has to be there.
  bool weights = true;
  // Counts the files that are opened, and stops it: InterruptedError. Has to live until the plans
  // of the source are made. nullptr: nobody looks.
  Progress* progress = nullptr;
};

// How the checkpoints of an average are weighted.
struct AverageOptions {
  // One a checkpoint, in the order they are given in, above 0; only their ratio counts. Empty: all
  // alike.
  std::vector<double> weights = {};
  // D, above 0 and below 1, of the exponential moving average over the checkpoints from the oldest
  // on: A = the oldest, then A = D * A + (1 - D) * next. Not with weights.
  std::optional<double> ema = {};
  // If not 0: the one path given has tags, of which the so many newest are averaged that are
  // complete; the oldest of them comes first.
  size_t last = 0;
};

// What is known of the run that wrote the checkpoint. Empty where the files do not say.
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
};

// Elements [first, first + count) of `tensor`, row-major, and the memory that takes them.
struct TensorRead {
  const SourceTensor* tensor = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  std::span<std::byte> out = {};
};

// Cheap to copy. Any thread may read tensors; one thread at a time plans.
class DSCKPT_EXPORT Source {
 public:
  // Opens `path`: a checkpoint's folder (with `latest`, or a tag's own), or weights, which are a
  // folder of Hugging Face, a .safetensors or a .bin file. Reads the metadata of every shard and
  // accounts for every element. Throws IoError; CorruptError for a damaged file; InconsistentError
  // for missing shards and shards that disagree; UnsupportedError for layouts that have no reader;
  // UsageError for options that do not fit what is there.
  static Source open(const std::filesystem::path& path, const SourceOptions& options = {});

  // The weighted mean of checkpoints of one model, element by element: sum(w * x) / sum(w) in
  // float64, rounded once to the type that is written. Of trained and frozen parameters, of masters
  // where there are any; buffers and whole numbers are the newest's, which is the one of the
  // highest step, or else the last given. It has no optimizer states. Throws as open() and, for
  // checkpoints that do not fit each other, InconsistentError; UsageError for options that do not
  // fit.
  static Source open_average(const std::vector<std::filesystem::path>& paths,
                             const SourceOptions& options, const AverageOptions& average);

  SourceFacts facts() const;
  const std::vector<std::string>& notes() const;
  // In the order of DeepSpeed's zero_to_fp32: buffers, frozen, trainable by group, aliases; each
  // one followed by its optimizer states, if they were asked for. Vocabularies are without the rows
  // that only fill them up for tensor parallelism.
  std::vector<SourceTensor> tensors() const;
  // Gathers the elements of `tensor`, one of tensors(), in row-major order. `out` has its bytes.
  // Throws what reading throws.
  void read(const SourceTensor& tensor, std::span<std::byte> out) const;
  // Gathers what all of `reads` ask for, on all cores. With `check`, every record of the input that
  // any of it lies in is read whole and compared with its CRC32, once for each Source. Throws
  // CorruptError for one that is wrong, IoError, also for a file that was changed or cut since it
  // was opened, and InterruptedError if `progress` is cancelled.
  void gather(std::span<const TensorRead> reads, bool check, Progress& progress) const;
  // Checks the records that `tensor` lies in, as gather() does.
  void check(const SourceTensor& tensor, Progress& progress) const;
  // The files that the elements of `tensor` lie in, as messages call them.
  std::vector<std::string> files(const SourceTensor& tensor) const;
  // As read(), without a copy, if the elements lie in one stored file as torch's as_strided sees
  // them: a private mapping. A failing disk raises SIGBUS there. nullopt otherwise.
  std::optional<TensorView> view(const SourceTensor& tensor) const;

  // The library's own.
  struct Impl;
  explicit Source(std::shared_ptr<Impl> impl);
  Impl* operator->() const { return impl_.get(); }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsckpt
