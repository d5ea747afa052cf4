#include "job/source.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/changed_set.h"
#include "checkpoint/find/all_checkpoints.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/other_values.h"
#include "checkpoint/renamed.h"
#include "checkpoint/state_dicts.h"
#include "checkpoint/weights.h"
#include "dsckpt/error.h"
#include "format/read_tensor.h"
#include "io/content_name.h"
#include "io/far_files.h"
#include "io/mapped_file.h"
#include "io/text_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kGatheredAtOnce = 1 << 20;  // elements

void refuse_weights_options(const SourceOptions& options) {
  for (const auto& [option, value] : {std::pair("--strip-prefix", &options.strip_prefix),
                                      {"--add-prefix", &options.add_prefix}}) {
    if (value->empty()) continue;
    throw UsageError(std::string(option) + " is for weights, and the input is a checkpoint");
  }
}

// Reads one name from each line.
std::vector<std::string> read_param_names(const fs::path& path) {
  const std::string text = read_text(path, "names of parameters");
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    names.emplace_back(line);
    if (seen.insert(names.back()).second) continue;
    throw UsageError("--param-names: " + path.string() + " has '" + printable(names.back()) +
                     "' twice");
  }
  if (names.empty()) throw UsageError("--param-names: " + path.string() + " is empty");
  return names;
}

OpenOptions open_options(const SourceOptions& options) {
  OpenOptions open{.tag = options.tag,
                   .roots = options.roots,
                   .model = options.model,
                   .order = {.groups = options.group_names},
                   .optimizer_states = options.optimizer_states,
                   // Weights from elsewhere are of whole parameters.
                   .slices_apart = options.slices_apart && options.weights_from.empty(),
                   .cut_anew = options.cut_anew,
                   .allow_missing = options.allow_missing};
  for (const std::string& rule : options.tp_rules) open.tp_rules.push_back(TpRule::parse(rule));
  if (!options.param_names.empty()) open.order.names = read_param_names(options.param_names);
  return open;
}

// Checks the weights that are to replace those of the checkpoint at `path`.
void check_weights_from(Folders& folders, const SourceOptions& options, const fs::path& path,
                        bool is_weights) {
  if (options.weights_from.empty()) return;
  if (is_weights) {
    throw UsageError("--weights-from gives weights to a checkpoint, and " + path.string() +
                     " is weights itself")
        .with_hint("name the checkpoint that training continues from first");
  }
  if (options.allow_missing) throw UsageError("--weights-from takes complete checkpoints");
  std::error_code failed;
  if (!fs::exists(stored_path(options.weights_from).value_or(options.weights_from), failed)) {
    throw UsageError("--weights-from: " + options.weights_from.string() + " is not there");
  }
  if (is_weights_input(folders, options.weights_from, "", Beside::shards)) return;
  throw UsageError("--weights-from: " + options.weights_from.string() +
                   " holds no weights, a folder of Hugging Face, a .safetensors or a .bin file")
      .with_hint("zero-to-fp32 makes weights of a checkpoint, with --average the mean of several");
}

// A parameter or one of its states.
struct Element {
  const Param* param;
  const ParamState* state;  // nullptr: the parameter itself

  TensorSource value() const {
    return without_padding(*param, state == nullptr ? param->weight : state->value);
  }
};

template <typename F>
void for_each_element(const Checkpoint& checkpoint, F&& take) {
  for (const Param& param : checkpoint.params()) {
    take(Element{&param, nullptr});
    for (const ParamState& state : param.states) take(Element{&param, &state});
  }
}

TensorSource value_of(const Checkpoint& checkpoint, const SourceTensor& tensor) {
  const Param* param = checkpoint.find(tensor.name);
  if (param == nullptr) throw UsageError("there is no tensor '" + tensor.name + "'");
  if (tensor.state.empty()) return Element{param, nullptr}.value();
  for (const ParamState& state : param->states) {
    if (state.key == tensor.state) return Element{param, &state}.value();
  }
  throw UsageError("'" + tensor.name + "' has no state '" + tensor.state + "'");
}

}  // namespace

Source::Source(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Source Source::open(const fs::path& path, const SourceOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  impl->options = options;
  impl->inputs = std::make_shared<InputFiles>();
  impl->inputs->watch(options.progress);
  OpenOptions open = open_options(options);
  const Beside beside = options.optimizer_states ? Beside::optimizer : Beside::shards;
  open.folders = std::make_shared<Folders>();
  const TagFolder found = options.weights ? find_input(path, find_options(open), beside)
                                          : find_tag_folder(path, find_options(open));
  const bool is_weights = options.weights && found.has_only_weights();
  if (is_weights) impl->path = found.path;
  check_weights_from(*open.folders, options, path, is_weights);
  if (!is_weights && options.weights_from.empty() && options.set_change.add.empty()) {
    refuse_weights_options(options);
  }
  if (!options.like.empty()) {
    impl->like = std::make_shared<const Checkpoint>(Checkpoint::open(*impl->inputs, options.like,
                                                                     {.tag = {},
                                                                      .optimizer_states = true,
                                                                      .tp_rules = open.tp_rules,
                                                                      .cut_anew = open.cut_anew,
                                                                      .folders = open.folders}));
    for (const ParamGroup& group : impl->like->groups()) open.order.groups.push_back(group.params);
  }
  KeyMap rules = options.key_map.empty() ? KeyMap() : read_key_map(options.key_map);
  const bool are_of_weights = is_weights || !options.weights_from.empty();
  const WeightNames names{.strip_prefix = options.strip_prefix,
                          .add_prefix = options.add_prefix,
                          .model = is_weights ? found.model : std::string(),
                          .allow_missing = options.allow_missing,
                          .as_module = options.module_names,
                          .rules = rules.empty() ? nullptr : &rules,
                          .folders = open.folders,
                          .choice = is_weights ? found.note : std::string()};
  std::shared_ptr<const Checkpoint>& checkpoint = impl->checkpoint;
  const auto take = [&](Checkpoint made) {
    checkpoint = std::make_shared<const Checkpoint>(std::move(made));
  };
  if (!is_weights) {
    take(Checkpoint::open_found(*impl->inputs, found, open));
    impl->path = checkpoint->folder().named;
  } else if (impl->like) {
    take(started_from_weights(impl->like, impl->path, names));
  } else {
    take(weights_alone(*impl->inputs, impl->path, names));
  }
  if (!rules.empty() && !are_of_weights) take(renamed(checkpoint, rules));
  // The groups and files come from `like`.
  if (impl->like && checkpoint->facts().is_foreign() && options.optimizer_states) {
    take(with_values(impl->like, checkpoint));
  }
  if (!options.weights_from.empty()) take(with_weights(checkpoint, options.weights_from, names));
  if (options.set_change.any()) {
    take(changed_set(checkpoint, options.set_change, names, open.order.names, impl->like.get()));
  }
  return Source(std::move(impl));
}

namespace {

// One of an average.
struct AveragedPath {
  fs::path path;
  std::string model;  // of several in its files
};

// Opens one of an average.
Checkpoint open_averaged(InputFiles& inputs, const fs::path& path, const OpenOptions& options) {
  const TagFolder found = find_input(path, find_options(options), Beside::shards);
  if (!found.has_only_weights()) return Checkpoint::open_found(inputs, found, options);
  return weights_alone(inputs, found.path,
                       {.model = found.model, .folders = options.folders, .choice = found.note});
}

// Returns the complete checkpoints in `folder`, sorted by step. Adds notes on the others.
std::vector<AveragedPath> complete_ones(const fs::path& folder, const SourceOptions& options,
                                        std::vector<std::string>& notes) {
  std::vector<std::pair<int64_t, AveragedPath>> found;
  for (const NamedCheckpoint& each : all_ages(folder, options.model)) {
    try {
      InputFiles inputs;
      inputs.watch(options.progress);
      OpenOptions open = open_options(options);
      open.tag = each.tag;
      open.model = each.model;
      open.folders = std::make_shared<Folders>();
      open_averaged(inputs, each.path, open);
      if (!each.state.step) throw InconsistentError({}, "has no step number");
      const fs::path one = each.tag.empty() ? each.path : each.path / each.tag;
      found.emplace_back(*each.state.step, AveragedPath{one, each.model});
    } catch (const InterruptedError&) {
      throw;
    } catch (const Error& error) {
      notes.push_back(each.name + " is left out, it cannot be read: " + error.what());
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.path) < std::tie(b.first, b.second.path);
  });
  std::vector<AveragedPath> sorted;
  for (auto& [step, each] : found) sorted.push_back(std::move(each));
  return sorted;
}

// Returns the number of checkpoints in the folder, or 0 if it is unknown.
size_t tags_in(const fs::path& folder, const SourceOptions& options) {
  try {
    return all_checkpoints(folder, options.model).size();
  } catch (const Error&) {
    return 0;
  }
}

std::vector<AveragedPath> averaged_paths(const std::vector<fs::path>& paths,
                                         const SourceOptions& options,
                                         const AverageOptions& average,
                                         std::vector<std::string>& notes) {
  if (average.last == 0) {
    std::vector<AveragedPath> all;
    for (const fs::path& path : paths) all.push_back({path, options.model});
    return all;
  }
  if (paths.size() != 1 || !options.tag.empty()) {
    throw UsageError("--last takes the newest tags of one folder; leave out --tag");
  }
  std::vector<AveragedPath> tags = complete_ones(paths.front(), options, notes);
  if (tags.size() < average.last) {
    UsageError error("--last " + std::to_string(average.last) + ": " + paths.front().string() +
                     " has " + counted(tags.size(), "complete tag"));
    const fs::path folder = (paths.front() / "").parent_path();  // removes a slash at the end
    const fs::path above = (folder.has_parent_path() ? folder : fs::absolute(folder)).parent_path();
    const size_t there = tags_in(above, options);
    if (there < average.last) throw error;
    throw std::move(error).with_hint(shell_word(above.string()) + " above it has " +
                                     std::to_string(there));
  }
  tags.erase(tags.begin(), tags.end() - static_cast<ptrdiff_t>(average.last));
  return tags;
}

void check_average(const AverageOptions& average, const SourceOptions& options, size_t count) {
  if (options.optimizer_states || options.allow_missing) {
    throw UsageError("only complete checkpoints, and weights without states, can be averaged");
  }
  if (!options.roots.empty()) throw UsageError("--root goes with one checkpoint, not an average");
  if (count == 0) throw UsageError("an average of no checkpoints");
  if (!average.weights.empty() && average.ema) {
    throw UsageError("--weights and --ema are both given");
  }
  if (!average.weights.empty() && average.weights.size() != count) {
    throw UsageError(counted(average.weights.size(), "weight") + " for " +
                     counted(count, "checkpoint"))
        .with_hint("give them as one text: --weights 0.5,0.5");
  }
  for (const double weight : average.weights) {
    if (std::isfinite(weight) && weight > 0) continue;
    throw UsageError("weights are numbers above 0").with_hint("leave the checkpoint out instead");
  }
  if (average.ema && !(*average.ema > 0 && *average.ema < 1)) {
    throw UsageError("--ema takes a number above 0 and below 1");
  }
}

// Sorts from the oldest to the newest, if all have their steps.
void sort_by_step(std::vector<AveragedCheckpoint>& parts) {
  const auto step = [](const AveragedCheckpoint& part) {
    return part.checkpoint->facts().global_steps;
  };
  if (!std::all_of(parts.begin(), parts.end(), step)) return;
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const auto& a, const auto& b) { return step(a) < step(b); });
}

// Weights for A = the oldest, then A = decay * A + (1 - decay) * next.
void weigh_by_age(std::vector<AveragedCheckpoint>& parts, double decay) {
  double weight = 1;
  for (size_t i = parts.size(); i-- > 0; weight *= decay) {
    parts[i].weight = i == 0 ? weight : (1 - decay) * weight;
    if (parts[i].weight > 0) continue;
    throw UsageError("--ema " + std::to_string(decay) + ": gives no weight to the oldest of " +
                     counted(parts.size(), "checkpoint"));
  }
}

std::string averaged_text(const std::vector<AveragedCheckpoint>& parts) {
  double sum = 0;
  for (const AveragedCheckpoint& part : parts) sum += part.weight;
  std::string text = "averages " + counted(parts.size(), "checkpoint") + ":";
  for (size_t i = 0; i < parts.size(); ++i) {
    text += std::string(i == 0 ? " " : ", ") +
            parts[i].checkpoint->folder().own().filename().string() + " (" +
            human_percent(parts[i].weight / sum) + ")";
  }
  return text + "; buffers of the last";
}

}  // namespace

Source Source::open_average(const std::vector<fs::path>& paths, const SourceOptions& options,
                            const AverageOptions& average) {
  std::vector<std::string> notes;
  const std::vector<AveragedPath> all = averaged_paths(paths, options, average, notes);
  check_average(average, options, all.size());
  auto impl = std::make_shared<Impl>();
  impl->options = options;
  impl->inputs = std::make_shared<InputFiles>();
  impl->inputs->watch(options.progress);
  std::vector<AveragedCheckpoint> parts;
  std::set<fs::path> folders;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [path, model] = all[i];
    OpenOptions open = open_options(options);
    open.model = model;
    open.folders = std::make_shared<Folders>();
    auto checkpoint = std::make_shared<const Checkpoint>(open_averaged(*impl->inputs, path, open));
    const fs::path& own = checkpoint->folder().own();
    if (!folders.insert(fs::weakly_canonical(own)).second) {
      throw UsageError(own.string() + ": is given twice")
          .with_hint("--weights makes a checkpoint count more");
    }
    parts.push_back({std::move(checkpoint), average.weights.empty() ? 1 : average.weights[i]});
  }
  sort_by_step(parts);
  if (average.ema) weigh_by_age(parts, *average.ema);
  impl->path = parts.back().checkpoint->folder().own();
  notes.push_back(averaged_text(parts));
  impl->checkpoint = std::make_shared<const Checkpoint>(dsckpt::average(std::move(parts)));
  impl->notes = std::move(notes);
  return Source(std::move(impl));
}

Source source_of(fs::path path, std::shared_ptr<InputFiles> inputs,
                 std::shared_ptr<const Checkpoint> checkpoint) {
  auto impl = std::make_shared<Source::Impl>();
  impl->path = std::move(path);
  impl->inputs = std::move(inputs);
  impl->checkpoint = std::move(checkpoint);
  return Source(std::move(impl));
}

SourceFacts Source::facts() const {
  const CheckpointFacts& facts = impl_->checkpoint->facts();
  return {.layout = facts.layout,
          .zero_stage = facts.zero_stage,
          .optimizer_wrapper = std::string(to_string(facts.optimizer_wrapper)),
          .pp = facts.mesh.pp,
          .tp = facts.mesh.tp,
          .dp = facts.mesh.dp,
          .ep = facts.mesh.ep,
          .ds_version = facts.ds_version,
          .global_steps = facts.global_steps,
          .tag = facts.tag,
          .from_weights = facts.from_weights(),
          .metadata = facts.from_weights() ? metadata_of(impl_->checkpoint->weights_files())
                                           : std::map<std::string, std::string>()};
}

const std::vector<std::string>& Source::notes() const {
  return impl_->checkpoint->notes();
}

std::vector<SourceTensor> Source::tensors() const {
  std::vector<SourceTensor> tensors;
  for_each_element(*impl_->checkpoint, [&](const Element& element) {
    const TensorSource value = element.value();
    const bool has_states = element.state == nullptr && !element.param->states.empty();
    tensors.push_back({.name = element.param->name,
                       .state = element.state == nullptr ? "" : element.state->key,
                       .kind = element.param->kind,
                       .dtype = value.dtype(),
                       .shape = value.shape(),
                       .alias_of = element.param->alias_of,
                       .step = has_states ? step_of(*element.param) : std::nullopt});
  });
  return tensors;
}

void Source::read(const SourceTensor& tensor, std::span<std::byte> out) const {
  const TensorSource value = value_of(*impl_->checkpoint, tensor);
  if (out.size() != value.nbytes()) {
    throw UsageError("'" + tensor.name + "' has " + counted(value.nbytes(), "byte"));
  }
  const uint64_t item = size_of(value.dtype());
  const int64_t chunks = (value.numel() + kGatheredAtOnce - 1) / kGatheredAtOnce;
  in_context({.tensor = tensor.name}, [&] {
    tbb::parallel_for(int64_t{0}, chunks, [&](int64_t chunk) {
      const int64_t first = chunk * kGatheredAtOnce;
      const int64_t count = std::min(kGatheredAtOnce, value.numel() - first);
      read_elements(
          *impl_->inputs, value, first, count,
          out.subspan(static_cast<size_t>(first) * item, static_cast<size_t>(count) * item));
    });
  });
}

void Source::gather(std::span<const TensorRead> reads, bool check, Progress& progress) const {
  std::vector<TensorSource> sources;
  std::vector<std::span<std::byte>> outs;
  for (const TensorRead& read : reads) {
    const TensorSource value = value_of(*impl_->checkpoint, *read.tensor);
    sources.push_back(value.flatten().narrow(0, read.first, read.count));
    outs.push_back(read.out);
  }
  const CopyPlan plan = plan_gather(sources);
  std::vector<InputRecord> records;
  if (check) records = impl_->checked.unchecked(plan, *impl_->inputs);
  dsckpt::gather(plan, *impl_->inputs, outs, records, progress);
  impl_->checked.add(records);
}

void Source::check(const SourceTensor& tensor, Progress& progress) const {
  impl_->checked.check(*impl_->inputs, value_of(*impl_->checkpoint, tensor), progress);
}

std::vector<std::string> Source::files(const SourceTensor& tensor) const {
  std::vector<std::string> names;
  for (const FileId file : value_of(*impl_->checkpoint, tensor).files()) {
    names.push_back((*impl_->inputs)[file].display());
  }
  return names;
}

std::optional<TensorView> Source::view(const SourceTensor& tensor) const {
  const TensorSource value = value_of(*impl_->checkpoint, tensor);
  const std::optional<StridedView> view = value.as_strided();
  // A load needs a pointer that is a multiple of the element's size.
  const bool viewable = view && view->extent.size > 0 &&
                        view->extent.offset % size_of(view->dtype) == 0 &&
                        (*impl_->inputs)[view->extent.file].encoding() == Encoding::plain &&
                        !is_far((*impl_->inputs)[view->extent.file].path());
  if (!viewable) return std::nullopt;
  return in_context({.tensor = tensor.name}, [&] {
    const std::shared_ptr<MappedFile> file = impl_->mapping_of(view->extent.file);
    return std::optional<TensorView>(
        TensorView{.data = {file, file->data() + view->extent.offset}, .strides = view->strides});
  });
}

std::shared_ptr<MappedFile> Source::Impl::mapping_of(FileId file) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<MappedFile>& mapping = mappings_[file];
  if (!mapping) mapping = MappedFile::map((*inputs)[file]);
  return mapping;
}

void check_weights_are_read(const Checkpoint& checkpoint) {
  if (!checkpoint.facts().from_weights() || checkpoint.valueless().empty()) return;
  throw UnsupportedError({.file = checkpoint.tag_folder().string(),
                          .tensor = printable(checkpoint.valueless().front())},
                         "is a tensor of an unsupported kind")
      .with_hint("zero-to-fp32 writes the others, and names it");
}

UnsupportedError unassigned_states(const Checkpoint& checkpoint) {
  if (checkpoint.facts().states == StatesTold::stripped) {
    return UnsupportedError({.file = checkpoint.tag_folder().string()},
                            "was stripped to its weights by ckpt-pack strip: it has no optimizer "
                            "states");
  }
  if (checkpoint.facts().layout == "torch-dist") {
    UnsupportedError error({.file = checkpoint.tag_folder().string()},
                           "has optimizer states in flat buckets, which only the ranks that saved "
                           "them can read");
    return std::move(error).with_hint(
        "--dist-ckpt-optim-fully-reshardable of Megatron saves them by parameter");
  }
  if (checkpoint.files().model.empty()) return unnamed_states(checkpoint.tag_folder());
  if (!checkpoint.facts().has_masters) {
    return UnsupportedError(
        {.file = checkpoint.tag_folder().string()},
        "has only the 16-bit weights: this engine saved neither fp32 masters nor optimizer states");
  }
  return UnsupportedError(
      {.file = checkpoint.files().model.front().path.string(), .member = "optimizer.state"},
      "has no names, and the shapes do not show which parameter each state belongs to");
}

}  // namespace dsckpt
